package kafkasink

import (
	"context"
	"errors"
	"fmt"

	"github.com/commitrelay/outbox/relay"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// answer is what a broker, or the library, makes of a record.
type answer uint8

const (
	taken        answer = iota
	tooLarge            // the batch is
	faulty              // a record of the batch is
	topicMissing        // or was made anew
	topicRefused        // no right to it, or it cannot be a topic
	takenBack           // not sent, because of another one
	unclear             // not known, or the fault of more than the topic
)

func answerOf(err error) answer {
	if err == nil {
		return taken
	}
	var e *kerr.Error
	switch {
	case errors.Is(err, kgo.ErrAborting):
		return takenBack
	case !errors.As(err, &e):
		return unclear
	}
	switch e {
	case kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return tooLarge
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID:
		return topicMissing
	case kerr.TopicAuthorizationFailed, kerr.InvalidTopicException:
		return topicRefused
	case kerr.CorruptMessage: // counts as passing, but is not tried again by the library
		return faulty
	case kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.UnsupportedVersion, kerr.InvalidRequiredAcks, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping,
		kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.ProducerFenced:
		return unclear
	}
	if e.Retriable {
		return unclear
	}
	return faulty
}

// verdict is the outcome of a message whose record was alone in its batch.
func (p *publication) verdict(ctx context.Context, c *client, i int, cause error) error {
	err, topic := p.errs[i], p.batch[i].Topic
	switch answerOf(err) {
	case taken:
		return nil
	case tooLarge:
		allowed := "its max.message.bytes"
		if n := c.maxMessage(ctx, topic); n > 0 {
			allowed = fmt.Sprintf("max.message.bytes %d", n)
		}
		return relay.Permanent(fmt.Errorf("record of %d bytes, key and headers included, is larger than topic %q allows (%s): %w",
			p.records.sizes[i], topic, allowed, err))
	case faulty:
		err = fmt.Errorf("topic %q refuses it: %w", topic, err)
		if errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp) || errors.Is(err, kerr.CorruptMessage) {
			return relay.Permanent(err)
		}
		return relay.Retry(err)
	case topicMissing, topicRefused:
		c.spent = true
		return p.sink.topicFault(topic, err)
	}
	c.spent = c.spent || !passes(err)
	return unconfirmed(topic, err, cause)
}

// passes tells whether the client is as good as before an unclear answer: the brokers could not take
// the record in time. After others, as those to its producer id, it may keep failing.
func passes(err error) bool { return errors.Is(err, kgo.ErrRecordTimeout) || kerr.IsRetriable(err) }

// unconfirmed is the outcome of a message of which nobody knows whether it arrived. cause, if
// there is one, says more than the library's err.
func unconfirmed(topic string, err, cause error) error {
	if cause != nil {
		err = cause
	}
	return fmt.Errorf("topic %q: not confirmed: %w", topic, err)
}
