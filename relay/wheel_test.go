package relay_test

import (
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// newFastWheel is an outbox whose wheel goes on every second.
func newFastWheel(t testing.TB, slots int) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := migrate.Up(t.Context(), pool, migrate.Options{Slots: slots, SlotWidth: time.Second}); err != nil {
		t.Fatalf("migrate up: %v", err)
	}
	return pool
}

// allGivenBack waits until no leaf takes up room.
func allGivenBack(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	testwait.UntilNil(t, "all space to be given back", func() error {
		if n := one[int64](t, pool, `SELECT sum(pg_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass`); n > 0 {
			return fmt.Errorf("the slots take up %d bytes", n)
		}
		return nil
	})
}

// Round after round the slots are emptied behind the writers; when they have stopped, nothing is left.
func TestWheelTurns(t *testing.T) {
	t.Parallel()
	const slots = 8
	pool := newFastWheel(t, slots)
	sink, book := &capture{}, ledger{}
	cfg, log := logged(t, sink)
	cfg.Lease = 20 * time.Second // on a busy machine, too
	cfg.Subscriptions[0].Lanes = 4
	start(t, pool, cfg)
	emptied := map[string]int{}
	for rounds := 0; rounds < 2; {
		book.write(t, pool, strconv.Itoa(len(book.rows())%7), 3)
		clear(emptied)
		for _, line := range log.find(`msg="slot emptied"`) {
			_, slot, _ := strings.Cut(line, "slot=")
			emptied[slot[:1]]++
		}
		rounds = 2
		for slot := range slots {
			rounds = min(rounds, emptied[strconv.Itoa(slot)])
		}
	}
	book.wait(t, sink)
	allGivenBack(t, pool)
	book.checkOnce(t, sink, pool)
	if told := log.find("the wheel has gone round"); len(told) > 0 {
		t.Errorf("operators were told: %v", told)
	}
}

// The wheel goes round while no relay runs: old and new events share slots, none is lost, and the slots are emptied later. As
// long as a subscription that nobody reads holds them that is said, once.
func TestWheelGoesRound(t *testing.T) {
	t.Parallel()
	const slots = 3
	pool := newFastWheel(t, slots)
	all, audit := &capture{}, &capture{}
	auditor, _ := logged(t, audit)
	auditor.Subscriptions[0].Name = "audit"
	auditor.Subscriptions[0].Lanes = 2
	r, err := relay.New(pool, auditor)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	book := ledger{}
	for !one[bool](t, pool, `SELECT coalesce(max(created_at) - min(created_at) > make_interval(secs => $1), false) FROM outbox_events`, 2*slots) {
		book.write(t, pool, strconv.Itoa(len(book.rows())%5), 1)
	}

	cfg, log := logged(t, all)
	cfg.Lease, auditor.Lease = 20*time.Second, 20*time.Second // on a busy machine, too
	start(t, pool, cfg)
	book.wait(t, all)
	log.waitFor("level=WARN", "the wheel has gone round", `subscription \"audit\" is delivered by no live relay`)
	settledAgain := len(log.find("space looked after"))
	if n := one[int](t, pool, `SELECT count(*) FROM outbox_events`); n != len(book.rows()) || settledAgain > 0 {
		t.Errorf("%d events are left of %d, after %d attempts to empty a slot", n, len(book.rows()), settledAgain)
	}

	start(t, pool, auditor)
	book.wait(t, audit)
	allGivenBack(t, pool)
	log.waitFor("level=INFO", "no events of an earlier round are left")
	for _, sink := range []*capture{all, audit} {
		book.checkOnce(t, sink, pool)
	}
	if told := log.find("the wheel has gone round"); len(told) != 1 {
		t.Errorf("operators were told: %v, want one line", told)
	}
}

// Events stay for as long as is asked for, if the wheel is large enough.
func TestRetention(t *testing.T) {
	t.Parallel()
	sink := &capture{}
	cfg := config(sink)
	for slots, want := range map[int]string{
		8: "retention: 7s is more than a wheel of 8 slots of 1s keeps, which is 6s: with 8 slots a width of 2s fits",
		2: "retention: 7s is more than a wheel of 2 slots of 1s keeps, which is 0s: an outbox with more slots is needed",
	} {
		cfg.Retention = 7 * time.Second
		pool := newFastWheel(t, slots)
		r, err := relay.New(pool, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run: %v, want %s", err, want)
		}
	}
	pool := newFastWheel(t, 8)
	cfg.Retention = -1
	if _, err := relay.New(pool, cfg); err == nil || !strings.Contains(err.Error(), "retention") {
		t.Errorf("New with a negative retention: %v", err)
	}

	cfg.Retention = 4 * time.Second
	start(t, pool, cfg)
	insert(t, pool, "a", "1")
	written := one[time.Time](t, pool, `SELECT created_at FROM outbox_events`)
	sink.waitFor(t, 1)
	allGivenBack(t, pool)
	if gone := one[time.Time](t, pool, `SELECT now()`); gone.Sub(written) < cfg.Retention {
		t.Errorf("the event was gone after %v, want %v at least", gone.Sub(written), cfg.Retention)
	}
}

// Those who run a relay from cron get their space back, too.
func TestDrainGivesSpaceBack(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	mustExec(t, pool, `INSERT INTO outbox_events (slot, aggregate_type, aggregate_id, event_type)
		SELECT (date_part('epoch', now())::bigint / 3600 - 2) % 8, 'user', 'a', 'UserCreated'`)
	sink := &capture{}
	r, err := relay.New(pool, config(sink))
	if err != nil {
		t.Fatal(err)
	}
	// A transaction elsewhere in the cluster, which might have written, may keep the first ones from it.
	testwait.Until(t, "the slot to be emptied", func() bool {
		if _, err := r.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		return one[int](t, pool, `SELECT count(*) FROM outbox_events`) == 0
	})
	if got := len(sink.messages()); got != 1 {
		t.Errorf("%d events arrived, want 1", got)
	}
}

// An event that is parked or dead keeps no slot: its row holds the whole of it.
func TestParkedEventsHoldNoSlot(t *testing.T) {
	t.Parallel()
	pool := newFastWheel(t, 8)
	sink := &capture{}
	sink.setAnswer(func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		for i := range batch {
			errs[i] = relay.Permanent(fmt.Errorf("refused"))
		}
		return &relay.BatchError{Errs: errs}
	})
	start(t, pool, config(sink))
	insert(t, pool, "a", `{"whole": true}`)
	testwait.Until(t, "the event to be dead", func() bool { return one[int](t, pool, `SELECT count(*) FROM commitrelay.parked`) == 1 })
	allGivenBack(t, pool)
	if got := one[string](t, pool, `SELECT payload::text FROM commitrelay.parked WHERE state = 'dead'`); got != `{"whole": true}` {
		t.Errorf("what is left of the event: %s", got)
	}
	if got := one[string](t, pool, `SELECT status FROM commitrelay.events`); got != "DEAD" {
		t.Errorf("the view says %s", got)
	}
}

// No writer waits for a lock: neither beside a slot that is in use by an open writer, nor while slots are emptied under
// three relays that drain with all their might.
func TestWritersDoNotWaitForTheWheel(t *testing.T) {
	t.Parallel()
	opts := quick(map[string]string{"log_lock_waits": "on", "deadlock_timeout": "25ms", "log_line_prefix": "'app=%a '"})
	maps.DeleteFunc(opts.Parameters, func(name, _ string) bool { return name == "fsync" }) // an honest TRUNCATE
	c := newCluster(t, opts)
	pool := pgtest.Connect(t, c.URL()+"&application_name=writer")
	if err := migrate.Up(t.Context(), pool, migrate.Options{SlotWidth: time.Minute}); err != nil {
		t.Fatal(err)
	}
	past := func(n int) int {
		return one[int](t, pool, `SELECT ((date_part('epoch', now())::bigint / 60 - $1) % 8)::integer`, n)
	}
	used, old := past(4), past(3)
	const into = `INSERT INTO outbox_events (slot, aggregate_type, aggregate_id, event_type, payload)
		SELECT $1::integer, 'user', $2 || g % 100, 'UserCreated', to_json(g) FROM generate_series(1, $3::integer) AS g`
	var written atomic.Int64
	write := func(slot int, key string, n int) {
		if _, err := pool.Exec(t.Context(), into, slot, key, n); err != nil {
			t.Error(err)
		}
		written.Add(int64(n))
	}
	open := hold(t, c.URL()+"&application_name=writer")
	if _, err := open.Exec(t.Context(), into, used, "open", 1); err != nil {
		t.Fatal(err)
	}
	sink := &capture{}
	var logs []*logBook
	for range 3 {
		cfg, log := logged(t, sink)
		cfg.Subscriptions[0].Lanes = 16
		logs = append(logs, log)
		start(t, pgtest.Connect(t, c.URL()+"&application_name=relay"), cfg)
	}
	tries := func(parts ...string) (n int) {
		for _, log := range logs {
			n += len(log.find(parts...))
		}
		return n
	}
	var writers sync.WaitGroup
	var done atomic.Bool
	for w := range 2 {
		writers.Go(func() {
			// What is rolled back leaves the slot settled, so that it is tried all the time.
			for !done.Load() && !t.Failed() {
				tx, err := pool.Begin(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := tx.Exec(t.Context(), into, used, strconv.Itoa(w), 1); err != nil {
					t.Error(err)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	testwait.Until(t, "attempts to empty the slot that is in use", func() bool {
		return tries("space looked after", "slot="+strconv.Itoa(used), "in use") >= 20
	})
	done.Store(true)
	writers.Wait()

	if _, err := open.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	written.Add(1)
	testwait.Until(t, "the slot to be emptied", func() bool {
		return tries(`msg="slot emptied"`, "slot="+strconv.Itoa(used)) > 0
	})

	// The other slot is settled, and can be emptied once there is a moment between two reads of three busy relays.
	write(old, "b", 100)
	testwait.Until(t, "all to be delivered", func() bool { return len(sink.messages()) >= int(written.Load()) })
	done.Store(false)
	for w := range 2 {
		writers.Go(func() {
			for !done.Load() && !t.Failed() {
				write(past(0), "c"+strconv.Itoa(w), 500)
			}
		})
	}
	testwait.Until(t, "a slot to be emptied while three relays drain", func() bool {
		return tries(`msg="slot emptied"`, "slot="+strconv.Itoa(old)) > 0
	})
	done.Store(true)
	writers.Wait()
	testwait.Until(t, "all to be delivered", func() bool { return len(sink.messages()) >= int(written.Load()) })
	if n := len(sink.messages()); n != int(written.Load()) {
		t.Errorf("%d events arrived, %d were written", n, written.Load())
	}
	text, err := os.ReadFile(c.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "app=writer") && strings.Contains(line, "still waiting") {
			t.Errorf("a writer waited: %s", line)
		}
	}
}
