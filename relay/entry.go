package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// entry is an event on its way to the sink, and what has become of it.
type entry struct {
	msg      Message
	key      store.Key
	row      int64 // of a parked event
	attempts int
	fate     fate
	err      error // why it was refused
	delay    time.Duration

	behindDead bool // the sink held it back behind one that died
}

type fate int

const (
	pending   fate = iota // to be sent, or not known whether it arrived
	confirmed             // the sink has it
	refused               // parked: it will be sent again
	waiting               // parked behind another of its key
	dead                  // given up
)

func newEntry(e *window.Event, topic string, attempts int) *entry {
	return &entry{
		msg:      Message{Event: e.Event, Topic: topic, Seq: e.Seq, Attempt: attempts + 1, CreatedAt: e.CreatedAt},
		key:      store.KeyOf(&e.Event),
		attempts: attempts,
	}
}

func (e *entry) eventKey() eventKey { return eventKey{e.msg.Event.ID, e.msg.Seq} }

// die gives the event up.
func (e *entry) die(err error) { e.fate, e.err = dead, err }

// verdict sums up one call of the sink.
type verdict struct {
	confirmed int
	cause     error // the sink, not an event, is at fault: some outcomes are not known
	again     bool  // events were held back by the sink for another that has died: they can go now
}

// attempt sends the pending entries in one call and notes what became of each. An entry stays pending if its outcome is
// not known, or if the sink held it back behind one that died.
func (d *delivery) attempt(entries []*entry) (v verdict, err error) {
	var batch []*entry
	var msgs []Message
	for _, e := range entries {
		if e.fate == pending {
			batch = append(batch, e)
			msgs = append(msgs, e.msg)
		}
	}
	if len(batch) == 0 {
		return v, nil
	}
	if err := d.tenure.check(); err != nil {
		return v, err
	}
	began := time.Now()
	d.lane.calling(began)
	errs := results(d.lane.sub.Sink.Publish(d.tenure.ctx, msgs), len(msgs))
	took := time.Since(began)
	d.lane.calling(time.Time{})

	stopped := map[store.Key]bool{} // keys whose later events must wait
	died := map[store.Key]bool{}
	var ok []Message
	for i, e := range batch {
		switch o := outcomeOf(errs[i]); {
		case o.kind == published:
			if stopped[e.key] {
				d.lane.log.Error("the sink took an event after refusing an earlier one of its key: it breaks the contract of Sink",
					"event", e.msg.Event.ID, "topic", e.msg.Topic)
			}
			e.fate = confirmed
			ok = append(ok, e.msg)
			d.lane.remember(e)
		case stopped[e.key] && o.kind != permanent:
			e.fate = waiting
		case o.kind == unknown:
			if died[e.key] {
				v.again, e.behindDead = true, true
			} else if v.cause == nil {
				v.cause = errs[i]
			}
		default:
			d.refuse(e, o, errs[i])
			if e.fate == dead {
				died[e.key] = true
			}
			if e.fate == refused || d.lane.sub.OnDead == Block {
				stopped[e.key] = true
			}
		}
	}
	v.confirmed = len(ok)
	if len(ok) > 0 {
		d.delivered += len(ok)
		d.lane.confirmed(ok, took, v.cause == nil)
	}
	return v, nil
}

// sinkPatience is the least time after which health calls a sink down whose call has not returned.
const sinkPatience = 30 * time.Second

// calling notes when a call of the sink began, or that none is under way.
func (l *lane) calling(since time.Time) {
	l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.calling = since })
}

// refuse notes what the sink said of one event.
func (d *delivery) refuse(e *entry, o outcome, err error) {
	sub := &d.lane.sub
	e.err = err
	switch o.kind {
	case permanent:
		e.fate = dead
	case retry:
		e.attempts++
		e.fate = refused
		e.delay = max(o.after, backoff(sub.Backoff, sub.MaxBackoff, e.attempts))
		if e.attempts >= sub.MaxAttempts {
			e.die(fmt.Errorf("given up after %d attempts: %w", e.attempts, err))
		}
	case unavailable:
		e.fate = refused
		e.delay = d.lane.topicDown(e.msg.Topic, err)
	}
}

// results are the errors of n messages: one for each, or one for all.
func results(err error, n int) []error {
	errs := make([]error, n)
	if err == nil {
		return errs
	}
	if be, ok := err.(*BatchError); ok { //nolint:errorlint // a wrapped BatchError may be about another batch
		if len(be.Errs) == n {
			return be.Errs
		}
		err = fmt.Errorf("the sink answered for %d messages of %d: %v", len(be.Errs), n, err) //nolint:errorlint // the marks inside are not about these messages
	}
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// confirmed tells whoever listens that the sink has the messages. It is up if it took all there was: one that takes a few
// and loses the rest is down.
func (l *lane) confirmed(batch []Message, took time.Duration, up bool) {
	l.count(len(batch))
	if up {
		l.sinkUp()
	}
	l.topicsUp(batch)
	for _, h := range l.relay.cfg.Hooks {
		if h.Published != nil {
			h.Published(l.sub.Name, batch, took)
		}
	}
}

// tellParked tells whoever listens what has been parked and what has died.
func (l *lane) tellParked(entries []*entry) {
	for _, e := range entries {
		switch e.fate {
		case refused:
			l.log.Debug("event parked", "event", e.msg.Event.ID, "topic", e.msg.Topic, "attempts", e.attempts, "error", e.err)
			for _, h := range l.relay.cfg.Hooks {
				if h.Parked != nil {
					h.Parked(l.sub.Name, e.msg, e.err)
				}
			}
		case dead:
			l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.Dead++ })
			l.log.Warn("event dead", "event", e.msg.Event.ID, "topic", e.msg.Topic, "attempts", e.attempts, "error", e.err)
			for _, h := range l.relay.cfg.Hooks {
				if h.Dead != nil {
					h.Dead(l.sub.Name, e.msg, e.err)
				}
			}
		}
	}
}

// remember notes that the sink has confirmed the event, until that is stored.
func (l *lane) remember(e *entry) {
	k := e.eventKey()
	if e.row == 0 {
		l.sent[k] = true
		return
	}
	l.retried[k] = true
	if l.carried != nil {
		// The fault may have struck when it was parked: then the row is there, and the stored position has not moved past it.
		l.carried[k] = true
	}
}

// already says whether the sink has confirmed the event before a fault.
func (l *lane) already(e *entry) bool {
	k := e.eventKey()
	if !l.carried[k] && !l.retried[k] {
		return false
	}
	delete(l.carried, k)
	l.remember(e)
	l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.Duplicates++ })
	return true
}

// settling bounds a write of what became of events. It may outlast the tenure a little: the epoch keeps it from harm (I5),
// and what the sink has confirmed need not be sent again.
func (d *delivery) settling() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(d.tenure.ctx))
	grace := time.AfterFunc(statementTime, cancel)
	stop := context.AfterFunc(d.tenure.ctx, func() { grace.Reset(partingTime) })
	return ctx, func() { stop(); grace.Stop(); cancel() }
}

// statement bounds one use of the database by the tenure.
func (d *delivery) statement() (context.Context, context.CancelFunc) {
	return context.WithTimeout(d.tenure.ctx, statementTime)
}
