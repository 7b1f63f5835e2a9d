package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

// watched is a lane of a relay that has only its health.
func watched(sink Sink, patience time.Duration) *lane {
	sub := Subscription{Name: "all", Sink: sink, Backoff: time.Second, MaxBackoff: time.Minute, MaxAttempts: 10}
	r := &Relay{health: newWatch([]Subscription{sub}, patience)}
	log := slog.New(slog.DiscardHandler)
	g := &group{relay: r, sub: sub, log: log, sink: newSinkState(), memory: map[int]*memory{}}
	return &lane{session: &session{group: g}, log: log, memory: g.of(0)}
}

// A sink that never answers is down, though it has said nothing.
func TestSinkHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan error)
		l := watched(SinkFunc(func(context.Context, []Message) error { return <-answer }), time.Minute)
		l.state(Delivering, nil)
		l.tenure = newTenure(t.Context(), store.Lane{}, time.Now(), time.Hour)
		defer l.tenure.close()
		pass(time.Minute) // without a call there is nothing to be late
		for range 2 {
			began := time.Now()
			done := make(chan error)
			go func() {
				_, err := l.attempt([]*entry{{msg: Message{Topic: "t"}}})
				done <- err
			}()
			pass(time.Minute)
			synctest.Wait()
			if h := l.relay.health.health(); !h.Ready || h.Subscriptions[0].State != Delivering {
				t.Errorf("after all of its patience: %+v", h)
			}
			pass(time.Nanosecond)
			h := l.relay.health.health()
			if s := h.Subscriptions[0]; h.Ready || s.State != SinkDown || !s.Since.Equal(began) || s.Error == "" {
				t.Errorf("after more than its patience: %+v; want it to be down since %v", h, began)
			}
			answer <- nil
			if err := <-done; err != nil {
				t.Error(err)
			}
			if h := l.relay.health.health(); !h.Ready || h.Subscriptions[0].State != Delivering || h.Subscriptions[0].Error != "" {
				t.Errorf("after its answer: %+v", h)
			}
			pass(2 * time.Minute)
			if h := l.relay.health.health(); !h.Ready {
				t.Errorf("long after its answer: %+v", h)
			}
		}
	})
}

// However many topics are gone, health stays a page: it is written with each heartbeat.
func TestManyTopicsDown(t *testing.T) {
	l := watched(nil, time.Minute)
	topic := func(i int) string { return fmt.Sprintf("orders.tenant-%04d.created", i) }
	health := func() SubscriptionHealth { return l.relay.health.health().Subscriptions[0] }
	const all = 5000
	gone := errors.New("no stream takes this subject")
	var early SubscriptionHealth
	for range 2 {
		for i := range all {
			l.topicDown(topic(i), gone)
			if i == 0 && early.Topics == nil {
				early = health()
			}
		}
	}
	h := health()
	if len(h.Topics) != 20 || h.TopicsDown != all {
		t.Errorf("%d topics are named and %d counted, want 20 and %d", len(h.Topics), h.TopicsDown, all)
	}
	if h.Topics[topic(0)] != gone.Error() || len(early.Topics) != 1 || early.TopicsDown != 1 {
		t.Errorf("the first one: %q; in an earlier answer: %q", h.Topics[topic(0)], early.Topics)
	}
	if n := len(l.relay.health.json()); n > 4096 {
		t.Errorf("health has %d bytes", n)
	}
	var up []Message
	for i := range all - 3 {
		up = append(up, Message{Topic: topic(i)})
	}
	l.topicsUp(up)
	if h := health(); len(h.Topics) != 0 || h.TopicsDown != 3 {
		t.Errorf("%d topics are named and %d counted when all but three are back, want 0 and 3", len(h.Topics), h.TopicsDown)
	}
	l.topicDown(topic(all-1), gone)
	if h := health(); h.Topics[topic(all-1)] == "" || h.TopicsDown != 3 {
		t.Errorf("one of them refuses again: %q, %d counted", h.Topics, h.TopicsDown)
	}
}
