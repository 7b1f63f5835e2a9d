package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// writing writes events of five keys until the returned function is called, and never far ahead of the sink.
func writing(t testing.TB, pool *pgxpool.Pool, book *ledger, sink *capture) (end func()) {
	return writingKeys(t, pool, book, sink, 5, 200)
}

// pausing takes everything after a pause, unless ctx ends first.
func pausing(sink relay.Sink, pause func() time.Duration) relay.Sink {
	return relay.SinkFunc(func(ctx context.Context, batch []relay.Message) error {
		timer := time.NewTimer(pause())
		defer timer.Stop()
		select {
		case <-timer.C:
			return sink.Publish(ctx, batch)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// Relays come and go in turn under load. Nobody waits for a lease, and no event arrives twice: these are no faults.
func TestRelaysTakeTurns(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	slow := pausing(sink, func() time.Duration { return time.Duration(rand.IntN(10)) * time.Millisecond })
	end := writing(t, pool, book, sink)
	var stop func()
	for round := range 12 {
		cfg, log := logged(t, slow)
		cfg.Lease = 10 * time.Minute
		cfg.BatchEvents = 10
		_, next := start(t, pool, cfg)
		if stop != nil {
			n, enough := len(sink.messages()), rand.IntN(30)
			testwait.Until(t, "some events to arrive", func() bool { return len(sink.messages()) >= n+enough })
			stop()
		}
		stop = next
		log.waitFor("lane taken")
		if loud := log.loud(); len(loud) > 0 {
			t.Errorf("round %d: %q", round, loud)
		}
	}
	end()
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// The time for shutdown is bounded even if the sink never returns of itself, and what it reports then is kept.
func TestShutdownInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	called := make(chan struct{}, 100)
	hanging := relay.SinkFunc(func(ctx context.Context, batch []relay.Message) error {
		called <- struct{}{}
		<-ctx.Done()
		errs := make([]error, len(batch))
		var taken []relay.Message
		for i, m := range batch {
			switch {
			case m.Event.AggregateID == "refused":
				errs[i] = relay.Retry(errors.New("not now"))
			case i%2 == 0:
				taken = append(taken, m)
			default:
				errs[i] = ctx.Err()
			}
		}
		_ = sink.Publish(ctx, taken)
		return &relay.BatchError{Errs: errs}
	})
	for i := range 5 {
		book.write(t, pool, fmt.Sprint(i), 1)
	}
	book.write(t, pool, "refused", 1)
	for i := range 5 {
		book.write(t, pool, fmt.Sprint(i+5), 1)
	}
	cfg, _ := logged(t, hanging)
	cfg.ShutdownTimeout = 50 * time.Millisecond
	_, stop := start(t, pool, cfg)
	testwait.Recv(t, "a call of the sink", called)
	stop()
	if n := len(sink.messages()); n == 0 {
		t.Fatal("the sink took nothing")
	}
	if got := parkedRows(t, pool); got != "parked 1" {
		t.Errorf("parked: %s, want the refused one", got)
	}
	cfg, _ = logged(t, sink)
	start(t, pool, cfg)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// A call that takes longer than the lease keeps it: renewals go on meanwhile.
func TestCallLongerThanTheLease(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var calls atomic.Int64
	slow := relay.SinkFunc(func(ctx context.Context, batch []relay.Message) error {
		if calls.Add(1) == 1 {
			before := one[time.Time](t, pool, `SELECT lease_until FROM commitrelay.lanes`)
			testwait.Until(t, "two leases to pass", func() bool {
				return one[time.Time](t, pool, `SELECT lease_until FROM commitrelay.lanes`).Sub(before) > 2*time.Second || ctx.Err() != nil
			})
		}
		return sink.Publish(ctx, batch)
	})
	book.write(t, pool, "a", 50)
	var logs []*logBook
	for range 2 {
		cfg, log := logged(t, slow)
		cfg.Lease = time.Second
		cfg.BatchEvents = 10
		start(t, pool, cfg)
		logs = append(logs, log)
	}
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	for _, log := range logs {
		if lost := log.find("lane lost"); len(lost) > 0 {
			t.Errorf("a lane was lost: %q", lost)
		}
	}
}

// Every event has been refused once when five relays start in the same moment.
func TestManyRelaysStartOnFailedEvents(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	sink.setAnswer(judge(func(relay.Message) error { return relay.Retry(errors.New("not now")) }))
	for i := range 200 {
		book.write(t, pool, fmt.Sprint(i), 1)
	}
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].Backoff = time.Hour
	cfg.Subscriptions[0].MaxBackoff = time.Hour
	_, stop := start(t, pool, cfg)
	testwait.Until(t, "all to be parked", func() bool { return parkedRows(t, pool) == "parked 200" })
	stop()
	sink.setAnswer(nil)
	mustExec(t, pool, `UPDATE commitrelay.parked SET next_attempt = now()`)
	for range 5 {
		cfg, _ := logged(t, sink)
		start(t, pool, cfg)
	}
	book.wait(t, sink)
	testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, pool) == "none" })
	book.checkOnce(t, sink, pool)
}

// The owner is cut off from the database and goes on living. It stops before another takes the lane, and takes it back
// from no one when it can speak again.
func TestOwnerIsCutOff(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(nil))
	pool := migrated(t, c)
	sink, book := &capture{}, &ledger{}
	var mu sync.Mutex
	var callers []string // of the sink, in order
	named := func(name string) relay.Sink {
		return relay.SinkFunc(func(ctx context.Context, batch []relay.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if n := len(callers); n == 0 || callers[n-1] != name {
				callers = append(callers, name)
			}
			return sink.Publish(ctx, batch)
		})
	}
	through, proxy := proxied(t, c)
	cfg, log := logged(t, named("first"))
	cfg.BatchEvents = 5
	first, _ := start(t, through, cfg)
	log.waitFor("lane taken")
	cfg.Subscriptions[0].Sink = named("second")
	cfg.Logger = nil
	second, _ := start(t, pool, cfg)
	testwait.Until(t, "the second to stand by", func() bool { return second.Health().Subscriptions[0].State == relay.Standby })
	end := writing(t, pool, book, sink)
	testwait.Until(t, "events to arrive", func() bool { return len(sink.messages()) > 50 })
	proxy.Pause(tcpproxy.Both)
	testwait.Until(t, "the second to deliver", func() bool { return second.Health().Subscriptions[0].Delivered > 50 })
	end()
	book.wait(t, sink)
	proxy.Resume()
	testwait.Until(t, "the first to stand by", func() bool { return first.Health().Subscriptions[0].State == relay.Standby })
	log.waitFor("PostgreSQL does not answer")
	book.write(t, pool, "a", 3)
	book.wait(t, sink)
	book.check(t, sink, pool) // what was confirmed and could not be stored may arrive twice
	mu.Lock()
	defer mu.Unlock()
	if got := fmt.Sprint(callers); got != "[first second]" {
		t.Errorf("the sink was called by %s, want by the first and then by the second only", got)
	}
}

// The transaction that commits last has been open since before the subscription existed; nothing follows it.
func TestLateCommitIsTheLast(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(map[string]string{"max_prepared_transactions": "4"}))
	pool := migrated(t, c)
	sink, book := &capture{}, &ledger{}
	early := begin(t, pool) // has an id and a number
	earlyRows := insertMany(t, early, "early", 1)
	bare := begin(t, pool) // has an id only
	if _, err := bare.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	prepared := begin(t, pool)
	preparedRows := insertMany(t, prepared, "prepared", 1)
	if _, err := prepared.Exec(t.Context(), "PREPARE TRANSACTION 'late'"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		cfg, _ := logged(t, sink)
		start(t, pgtest.Connect(t, c.URL()), cfg)
	}
	idle := func() {
		t.Helper()
		settled(t, pool)
		since := one[time.Time](t, pool, `SELECT clock_timestamp()`)
		testwait.Until(t, "the relay to have looked again", func() bool {
			return one[bool](t, pool, `SELECT count(*) > 0 FROM pg_stat_activity
				WHERE query LIKE '%pg_sequence_last_value%' AND pid <> pg_backend_pid() AND query_start > $1`, since)
		})
	}
	for range 3 {
		book.write(t, pool, "a", 5)
		book.wait(t, sink)
		burn(t, pool, 50)
	}
	idle()
	bareRows := insertMany(t, bare, "bare", 1)
	idle()
	for _, late := range []struct {
		rows   []row
		commit func() error
	}{
		{earlyRows, func() error { return early.Commit(t.Context()) }},
		{preparedRows, func() error { _, err := pool.Exec(t.Context(), "COMMIT PREPARED 'late'"); return err }},
		{bareRows, func() error { return bare.Commit(t.Context()) }},
	} {
		if err := late.commit(); err != nil {
			t.Fatal(err)
		}
		book.add(late.rows...)
		book.wait(t, sink)
		idle()
	}
	book.checkOnce(t, sink, pool)
}
