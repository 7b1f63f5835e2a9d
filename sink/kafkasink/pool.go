package kafkasink

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// maxCalls is how many calls of Publish use Kafka at a time; others wait. It bounds connections: a
// client has one or two to each broker.
const maxCalls = 32

// kind is what a client is for. They differ in the largest batch they make.
type kind uint8

const (
	batching kind = iota // the topic's limit
	single               // the sink's MaxMessageBytes: for records that go alone
)

// enter waits until this call may use Kafka.
func (s *Sink) enter(ctx context.Context) error {
	select {
	case s.calls <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kafka: wait for other calls: %w", context.Cause(ctx))
	}
}

func (s *Sink) leave() { <-s.calls }

// acquire takes an idle client, or makes one. Whoever has it releases it.
func (s *Sink) acquire(ctx context.Context, k kind) (*client, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for {
		c, err := s.idleClient(k)
		switch {
		case err != nil:
			return nil, err
		case c == nil:
			return s.newClient(ctx, k)
		case time.Since(c.made) < maxAge && c.era == s.currentEra():
			return c, nil
		}
		c.spent = true
		s.release(c)
	}
}

// idleClient takes an idle client; nil if there is none.
func (s *Sink) idleClient(k kind) (*client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	idle := s.idle[k]
	if len(idle) == 0 {
		return nil, nil
	}
	c := idle[len(idle)-1]
	s.idle[k] = idle[:len(idle)-1]
	return c, nil
}

func (s *Sink) newClient(ctx context.Context, k kind) (*client, error) {
	c := &client{kind: k, made: time.Now(), topics: map[string]bool{}, used: map[string]bool{}}
	s.mu.Lock()
	c.era, c.limits = s.era, maps.Clone(s.limits)
	s.mu.Unlock()
	var err error
	if c.kgo, err = kgo.NewClient(s.options(c)...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.mu.Lock()
	closed := s.closed
	s.all[c] = struct{}{}
	s.mu.Unlock()
	if closed {
		err = errClosed
	} else {
		err = s.connect(ctx, c)
	}
	if err != nil {
		c.spent = true
		s.release(c)
		return nil, err
	}
	return c, nil
}

// release gives a client back, on which nothing is in flight. One that is spent is closed.
func (s *Sink) release(c *client) {
	spent := c.spent || c.cause() != nil
	s.mu.Lock()
	if spent {
		delete(s.all, c)
	} else {
		s.idle[c.kind] = append(s.idle[c.kind], c)
	}
	s.mu.Unlock()
	if spent {
		c.kill(errSpent)
	}
}

func (s *Sink) currentEra() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.era
}

// minBatch is the smallest limit of a batch.
const minBatch = 1024

// batchLimit is the size that no batch of a topic may exceed in c's era.
func (s *Sink) batchLimit(c *client, topic string) int {
	if n, ok := c.limits[topic]; ok {
		return n
	}
	return s.cfg.MaxMessageBytes
}

// slack is more than what the library counts for a record and a broker, and batchSize, do not.
const slack = 64

// largestBatch is what c's library takes for a batch's limit. We find what is too large: a record
// that the library itself refused would not hold back its key.
func (s *Sink) largestBatch(c *client, topic string) int {
	if c.kind == single {
		return s.cfg.MaxMessageBytes + slack
	}
	return s.batchLimit(c, topic)
}

// largestTogether is the size of the largest record that may share a batch of c.
func (s *Sink) largestTogether(c *client, topic string) int { return s.batchLimit(c, topic) - slack }

// learnLimit makes later batches of a topic smaller: the broker has refused one of c's. It is
// false if they can be no smaller. A new era begins, in which new clients take the place of all.
func (s *Sink) learnLimit(ctx context.Context, c *client, topic string) bool {
	before := s.batchLimit(c, topic)
	if before <= minBatch {
		return false
	}
	limit := c.maxMessage(ctx, topic)
	if limit <= 0 || limit >= before {
		limit = before / 2 // it cannot be known, or the broker's own limit is less
	}
	limit = max(limit, minBatch)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok := s.limits[topic]; !ok || limit < n {
		s.limits[topic] = limit
		s.era++
	}
	return true
}
