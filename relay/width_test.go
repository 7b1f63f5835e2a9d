package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/admin"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// writingKeys writes events of so many keys, "0" and up, until the returned function is called, and never further ahead of the sink
// than so many.
func writingKeys(t testing.TB, pool *pgxpool.Pool, book *ledger, sink *capture, keys, ahead int) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if len(book.rows()) > len(sink.messages())+ahead {
				continue
			}
			rows, err := tryInsert(context.WithoutCancel(ctx), pool, fmt.Sprint(n%keys), 3)
			if err != nil {
				t.Errorf("write: %v", err)
				return
			}
			book.add(rows...)
		}
	})
	var once sync.Once
	end = func() { once.Do(func() { cancel(); wg.Wait() }) }
	t.Cleanup(end)
	return end
}

func operator(t testing.TB, pool *pgxpool.Pool) *admin.Admin {
	t.Helper()
	a, err := admin.Open(t.Context(), pool, admin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// bounded is a context for what an operator waits for.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	t.Cleanup(cancel)
	return ctx
}

// arrivals waits for n more messages.
func arrivals(t testing.TB, sink *capture, n int) {
	t.Helper()
	sink.waitFor(t, len(sink.messages())+n)
}

// The number of lanes changes under load, with two relays and with keys that wait for a retry: nothing is lost, repeated or
// overtaken, and no relay waits for a lease.
func TestChangeLanesUnderLoad(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var refusing atomic.Bool
	refusing.Store(true)
	sink.setAnswer(judge(func(m relay.Message) error {
		if k := m.Event.AggregateID; refusing.Load() && (k == "3" || k == "17" || k == "29") {
			return relay.Retry(errors.New("not now"))
		}
		return nil
	}))
	var logs []*logBook
	for range 2 {
		cfg, log := logged(t, sink)
		cfg.Lease = time.Minute
		cfg.BatchEvents = 20
		s := &cfg.Subscriptions[0]
		s.Lanes, s.MaxAttempts, s.MaxBackoff = 16, 1_000_000, 100*time.Millisecond
		start(t, pool, cfg)
		logs = append(logs, log)
	}
	end := writingKeys(t, pool, book, sink, 40, 1000)
	ops := operator(t, pool)
	shared := func(lanes int) {
		t.Helper()
		testwait.Until(t, fmt.Sprintf("%d lanes to be shared by two relays", lanes), func() bool {
			return one[bool](t, pool, `SELECT count(*) = $1 AND count(*) FILTER (WHERE n = $1 / 2) = $1
				FROM (SELECT owner, count(*) OVER (PARTITION BY owner) AS n FROM commitrelay.lanes WHERE owner IS NOT NULL) AS l`, lanes)
		})
	}
	shared(16)
	arrivals(t, sink, 300)
	for _, lanes := range []int{4, 64, 1, 8} {
		testwait.Until(t, "events to be parked", func() bool { return parkedRows(t, pool) != "none" })
		ctx := bounded(t)
		if err := ops.SetLanes(ctx, "all", lanes); err != nil {
			t.Fatal(err)
		}
		if err := ops.AwaitLanes(ctx, "all", lanes, func(waiting string) { t.Log("waiting: ", waiting) }); err != nil {
			t.Fatal(err)
		}
		if n := one[int](t, pool, `SELECT count(*) FROM commitrelay.parked
			WHERE lane <> hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($1::integer - 1)`, lanes); n > 0 {
			t.Errorf("with %d lanes, %d parked events are not in the lane of their key", lanes, n)
		}
		if lanes > 1 {
			shared(lanes)
		}
		arrivals(t, sink, 300)
	}
	end()
	refusing.Store(false)
	book.wait(t, sink)
	testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, pool) == "none" })
	book.checkOnce(t, sink, pool)
	for i, log := range logs {
		if lost := log.find("lane lost"); len(lost) > 0 {
			t.Errorf("relay %d: %q", i, lost)
		}
		if loud := log.find("level=ERROR"); len(loud) > 0 {
			t.Errorf("relay %d: %q", i, loud)
		}
	}
}

// A change that is taken back while lanes have yet to settle leaves them at work, and a later one is made.
func TestChangeLanesTakenBack(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var refusing atomic.Bool
	sink.setAnswer(func(batch []relay.Message) error {
		if refusing.Load() && slices.ContainsFunc(batch, func(m relay.Message) bool { return m.Event.AggregateID == "held" }) {
			return errors.New("not now") // an outage: the lane cannot settle
		}
		return nil
	})
	cfg, log := logged(t, sink)
	cfg.Lease = time.Minute
	s := &cfg.Subscriptions[0]
	s.Lanes, s.MaxBackoff = 8, 50*time.Millisecond
	start(t, pool, cfg)
	ops, ctx := operator(t, pool), bounded(t)
	const together = "all lanes have been read up to one place"
	book.writeAll(t, pool, manyKeys(), 1)
	book.wait(t, sink)
	for range 2 {
		refusing.Store(true)
		before := len(log.find(together))
		book.writeAll(t, pool, append(manyKeys(), "held"), 1)
		if err := ops.SetLanes(ctx, "all", 4); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "the lanes to be read up to one place", func() bool { return len(log.find(together)) > before })
		if err := ops.SetLanes(ctx, "all", 8); err != nil {
			t.Fatal(err)
		}
		written := len(book.rows())
		book.writeAll(t, pool, manyKeys(), 1)
		after := idsOf(book.rows()[written:])
		testwait.Until(t, "other lanes to go on", func() bool {
			return slices.ContainsFunc(sink.messages(), func(m relay.Message) bool { return after[m.Event.ID] })
		})
		refusing.Store(false)
		book.wait(t, sink)
	}
	if err := ops.SetLanes(ctx, "all", 4); err != nil {
		t.Fatal(err)
	}
	if err := ops.AwaitLanes(ctx, "all", 4, nil); err != nil {
		t.Fatal(err)
	}
	book.writeAll(t, pool, manyKeys(), 1)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// What was asked for while no relay runs the next one does; and a request can be taken back.
func TestChangeLanesWithoutRelays(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	cfg, _ := logged(t, sink)
	cfg.Lease = time.Minute
	cfg.Subscriptions[0].Lanes = 16
	for i := range 50 {
		book.write(t, pool, fmt.Sprint(i), 2)
	}
	_, stop := start(t, pool, cfg)
	book.wait(t, sink)
	stop()
	// One lane stands elsewhere: in the middle of a window.
	mustExec(t, pool, `UPDATE commitrelay.lanes SET from_window = 0, to_window = from_window WHERE lane = 5 AND to_window IS NULL`)
	mustExec(t, pool, `UPDATE commitrelay.lanes SET p = 1000000 WHERE lane = 5`)
	for i := range 50 {
		book.write(t, pool, fmt.Sprint(i), 2)
	}
	ops := operator(t, pool)
	ctx := bounded(t)
	if err := ops.SetLanes(ctx, "all", 2); err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 10)
	waitFor, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- ops.AwaitLanes(waitFor, "all", 2, func(waiting string) { heard <- waiting })
	}()
	if got := testwait.Recv(t, "what it waits for", heard); got != "no live relay is configured for the subscription: the next one that begins brings its lanes to one place" {
		t.Errorf("it waits for this: %s", got)
	}
	cancel()
	if err := testwait.Recv(t, "the end of the wait", done); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := ops.SetLanes(ctx, "all", 16); err != nil { // taken back
		t.Fatal(err)
	}
	if err := ops.AwaitLanes(ctx, "all", 2, nil); !errors.Is(err, admin.ErrOverruled) {
		t.Errorf("waiting for what was taken back: %v", err)
	}
	if err := ops.SetLanes(ctx, "all", 32); err != nil {
		t.Fatal(err)
	}
	start(t, pool, cfg)
	if err := ops.AwaitLanes(ctx, "all", 32, nil); err != nil {
		t.Fatal(err)
	}
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// Paused means that nobody publishes. Nothing is repeated when it goes on.
func TestPauseUnderLoad(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var relays []*relay.Relay
	for range 2 {
		cfg, _ := logged(t, sink)
		cfg.BatchEvents = 20
		cfg.Lease = time.Minute
		cfg.Subscriptions[0].Lanes = 8
		r, _ := start(t, pool, cfg)
		relays = append(relays, r)
	}
	end := writingKeys(t, pool, book, sink, 40, 1000)
	ops := operator(t, pool)
	for range 3 {
		arrivals(t, sink, 200)
		ctx := bounded(t)
		if changed, err := ops.Pause(ctx, "all"); err != nil || !changed {
			t.Fatal(changed, err)
		}
		if err := ops.AwaitPaused(ctx, "all", nil); err != nil {
			t.Fatal(err)
		}
		calls := sink.callCount()
		testwait.Until(t, "events to wait, and both relays to say that they are paused", func() bool {
			for _, r := range relays {
				if r.Health().Subscriptions[0].State != relay.Paused {
					return false
				}
			}
			// Not "a hundred more": the writer may already be as far ahead as it goes.
			return len(book.rows()) >= len(sink.messages())+100
		})
		if n := sink.callCount(); n != calls {
			t.Errorf("the sink was called %d times while the subscription was paused", n-calls)
		}
		if changed, err := ops.Resume(ctx, "all"); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	end()
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// A subscription that is dropped under a relay: the relay says so, others are not concerned, and one that starts begins anew.
func TestDropUnderRelay(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	gone, other, book := &capture{}, &capture{}, &ledger{}
	cfg, log := logged(t, gone)
	cfg.Subscriptions = append(cfg.Subscriptions, relay.Subscription{Name: "other", Sink: other, Lanes: 4})
	cfg.Subscriptions[0].Lanes = 4
	r, stop := start(t, pool, cfg)
	for i := range 10 {
		book.write(t, pool, fmt.Sprint(i), 2)
	}
	book.wait(t, gone)
	ops := operator(t, pool)
	ctx := bounded(t)
	if _, err := ops.Drop(ctx, "all", admin.DropOptions{GiveUp: true}); !errors.Is(err, admin.ErrRelaysLive) {
		t.Errorf("under a live relay: %v", err)
	}
	if _, err := ops.Drop(ctx, "all", admin.DropOptions{GiveUp: true, Live: true}); err != nil {
		t.Fatal(err)
	}
	log.waitFor("delivery stopped", "all")
	testwait.Until(t, "the relay to say that it has stopped", func() bool { return r.Health().Subscriptions[0].State == relay.Stopped })
	for i := range 10 {
		book.write(t, pool, fmt.Sprint(i), 2)
	}
	book.wait(t, other)
	if h := r.Health().Subscriptions[1]; h.State != relay.Delivering {
		t.Errorf("the other subscription: %+v", h)
	}
	stop()
	start(t, pool, cfg)
	book.wait(t, gone) // from the first event
	book.checkOnce(t, other, pool)
	if n := len(gone.messages()); n != 60 {
		t.Errorf("%d messages, want the first 20 twice and the others once", n)
	}
}
