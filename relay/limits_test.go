package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// judge is a sink's answer that keeps the contract: once an event is not taken, no later one of its key is.
func judge(verdict func(m relay.Message) error) func([]relay.Message) error {
	return func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		held := map[string]bool{}
		for i, m := range batch {
			if held[m.Event.AggregateID] {
				errs[i] = errors.New("held back")
				continue
			}
			errs[i] = verdict(m)
			held[m.Event.AggregateID] = errs[i] != nil
		}
		return &relay.BatchError{Errs: errs}
	}
}

// parkedRows says how many events are in each state, beside the lanes.
func parkedRows(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return one[string](t, pool, `SELECT coalesce(string_agg(state || ' ' || n, ', ' ORDER BY state), 'none')
		FROM (SELECT state, count(*) AS n FROM commitrelay.parked GROUP BY state) AS s`)
}

// An outage is nobody's fault: no attempt is spent, nothing is parked, and it is said once.
func TestSinkOutage(t *testing.T) {
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var calls atomic.Int64
	sink.setAnswer(func([]relay.Message) error { calls.Add(1); return errors.New("connection refused") })
	cfg, log := logged(t, sink)
	cfg.Subscriptions[0].MaxAttempts = 2
	began := time.Now()
	r, stop := start(t, pool, cfg)
	for i := range 100 {
		book.write(t, pool, fmt.Sprint(i%7), 1)
	}
	testwait.Until(t, "several attempts", func() bool { return calls.Load() > 4 })
	h := r.Health()
	if s := h.Subscriptions[0]; h.Ready || s.State != relay.SinkDown || s.Error != "connection refused" || s.Since.Before(began) {
		t.Errorf("health is %+v", h)
	}
	if got := parkedRows(t, pool); got != "none" {
		t.Errorf("parked: %s, want none", got)
	}

	// Now it takes one event of two, and loses the rest.
	sink.setAnswer(func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		for i := range batch[len(batch)/2:] {
			errs[len(batch)/2+i] = errors.New("broken pipe")
		}
		return &relay.BatchError{Errs: errs}
	})
	testwait.Until(t, "some events to arrive", func() bool { return len(sink.messages()) > 50 })
	stop()
	sink.setAnswer(nil)
	cfg.Logger = nil
	r, _ = start(t, pool, cfg)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	for _, m := range sink.messages() {
		if m.Attempt != 1 {
			t.Fatalf("an attempt was counted: %+v", m)
		}
	}
	testwait.Until(t, "health to be good", func() bool { return r.Health().Ready })
	if down := log.find("sink down"); len(down) == 0 || len(down) != len(log.find("sink up again"))+1 {
		t.Errorf("the log says %d times that the sink is down and %d times that it is up", len(down), len(log.find("sink up again")))
	}
}

// The log tells of an outage when it begins and when it ends, however many attempts lie between.
func TestSinkOutageIsLoggedOnce(t *testing.T) {
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var calls atomic.Int64
	sink.setAnswer(func([]relay.Message) error { return fmt.Errorf("timeout %d", calls.Add(1)) })
	cfg, log := logged(t, sink)
	start(t, pool, cfg)
	book.write(t, pool, "a", 10)
	testwait.Until(t, "several attempts", func() bool { return calls.Load() > 4 })
	sink.setAnswer(func(batch []relay.Message) error { // it takes one event at a time, and loses the others
		errs := make([]error, len(batch))
		for i := range errs[1:] {
			errs[i+1] = errors.New("broken pipe")
		}
		return &relay.BatchError{Errs: errs}
	})
	testwait.Until(t, "some events to arrive", func() bool { return len(sink.messages()) > 3 })
	sink.setAnswer(nil)
	book.wait(t, sink)
	book.checkOnce(t, sink)
	log.waitFor("sink up again")
	if down, up := len(log.find("sink down")), len(log.find("sink up again")); down != 1 || up != 1 {
		t.Errorf("%d lines when the sink went down and %d when it came back, want 1 and 1", down, up)
	}
}

// Events that can never be sent stand before good ones, more of them than fit into a batch.
func TestBadEventsAtTheHead(t *testing.T) {
	for _, bad := range []int{10, 1000} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			t.Parallel()
			pool := newOutbox(t)
			sink, book := &capture{}, &ledger{}
			sink.setAnswer(judge(func(m relay.Message) error {
				if m.Event.AggregateID[0] == 'b' {
					return relay.Retry(errors.New("unknown topic"))
				}
				return nil
			}))
			mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
				SELECT 'user', 'bad-' || g, 'UserCreated', '{}' FROM generate_series(1, $1::integer) AS g`, bad)
			for i := range 100 {
				book.write(t, pool, fmt.Sprintf("good-%d", i), 1)
			}
			cfg, _ := logged(t, sink)
			cfg.BatchEvents = 10
			cfg.Subscriptions[0].MaxAttempts = 3
			cfg.Subscriptions[0].Backoff = 10 * time.Second // the good ones do not wait for it
			_, stop := start(t, pool, cfg)
			book.wait(t, sink)
			if got := parkedRows(t, pool); got != fmt.Sprintf("parked %d", bad) {
				t.Errorf("%s when the good ones have arrived", got)
			}
			mustExec(t, pool, `UPDATE commitrelay.parked SET next_attempt = now()`)
			testwait.Until(t, "the second attempt of all", func() bool {
				return count(t, pool, `SELECT count(*) FROM commitrelay.parked WHERE attempts = 2`) == bad
			})
			mustExec(t, pool, `UPDATE commitrelay.parked SET next_attempt = now()`)
			testwait.Until(t, "the bad ones to be dead", func() bool {
				return parkedRows(t, pool) == fmt.Sprintf("dead %d", bad)
			})
			stop()
			if n := count(t, pool, `SELECT count(*) FROM commitrelay.parked WHERE attempts <> 3 OR last_error NOT LIKE '%unknown topic%'`); n != 0 {
				t.Errorf("%d have another number of attempts, or another reason", n)
			}
			book.checkOnce(t, sink, pool)
		})
	}
}

// One event in the middle of a batch has no topic.
func TestOneEventWithoutTopic(t *testing.T) {
	pool := newOutbox(t)
	sink := &capture{}
	cfg, _ := logged(t, sink)
	cfg.BatchEvents = 50
	cfg.Subscriptions[0].Topic = "{header:route}"
	for i := range 50 {
		headers := `{"route": "r"}`
		if i == 24 {
			headers = `{}`
		}
		mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, headers)
			VALUES ('user', $1, 'UserCreated', to_json($2::integer), $3)`, fmt.Sprint(i), i, headers)
	}
	_, stop := start(t, pool, cfg)
	sink.waitFor(t, 49)
	testwait.Until(t, "the other to be dead", func() bool { return parkedRows(t, pool) == "dead 1" })
	settled(t, pool)
	stop()
	if got := one[string](t, pool, `SELECT payload::text || ': ' || last_error FROM commitrelay.parked`); !strings.HasPrefix(got, "24: ") || !strings.Contains(got, "route") {
		t.Errorf("dead is %s", got)
	}
	if n := len(sink.messages()); n != 49 {
		t.Errorf("%d messages, want 49", n)
	}
}

// A refused event holds back its key and no other; in a single attempt as over many.
func TestRefusedEventHoldsItsKey(t *testing.T) {
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var refusals atomic.Int64
	sink.setAnswer(judge(func(m relay.Message) error {
		if m.Event.AggregateID == "1" && string(m.Event.Payload) == "1" && refusals.Add(1) <= 2 {
			return relay.Retry(errors.New("not now"))
		}
		return nil
	}))
	cfg, _ := logged(t, sink)
	start(t, pool, cfg)
	start(t, pool, cfg) // a second relay must not help
	book.write(t, pool, "1", 1)
	testwait.Until(t, "the event to be parked", func() bool { return parkedRows(t, pool) != "none" })
	book.write(t, pool, "2", 1)
	book.write(t, pool, "1", 2)
	book.write(t, pool, "2", 2)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	for _, m := range sink.messages() {
		if want := map[bool]int{true: 3, false: 1}[m.Event.AggregateID == "1" && string(m.Event.Payload) == "1" && m.Attempt > 1]; m.Attempt != want {
			t.Errorf("attempt %d of event %s of key %s, want %d", m.Attempt, m.Event.Payload, m.Event.AggregateID, want)
		}
	}
}

func TestOnDead(t *testing.T) {
	for policy, want := range map[relay.OnDead][]string{
		relay.Continue: {"1", "3", "4", "5"},
		relay.Block:    {"1"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			pool := newOutbox(t)
			sink := &capture{}
			sink.setAnswer(judge(func(m relay.Message) error {
				if m.Event.AggregateID == "k" && string(m.Event.Payload) == "2" {
					return relay.Permanent(errors.New("too large"))
				}
				return nil
			}))
			cfg, _ := logged(t, sink)
			cfg.Subscriptions[0].OnDead = policy
			_, stop := start(t, pool, cfg)
			insertMany(t, pool, "k", 4)
			insertMany(t, pool, "other", 1)
			sink.waitFor(t, len(want))
			settled(t, pool)
			stop()
			_, stop = start(t, pool, cfg) // it is remembered
			insert(t, pool, "k", "5")
			insert(t, pool, "other", "2")
			sink.waitFor(t, len(want)+2)
			settled(t, pool)
			stop()
			var got []string
			for _, m := range sink.messages() {
				if m.Event.AggregateID == "k" {
					got = append(got, string(m.Event.Payload))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("of the key arrived %q, want %q", got, want)
			}
			if rows, want := parkedRows(t, pool), map[relay.OnDead]string{relay.Continue: "dead 1", relay.Block: "dead 1, parked 3"}[policy]; rows != want {
				t.Errorf("parked: %s, want %s", rows, want)
			}
		})
	}
}

// One key floods the outbox, and its destination fails. Others do not wait for it, and when it is healed it drains in order.
func TestHotKey(t *testing.T) {
	const hot = 10_000
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	var healed atomic.Bool
	sink.setAnswer(judge(func(m relay.Message) error {
		if m.Event.AggregateID == "HOT" && !healed.Load() {
			return relay.Retry(errors.New("no answer from HOT's endpoint"))
		}
		return nil
	}))
	book.write(t, pool, "HOT", hot)
	for i := range 100 {
		book.write(t, pool, fmt.Sprint(i), 1)
	}
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].MaxAttempts = 1000
	r, _ := start(t, pool, cfg)
	sink.waitFor(t, 100)
	testwait.Until(t, "all of HOT to be parked", func() bool { return parkedRows(t, pool) == fmt.Sprintf("parked %d", hot) })
	for _, m := range sink.messages() {
		if m.Event.AggregateID == "HOT" {
			t.Fatal("an event of HOT has arrived")
		}
	}
	healed.Store(true)
	book.write(t, pool, "HOT", 10)
	began, calls := time.Now(), sink.callCount()
	book.wait(t, sink)
	t.Logf("drained in %v", time.Since(began))
	book.checkOnce(t, sink, pool)
	if n := sink.callCount() - calls; n > hot/100 {
		t.Errorf("%d calls of the sink for %d events: too few at a time", n, hot)
	}
	testwait.Until(t, "nothing to be parked", func() bool { return r.Health().Subscriptions[0].Parked == 0 && parkedRows(t, pool) == "none" })
}

// Backlogs in one key, and with a slow sink, go through in large batches.
func TestBacklogOfOneKey(t *testing.T) {
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	book.write(t, pool, "HOT", 20_000)
	book.write(t, pool, "other", 100)
	cfg, _ := logged(t, sink)
	start(t, pool, cfg)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	if n := sink.callCount(); n > 60 {
		t.Errorf("%d calls of the sink for 20,100 events", n)
	}
}
