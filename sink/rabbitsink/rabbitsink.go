// Package rabbitsink delivers to RabbitMQ, by AMQP 0-9-1.
//
// The topic is the routing key on the sink's exchange. A message is persistent and mandatory; it
// carries the event's payload and the headers of docs/wire.md, the event's id as message_id, its
// type as type. An event counts as published when the broker has confirmed it and has not
// returned it as unroutable.
//
// Events of one key wait for each other, others do not: a batch is sent without waiting for
// single confirms.
package rabbitsink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/internal/keyed"
)

// Sink publishes to RabbitMQ. It is safe for concurrent use: all calls share one connection, each
// with a channel of its own. The connection is made by the first call, and again after it was
// lost.
type Sink struct {
	cfg   Config
	nodes []node

	dialing chan struct{} // held by the call that connects
	next    int           // the node to try first; belongs to the holder of dialing

	mu     sync.Mutex
	conn   *conn
	closed bool
}

var _ relay.Sink = (*Sink)(nil)

var errClosed = errors.New("rabbitmq: the sink is closed")

// New checks cfg, and reads the files that it names. It does not connect: Publish does, so that a
// broker that is down is a matter of waiting and not of starting.
func New(cfg Config) (*Sink, error) {
	cfg, nodes, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg, nodes: nodes, dialing: make(chan struct{}, 1)}, nil
}

// Close ends the connection and waits until nothing of it runs any more. Calls of Publish that
// are under way end; later ones fail.
func (s *Sink) Close() error {
	s.mu.Lock()
	s.closed = true
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.close()
	}
	s.dialing <- struct{}{} // a call that connects sees closed, and cleans up
	<-s.dialing
	return nil
}

// Publish implements relay.Sink. docs/sinks.md lists which answer of the broker has which outcome.
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) error {
	if len(batch) == 0 {
		return nil
	}
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if err := c.blockedCause(); err != nil {
		return err
	}
	if err := c.checkExchange(ctx, s.cfg.Exchange); err != nil {
		// The whole sink has no other: nothing is parked for it.
		return fmt.Errorf("rabbitmq: %w", err)
	}
	p := &publication{sink: s, conn: c, batch: batch, flight: keyed.New(batch)}
	defer context.AfterFunc(ctx, func() { c.raw.Hurry(stuckGrace) })()
	err = p.run(ctx)
	return p.flight.Err(err)
}
