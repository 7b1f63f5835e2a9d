package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/commitrelay/outbox/relay"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// lookUp finds out which topics do not exist, or are not for us, and returns why by topic, marked.
// It asks the brokers for those that are not known to exist. The library would ask as well, but
// keeps asking for as long as it lives, and holds back records meanwhile.
func (s *Sink) lookUp(ctx context.Context, c *client, topics []string) (map[string]error, error) {
	var open []string
	for _, t := range topics {
		if !c.topics[t] {
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.AckTimeout, fmt.Errorf("no answer within %v", s.cfg.AckTimeout))
	defer cancel()
	creation := time.Now().Add(s.cfg.AckTimeout / 2)
	for {
		bad, err := s.describe(ctx, c, open)
		if err != nil {
			switch {
			case c.cause() != nil:
				return nil, c.cause()
			case ctx.Err() != nil:
				err = context.Cause(ctx)
			}
			c.spent = true
			return nil, fmt.Errorf("kafka: look up topics: %w", c.withDialError(err))
		}
		if !s.cfg.AllowAutoTopicCreation || !anyMissing(bad) || time.Now().After(creation) {
			return bad, nil
		}
		// The first request begins the creation, and does not wait for it.
		pause := time.NewTimer(50 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
		}
	}
}

// describe asks a broker once.
func (s *Sink) describe(ctx context.Context, c *client, topics []string) (map[string]error, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = s.cfg.AllowAutoTopicCreation
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = new(t)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return nil, err
	}
	bad := map[string]error{}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			bad[*t.Topic] = s.topicFault(*t.Topic, err)
		} else {
			c.topics[*t.Topic] = true
		}
	}
	return bad, nil
}

var errMissing = errors.New("does not exist: create it, or change the subscription's topic")

// topicFault gives the answer to a topic its mark.
func (s *Sink) topicFault(topic string, err error) error {
	switch {
	case isMissing(err) || errors.Is(err, kerr.LeaderNotAvailable):
		err = fmt.Errorf("topic %q %w (%w)", topic, errMissing, err)
		if s.cfg.AllowAutoTopicCreation {
			err = fmt.Errorf("%w; the broker was asked to create it and has not", err)
		}
		return relay.Unavailable(err)
	case errors.Is(err, kerr.InvalidTopicException):
		return relay.Permanent(fmt.Errorf("topic %q: %w", topic, err))
	}
	return relay.Unavailable(fmt.Errorf("topic %q: %w", topic, err))
}

func isMissing(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
}

func anyMissing(bad map[string]error) bool {
	for _, err := range bad {
		if errors.Is(err, errMissing) {
			return true
		}
	}
	return false
}

// maxMessage is a topic's max.message.bytes, 0 if that cannot be known: to ask may be forbidden.
func (c *client) maxMessage(ctx context.Context, topic string) int {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req := kmsg.NewPtrDescribeConfigsRequest()
	resource := kmsg.NewDescribeConfigsRequestResource()
	resource.ResourceType = kmsg.ConfigResourceTypeTopic
	resource.ResourceName = topic
	resource.ConfigNames = []string{"max.message.bytes"}
	req.Resources = append(req.Resources, resource)
	resp, err := req.RequestWith(ctx, c.kgo)
	if err != nil {
		return 0
	}
	for _, r := range resp.Resources {
		for _, config := range r.Configs {
			if config.Name == "max.message.bytes" && config.Value != nil {
				if n, err := strconv.Atoi(*config.Value); err == nil {
					return n
				}
			}
		}
	}
	return 0
}
