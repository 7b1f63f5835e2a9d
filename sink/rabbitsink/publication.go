package rabbitsink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/internal/keyed"
	amqp "github.com/rabbitmq/amqp091-go"
)

// publication is one call of Publish.
type publication struct {
	sink   *Sink
	conn   *conn
	batch  []relay.Message
	flight *keyed.Batch

	channel *channel
	sent    []sent           // in flight, in the order of their delivery tags
	missing map[string]error // exchanges that do not exist

	// suspects is the number of messages to send one at a time: the channel has closed over one
	// of them, and does not say which.
	suspects int
}

// sent is a message in flight.
type sent struct {
	i       int
	target  target
	confirm *amqp.DeferredConfirmation // nil: the library failed to send it
	refused error                      // the broker has returned it
}

// run sends and waits until all is settled, or returns why it cannot go on.
func (p *publication) run(ctx context.Context) error {
	defer p.dropChannel()
	timer := time.NewTimer(p.sink.cfg.AckTimeout)
	defer timer.Stop()
	for p.flight.Open() > 0 {
		if err := p.send(ctx); err != nil {
			p.settleKnown()
			return err
		}
		if len(p.sent) == 0 {
			continue // what was ready could not be sent; more may be ready now
		}
		// Go 1.23 timers need no draining.
		timer.Reset(p.sink.cfg.AckTimeout)
		select {
		case _, ok := <-p.channel.confirms:
			if ok {
				p.confirmed()
			} else if err := p.channelClosed(); err != nil {
				return err
			}
		case <-ctx.Done():
			p.settleKnown()
			return context.Cause(ctx)
		case <-timer.C:
			p.settleKnown()
			if err := p.conn.blockedCause(); err != nil {
				return err
			}
			return fmt.Errorf("rabbitmq: no confirm for %v", p.sink.cfg.AckTimeout)
		}
	}
	return nil
}

// send sends what may be sent now.
func (p *publication) send(ctx context.Context) error {
	for {
		window := maxInFlight
		if p.suspects > 0 {
			window = 1
		}
		if len(p.sent) >= window {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.conn.blockedCause(); err != nil && len(p.sent) == 0 {
			return err
		} else if err != nil {
			return nil // wait for what is under way, and add nothing
		}
		i, ok := p.flight.Next()
		if !ok {
			return nil
		}
		if err := p.sendOne(ctx, i); err != nil {
			return err
		}
	}
}

// sendOne sends message i, or settles it if it cannot be sent. Its error ends the publication.
func (p *publication) sendOne(ctx context.Context, i int) error {
	m := &p.batch[i]
	t, err := p.sink.target(m)
	if err != nil {
		p.flight.Settle(i, err)
		return nil
	}
	msg, err := p.sink.encode(m, p.conn.frame, int(p.conn.maxBytes.Load()))
	if err != nil {
		p.flight.Settle(i, err)
		return nil
	}
	if err := p.checkTarget(ctx, t); err != nil {
		if relay.OutcomeOf(err) == "unknown" {
			return err
		}
		p.flight.Settle(i, err)
		return nil
	}
	if p.channel == nil {
		if p.channel, err = p.conn.channel(ctx); err != nil {
			return err
		}
	}
	confirm, err := p.channel.amqp.PublishWithDeferredConfirm(t.exchange, t.key, true, false, msg)
	// After an error it may have been sent: the channel is closing, and that is seen in a moment.
	p.sent = append(p.sent, sent{i: i, target: t, confirm: confirm})
	if err != nil && !p.channel.amqp.IsClosed() && !p.conn.amqp.IsClosed() {
		p.conn.raw.GiveUp(err) // the library closes it as well, but says so in comments only
	}
	return nil
}

// checkTarget looks up the exchange that an event chose.
func (p *publication) checkTarget(ctx context.Context, t target) error {
	if !p.sink.cfg.ExchangeInTopic {
		return nil
	}
	if err, ok := p.missing[t.exchange]; ok {
		return err
	}
	err := p.conn.checkExchange(ctx, t.exchange)
	if missing, ok := errors.AsType[*missingExchange](err); ok {
		err = relay.Unavailable(missing)
		if p.missing == nil {
			p.missing = map[string]error{}
		}
		p.missing[t.exchange] = err
	}
	return err
}

// returned records that the broker could not route a message. The confirm of that message
// follows: RabbitMQ confirms what it has dealt with.
func (p *publication) returned(r amqp.Return) {
	for n := range p.sent {
		s := &p.sent[n]
		// The event's id and where it went; two rows with one id that went to the same place fare alike.
		if s.refused == nil && p.batch[s.i].Event.ID.String() == r.MessageId && s.target == (target{r.Exchange, r.RoutingKey}) {
			s.refused = relay.Unavailable(fmt.Errorf("%s: no queue takes it (%d %s): bind one, or change the topic", s.target, r.ReplyCode, r.ReplyText))
		}
	}
}

// takeReturns records the returns that have arrived. A message's return comes before its confirm,
// and the library passes both on in that order: it is here by the time that the confirm is.
func (p *publication) takeReturns() {
	for {
		select {
		case r, ok := <-p.channel.returns:
			if !ok {
				return
			}
			p.returned(r)
		default:
			return
		}
	}
}

// confirmed settles the first message in flight: the library passes confirms on in order.
func (p *publication) confirmed() {
	p.takeReturns()
	s := p.sent[0]
	p.sent = p.sent[1:]
	p.suspects = max(p.suspects-1, 0)
	p.flight.Settle(s.i, s.outcome())
}

// outcome is that of a message that the broker has confirmed. The confirm itself does not say
// whether it is positive: when one acknowledgement covers several messages the library passes it
// on for an earlier one, too, that had a negative one already. The deferred confirmation is right.
func (s sent) outcome() error {
	switch {
	case s.refused != nil:
		return s.refused
	case s.confirm != nil && s.confirm.Acked():
		return nil
	}
	return relay.Retry(fmt.Errorf("%s: the broker refuses it (nack); a queue may be full", s.target))
}

// settleKnown settles what the broker has confirmed of the messages in flight, in whatever order,
// when no more is to come.
func (p *publication) settleKnown() {
	if p.channel == nil {
		return
	}
	p.takeReturns()
	for _, s := range p.sent {
		if s.confirm != nil && s.confirm.Acked() {
			p.flight.Settle(s.i, s.outcome())
		}
	}
}

// dropChannel gives the channel back, if nothing is in flight on it.
func (p *publication) dropChannel() {
	if p.channel == nil {
		return
	}
	if len(p.sent) == 0 {
		p.conn.release(p.channel)
	} else {
		p.conn.discard(p.channel)
	}
	p.channel = nil
}

// channelClosed finds out why the channel has closed. It returns nil if the publication can go on
// with another one.
func (p *publication) channelClosed() error {
	p.settleKnown()
	reason, ok := <-p.channel.closed
	p.channel = nil
	inFlight := p.sent[:0]
	for _, s := range p.sent {
		if p.flight.Flying(s.i) {
			inFlight = append(inFlight, s)
		}
	}
	p.sent = nil
	if !ok {
		return p.conn.lostCause(amqp.ErrClosed)
	}
	if p.conn.amqp.IsClosed() || !reason.Recover {
		return p.conn.lostCause(reason)
	}
	p.conn.forgetExchanges()
	if size, ok := sizeLimit(reason); ok && p.anyLarger(inFlight, size) {
		// From now on encode finds them, this one first.
		p.conn.maxBytes.Store(int64(size))
		p.flight.Requeue()
		return nil
	}
	if len(inFlight) == 1 {
		s := inFlight[0]
		p.suspects = max(p.suspects-1, 0)
		err := p.sink.closeOutcome(s.target, reason)
		if relay.OutcomeOf(err) == "unknown" {
			return err
		}
		p.flight.Settle(s.i, err)
		return nil
	}
	p.suspects = len(inFlight)
	p.flight.Requeue()
	return nil
}

func (p *publication) anyLarger(messages []sent, size int) bool {
	for _, s := range messages {
		if len(p.batch[s.i].Event.Payload) > size {
			return true
		}
	}
	return false
}
