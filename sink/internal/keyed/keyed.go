// Package keyed keeps the order per key for brokers that acknowledge each message by itself.
//
// Such a broker may refuse a message and take the next one. So at most one message of a key is
// under way at a time: the first of each key may be sent at once, the next one when the broker
// has confirmed it, and none after it when the broker has not. Keys do not wait for each other,
// and a batch in which no key repeats is sent without any wait.
package keyed

import (
	"errors"
	"fmt"

	"github.com/commitrelay/outbox/relay"
)

// Batch tracks the messages of one call of Sink.Publish. It is used by one goroutine.
//
// A message is waiting for an earlier one of its key, or ready to be sent, or in flight, or
// settled.
type Batch struct {
	next   []int32 // the next message of the same key; 0: none
	state  []state
	ready  []int32 // in the order in which they will be sent
	errs   []error // nil as long as nothing failed
	flying int
	open   int
}

type state uint8

const (
	waiting state = iota
	ready
	inFlight
	settled
)

var errHeldBack = errors.New("not sent: an earlier message of its key was not published")

type key struct{ aggregateType, aggregateID string }

// New starts a batch: the first message of each key is ready.
func New(batch []relay.Message) *Batch {
	b := &Batch{
		next:  make([]int32, len(batch)),
		state: make([]state, len(batch)),
		ready: make([]int32, 0, len(batch)),
		open:  len(batch),
	}
	last := make(map[key]int32, len(batch))
	for i := range batch {
		e := &batch[i].Event
		k := key{e.AggregateType, e.AggregateID}
		if before, ok := last[k]; ok {
			b.next[before] = int32(i)
		} else {
			b.makeReady(i)
		}
		last[k] = int32(i)
	}
	return b
}

func (b *Batch) makeReady(i int) {
	b.state[i] = ready
	b.ready = append(b.ready, int32(i))
}

// Next takes a message that may be sent now: it is in flight from here on. It returns false if
// there is none before another one is settled.
func (b *Batch) Next() (int, bool) {
	if len(b.ready) == 0 {
		return 0, false
	}
	i := int(b.ready[0])
	b.ready = b.ready[1:]
	b.state[i] = inFlight
	b.flying++
	return i, true
}

// Settle records what became of a message in flight: nil is published. The next message of its
// key becomes ready, or is held back with all that follow if err is not nil. Settling a message
// that is not in flight does nothing: brokers repeat themselves.
func (b *Batch) Settle(i int, err error) {
	if b.state[i] != inFlight {
		return
	}
	b.flying--
	b.close(i, err)
	next := int(b.next[i])
	if err == nil {
		if next != 0 {
			b.makeReady(next)
		}
		return
	}
	for ; next != 0; next = int(b.next[next]) {
		b.close(next, errHeldBack)
	}
}

func (b *Batch) close(i int, err error) {
	b.state[i] = settled
	b.open--
	if err == nil {
		return
	}
	if b.errs == nil {
		b.errs = make([]error, len(b.state))
	}
	b.errs[i] = err
}

// Requeue makes all messages in flight ready again, in the order of the batch and before all
// others, for a sink that knows that none of them can be confirmed any more.
func (b *Batch) Requeue() {
	if b.flying == 0 {
		return
	}
	again := make([]int32, 0, b.flying+len(b.ready))
	for i, s := range b.state {
		if s == inFlight {
			b.state[i] = ready
			again = append(again, int32(i))
		}
	}
	b.ready = append(again, b.ready...)
	b.flying = 0
}

// Flying tells whether message i is in flight.
func (b *Batch) Flying(i int) bool { return b.state[i] == inFlight }

// InFlight is the number of messages in flight.
func (b *Batch) InFlight() int { return b.flying }

// Open is the number of messages that are not settled.
func (b *Batch) Open() int { return b.open }

// Err is what Sink.Publish returns: nil if all is published, else a *relay.BatchError. Messages
// that are not settled get cause, unmarked.
func (b *Batch) Err(cause error) error {
	if b.open > 0 {
		unconfirmed := fmt.Errorf("not confirmed: %w", cause)
		unsent := fmt.Errorf("not sent: %w", cause)
		for i, s := range b.state {
			switch s {
			case inFlight:
				b.close(i, unconfirmed)
			case waiting, ready:
				b.close(i, unsent)
			}
		}
		b.flying, b.ready = 0, nil
	}
	if b.errs == nil {
		return nil
	}
	return &relay.BatchError{Errs: b.errs}
}
