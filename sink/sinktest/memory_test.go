package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
)

// memory is a destination in memory, and the sink to it. Its fault, if it has one, is what the
// suite should find.
type memory struct {
	fault string

	mu       sync.Mutex
	messages []Arrival
	open     chan struct{} // closed: acknowledgements flow
	budget   [2]int64      // bytes until the connection breaks, to the destination and to the client; below 0: none
}

func newMemory(fault string) *memory {
	m := &memory{fault: fault, open: make(chan struct{}), budget: [2]int64{-1, -1}}
	close(m.open)
	return m
}

func (d *memory) destination() Destination {
	return Destination{
		Sink: d, Topic: "topic", Arrived: d.arrived, MaxPayload: 100_000, Patience: 5 * time.Second,
		Refusals: []Refusal{{Name: "no", Spoil: func(m *relay.Message) { m.Topic = "no" }, Outcome: "retry", Reason: []string{"refused"}}},
		CutAfter: func(toClient bool, n int64) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.budget = [2]int64{-1, -1}
			if toClient {
				d.budget[1] = n
			} else {
				d.budget[0] = n
			}
		},
		Withhold: func() func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.open = make(chan struct{})
			return sync.OnceFunc(func() { close(d.open) })
		},
	}
}

func (d *memory) arrived() ([]Arrival, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.messages), nil
}

var (
	errCut    = errors.New("connection lost")
	errNoAck  = errors.New("no acknowledgement")
	errBehind = errors.New("not sent: an earlier message of its key was not published")
)

// store is the destination's side: it takes the message, and may lose the connection before or
// after that.
func (d *memory) store(m *relay.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	spend := func(way int, bytes int64) bool {
		if d.budget[way] < 0 {
			return true
		}
		d.budget[way] -= bytes
		return d.budget[way] >= 0
	}
	if !spend(0, int64(100+len(m.Event.Payload))) {
		return errCut
	}
	a := Arrival{Body: bytes.Clone(m.Event.Payload), Headers: map[string]string{}}
	if d.fault == "keeps the batch" {
		a.Body = m.Event.Payload
	}
	if d.fault != "drops headers" {
		maps.Copy(a.Headers, m.Event.Headers)
		delete(a.Headers, "Outbox-Type")
	}
	for _, h := range wire.Own(m) {
		a.Headers[h.Name] = h.Value
	}
	d.messages = append(d.messages, a)
	if d.fault == "sends twice" {
		d.messages = append(d.messages, a)
	}
	if !spend(1, 30) {
		return errCut
	}
	return nil
}

// Publish sends one message after the other.
func (d *memory) Publish(ctx context.Context, batch []relay.Message) error {
	errs := make([]error, len(batch))
	behind := map[string]bool{}
	order := make([]int, len(batch))
	for i := range order {
		order[i] = i
	}
	if d.fault == "reverses the batch" {
		slices.Reverse(order)
	}
	var lost error
	for _, i := range order {
		key := batch[i].Event.AggregateType + "/" + batch[i].Event.AggregateID
		switch {
		case ctx.Err() != nil && d.fault != "does not see the context":
			errs[i] = context.Cause(ctx)
		case lost != nil && d.fault != "goes on after a cut":
			errs[i] = lost
		case behind[key] && d.fault != "goes on after a refusal" && d.fault != "goes on after a cut":
			errs[i] = errBehind
		default:
			errs[i] = d.publishOne(ctx, &batch[i])
			behind[key] = errs[i] != nil
			if errs[i] != nil && relay.OutcomeOf(errs[i]) == "unknown" {
				lost = errs[i]
			}
		}
	}
	if d.fault == "one answer for all" {
		return errors.Join(errs...)
	}
	if slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
		return &relay.BatchError{Errs: errs}
	}
	return nil
}

func (d *memory) publishOne(ctx context.Context, m *relay.Message) error {
	if m.Topic == "no" {
		return relay.Retry(fmt.Errorf("%s: refused", m.Topic))
	}
	if err := d.store(m); err != nil {
		if d.fault == "does not see a cut" {
			return nil
		}
		return err
	}
	if d.fault == "does not wait" {
		return nil
	}
	if d.fault == "does not see the context" {
		ctx = context.WithoutCancel(ctx)
	}
	d.mu.Lock()
	open := d.open
	d.mu.Unlock()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return errNoAck
	}
}
