package relay

import (
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

func newEntry(e *window.Event, topic string, attempts int) entry {
	return entry{
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
func (l *lane) attempt(entries []*entry) (v verdict, err error) {
	batch, msgs := make([]*entry, 0, len(entries)), make([]Message, 0, len(entries))
	for _, e := range entries {
		if e.fate == pending {
			batch = append(batch, e)
			msgs = append(msgs, e.msg)
		}
	}
	if len(batch) == 0 {
		return v, nil
	}
	if err := l.tenure.check(); err != nil {
		return v, err
	}
	began := time.Now()
	l.sink.calling(l, began)
	errs := results(l.sub.Sink.Publish(l.tenure.ctx, msgs), len(msgs))
	took := time.Since(began)
	l.sink.calling(l, time.Time{})

	stopped := map[store.Key]bool{} // keys whose later events must wait
	died := map[store.Key]bool{}
	ok := make([]Message, 0, len(batch))
	for i, e := range batch {
		switch o := outcomeOf(errs[i]); {
		case o.kind == published:
			if stopped[e.key] {
				l.log.Error("the sink took an event after refusing an earlier one of its key: it breaks the contract of Sink",
					"event", e.msg.Event.ID, "topic", e.msg.Topic)
			}
			e.fate = confirmed
			ok = append(ok, e.msg)
			l.remember(e)
		case stopped[e.key] && (o.kind != permanent || l.sub.OnDead == Block):
			e.fate = waiting // one that dies must not block those before it
		case o.kind == unknown:
			if died[e.key] {
				v.again, e.behindDead = true, true
			} else if v.cause == nil {
				v.cause = errs[i]
			}
		default:
			l.refuse(e, o, errs[i])
			if e.fate == dead {
				died[e.key] = true
			}
			if e.fate == refused || l.sub.OnDead == Block {
				stopped[e.key] = true
			}
		}
	}
	v.confirmed = len(ok)
	if len(ok) > 0 {
		l.delivered.Add(int64(len(ok)))
		l.confirmed(ok, took, v.cause == nil)
	}
	return v, nil
}

// refuse notes what the sink said of one event.
func (l *lane) refuse(e *entry, o outcome, err error) {
	sub := &l.sub
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
		e.delay = l.topicDown(e.msg.Topic, err)
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
		l.sink.fine(l)
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
	l.mu.Lock()
	defer l.mu.Unlock()
	m, k := l.memory, e.eventKey()
	if e.row == 0 {
		m.fresh = append(m.fresh, k)
		return
	}
	m.retried[k] = true
	if m.carried != nil {
		// The fault may have struck when it was parked: then the row is there, and the stored position has not moved past it.
		m.carried[k] = true
	}
}

// already says whether the sink has confirmed the event before a fault.
func (l *lane) already(e *entry) bool {
	k := e.eventKey()
	l.mu.Lock()
	known := l.memory.carried[k] || l.memory.retried[k]
	delete(l.memory.carried, k)
	l.mu.Unlock()
	if !known {
		return false
	}
	l.remember(e)
	l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.Duplicates++ })
	return true
}
