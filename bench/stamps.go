package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// stamps are the moments of each event.
type stamps struct {
	start  time.Time
	events []*outbox.Event
	number map[outbox.ID]int
	probe  *outbox.Event
	probed chan struct{}
	all    chan struct{}

	mu      sync.Mutex
	commits []time.Duration // since start
	acks    []time.Duration
	acked   int
}

func (l load) newStamps() *stamps {
	n := l.warming() + max(1, int(float64(l.rate)*l.duration.Seconds()))
	st := &stamps{
		start: time.Now(), probe: l.event(0), number: map[outbox.ID]int{},
		probed: make(chan struct{}), all: make(chan struct{}),
		commits: make([]time.Duration, n), acks: make([]time.Duration, n),
	}
	for i := range n {
		e := l.event(i)
		st.events = append(st.events, e)
		st.number[e.ID] = i
	}
	return st
}

// wrap stamps what the sink has acknowledged.
func (st *stamps) wrap(sink relay.Sink) relay.Sink {
	return relay.SinkFunc(func(ctx context.Context, batch []relay.Message) error {
		if err := sink.Publish(ctx, batch); err != nil {
			return err
		}
		st.acknowledged(batch)
		return nil
	})
}

func (st *stamps) acknowledged(batch []relay.Message) {
	now := time.Since(st.start)
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range batch {
		n, ok := st.number[batch[i].Event.ID]
		if !ok {
			close(st.probed)
			continue
		}
		st.acks[n] = now
		if st.acked++; st.acked == len(st.events) {
			close(st.all)
		}
	}
}

func (st *stamps) committed(first, last int) {
	now := time.Since(st.start)
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := first; i < last; i++ {
		st.commits[i] = now
	}
}

// latencies of all events but the first ones are sorted. An event may be acknowledged before its writer hears of the commit: that took no time.
func (st *stamps) latencies(but int) (ms []float64) {
	for i := but; i < len(st.events); i++ {
		ms = append(ms, max(0, (st.acks[i]-st.commits[i]).Seconds()*1e3))
	}
	slices.Sort(ms)
	return ms
}
