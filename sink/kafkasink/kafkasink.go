// Package kafkasink delivers to Kafka.
//
// The topic is the Kafka topic, and the aggregate id is the record's key: Kafka's hash of it
// chooses the partition, so that events of one aggregate in one topic stay in order. Between topics
// Kafka has no order, so set a subscription's Topic to "{aggregate_type}", or to a topic of its own:
// relay.Subscription's default, "{event_type}", spreads the events of one aggregate. A record
// carries the event's payload and the headers of docs/wire.md; an event without a payload is a
// tombstone. An event counts as published when all in-sync replicas have it (acks=all).
//
// The producer is idempotent: what a lost connection left open is sent again, and stored once.
// Within a topic nothing waits for single acknowledgements, not even events of one key. Where
// events of one key go to different topics, which may fail independently, each change of the topic
// waits for what came before.
package kafkasink

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/commitrelay/outbox/relay"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Sink publishes to Kafka. It is safe for concurrent use: each call takes a client out of a pool,
// with connections of its own.
type Sink struct {
	cfg Config
	to  cluster

	// connectTCP makes the function by which one client connects; tests put others in its place.
	connectTCP func() func(ctx context.Context, network, address string) (net.Conn, error)

	calls   chan struct{} // one element per call of Publish under way
	closing sync.Mutex    // one call of Close at a time waits for them

	mu     sync.Mutex
	closed bool
	all    map[*client]struct{}
	idle   [2][]*client   // by kind, the last one used at the end
	limits map[string]int // of batches, by topic, where less than MaxMessageBytes was learned
	era    int            // counts what was learned
}

var _ relay.Sink = (*Sink)(nil)

var (
	errClosed = errors.New("kafka: the sink is closed")
	errSpent  = errors.New("kafka: the client is replaced")
)

// New checks cfg, and reads the files that it names. It does not connect: Publish does, so that
// brokers that are down are a matter of waiting and not of starting.
func New(cfg Config) (*Sink, error) {
	cfg, to, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Sink{cfg: cfg, to: to, calls: make(chan struct{}, maxCalls), all: map[*client]struct{}{}, limits: map[string]int{}}
	s.connectTCP = func() func(context.Context, string, string) (net.Conn, error) {
		if cfg.Dial != nil {
			return cfg.Dial
		}
		return (&net.Dialer{Timeout: cfg.ConnectTimeout}).DialContext
	}
	if err := kgo.ValidateOpts(s.options(&client{})...); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends all connections, and waits for the calls of Publish that are under way: they end soon.
// Later ones fail.
func (s *Sink) Close() error {
	s.mu.Lock()
	s.closed = true
	var clients []*client
	for c := range s.all {
		clients = append(clients, c)
	}
	clear(s.all)
	s.idle = [2][]*client{}
	s.mu.Unlock()
	for _, c := range clients {
		c.kill(errClosed)
	}
	s.closing.Lock()
	defer s.closing.Unlock()
	for range maxCalls {
		s.calls <- struct{}{}
	}
	for range maxCalls {
		<-s.calls
	}
	return nil
}

// DefaultTopic is the topic template of a subscription that names none: one topic per aggregate type. A topic per event type
// would spread an aggregate over several, which keep no order among them.
func (s *Sink) DefaultTopic() string { return "{aggregate_type}" }

// Publish implements relay.Sink. docs/sinks.md lists which answer of the brokers has which outcome.
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) error {
	if len(batch) == 0 {
		return nil
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	p := newPublication(s, batch)
	return p.result(p.run(ctx))
}
