// Package natssink delivers to NATS JetStream.
//
// The topic is the subject. A message carries the event's payload and the headers of
// docs/wire.md, and the event's id as Nats-Msg-Id, so that the stream drops a repetition within its
// duplicate window. An event counts as published when its stream has acknowledged it.
//
// Events of one key wait for each other, others do not: a batch is sent without waiting for
// single acknowledgements.
package natssink

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/internal/keyed"
	"github.com/nats-io/nats.go"
)

// Sink publishes to JetStream. It is safe for concurrent use: all calls share one connection,
// which is made by the first one, and again after it was lost.
type Sink struct {
	cfg     Config
	servers []*url.URL
	shown   string // the servers' addresses without secrets

	dialing chan struct{}  // held by the call that connects
	running sync.WaitGroup // connections that nats.go has not closed yet

	mu     sync.Mutex
	conn   *conn
	closed bool
}

var _ relay.Sink = (*Sink)(nil)

var errClosed = errors.New("nats: the sink is closed")

// maxInFlight bounds what a call has sent and not yet seen acknowledged. A stream buffers 10,000
// messages of all its publishers.
const maxInFlight = 1000

// stuckGrace is how long a write may still take when its call's context has ended.
const stuckGrace = 250 * time.Millisecond

// New checks cfg, and reads the files that it names. It does not connect: Publish does, so that a
// broker that is down is a matter of waiting and not of starting.
func New(cfg Config) (*Sink, error) {
	cfg, servers, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Sink{cfg: cfg, servers: servers, shown: addresses(servers), dialing: make(chan struct{}, 1)}, nil
}

// Close ends the connection and waits until nothing of it runs any more. Calls of Publish that
// are under way end; later ones fail.
func (s *Sink) Close() error {
	s.mu.Lock()
	s.closed = true
	c := s.conn
	s.mu.Unlock()
	if c != nil {
		c.lose(errClosed)
	}
	s.running.Wait()
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
	p := &publication{
		sink: s, conn: c, call: c.begin(), batch: batch,
		flight:  keyed.New(batch),
		encoder: newEncoder(s.cfg.Stream, c.nc.MaxPayload()),
		lookups: lookups{sink: s, conn: c},
	}
	defer c.end(p.call)
	defer context.AfterFunc(ctx, func() { c.raw.Hurry(stuckGrace) })()
	p.reply = strconv.AppendUint([]byte(c.inbox), p.call.id, 36)
	p.reply = append(p.reply, '.')
	return p.flight.Err(p.run(ctx))
}

// publication is one call of Publish.
type publication struct {
	sink    *Sink
	conn    *conn
	call    *call
	batch   []relay.Message
	flight  *keyed.Batch
	encoder *encoder
	lookups lookups
	reply   []byte // the inbox of this call, up to the message's number
	events  []event
}

// run sends and waits until all is settled, or returns why it cannot go on.
func (p *publication) run(ctx context.Context) error {
	timeout := p.sink.cfg.AckTimeout
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	progress := time.Now()
	for p.flight.Open() > 0 {
		if err := p.send(ctx); err != nil {
			p.settle(ctx)
			return err
		}
		if p.flight.Open() == 0 {
			break // all that was left cannot be sent at all
		}
		select {
		case <-p.call.wake:
			p.settle(ctx)
			progress = time.Now()
		case <-p.conn.down:
			p.settle(ctx)
			return p.conn.lostCause()
		case <-ctx.Done():
			p.settle(ctx)
			return context.Cause(ctx)
		case <-timer.C:
			if left := timeout - time.Since(progress); left > 0 {
				timer.Reset(left)
				continue
			}
			if err := p.unanswered(ctx); err != nil {
				return err
			}
			progress = time.Now()
			timer.Reset(timeout)
		}
	}
	return nil
}

// send sends what may be sent now.
func (p *publication) send(ctx context.Context) error {
	for p.flight.InFlight() < maxInFlight {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		i, ok := p.flight.Next()
		if !ok {
			return nil
		}
		msg, err := p.encoder.encode(&p.batch[i])
		if err != nil {
			p.flight.Settle(i, err)
			continue
		}
		msg.Reply = string(strconv.AppendUint(p.reply, uint64(i), 36))
		switch err := p.conn.nc.PublishMsg(msg); {
		case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrBadHeaderMsg):
			p.flight.Settle(i, relay.Permanent(err)) // encode finds these first, and says more
		case err != nil:
			p.conn.lose(err)
			return p.conn.lostCause()
		}
	}
	return nil
}

// settle takes what has been answered.
func (p *publication) settle(ctx context.Context) {
	p.events = p.call.take(p.events)
	for _, e := range p.events {
		if e.i < 0 {
			p.deny(e)
			continue
		}
		if e.i >= len(p.batch) || !p.flight.Flying(e.i) {
			continue
		}
		p.flight.Settle(e.i, p.outcome(ctx, e))
	}
	clear(p.events) // hold no acknowledgement longer than needed
}

func (p *publication) outcome(ctx context.Context, e event) error {
	subject := p.batch[e.i].Topic
	ack, err := readAck(e.answer)
	switch {
	case errors.Is(err, errNoResponders):
		return p.lookups.why(ctx, subject)
	case err != nil:
		return relay.Unavailable(fmt.Errorf("subject %s: %w", shown(subject), err))
	case ack.Error == nil:
		if ack.Duplicate && p.sink.cfg.Repeated != nil {
			p.sink.cfg.Repeated(p.batch[e.i])
		}
		return nil
	case ack.Error.ErrCode == errMessageTooLarge:
		_, _ = p.encoder.encode(&p.batch[e.i]) // to know its size; it could be encoded before
		return relay.Permanent(fmt.Errorf("message of %d bytes, headers included, is larger than stream %q allows%s: %w",
			p.encoder.size, ack.Stream, p.lookups.maxMessage(ctx, ack.Stream), ack.Error))
	}
	return p.sink.refusal(subject, ack)
}

// deny settles what is in flight to a subject that the server forbids: it has dropped all of it.
func (p *publication) deny(e event) {
	for i := range p.batch {
		if p.flight.Flying(i) && p.batch[i].Topic == e.denied {
			p.flight.Settle(i, relay.Unavailable(fmt.Errorf("subject %s: %w", shown(e.denied), e.err)))
		}
	}
}

// unanswered finds out why nothing has been acknowledged for too long. It returns nil if that
// was the fault of subjects only.
func (p *publication) unanswered(ctx context.Context) error {
	if err := p.conn.nc.FlushTimeout(min(lookupTimeout, p.sink.cfg.AckTimeout)); err != nil {
		// Not even a ping is answered: the next call shall try another connection.
		p.conn.lose(fmt.Errorf("no acknowledgement for %v, and no answer to a ping", p.sink.cfg.AckTimeout))
		p.settle(ctx)
		return p.conn.lostCause()
	}
	p.settle(ctx)
	// Something that is no stream may listen there and never answer.
	for i := range p.batch {
		if !p.flight.Flying(i) {
			continue
		}
		if err := p.lookups.why(ctx, p.batch[i].Topic); relay.OutcomeOf(err) == "unavailable" {
			p.flight.Settle(i, err)
		}
	}
	if p.flight.InFlight() == 0 {
		return nil
	}
	return fmt.Errorf("nats: no acknowledgement for %v", p.sink.cfg.AckTimeout)
}
