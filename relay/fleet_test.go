package relay_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// shares is how many lanes each owner has, the most first: "6 5 5".
func shares(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	return one[string](t, pool, `SELECT coalesce(string_agg(n::text, ' ' ORDER BY n DESC), '')
		FROM (SELECT count(*) AS n FROM commitrelay.lanes WHERE owner IS NOT NULL GROUP BY owner) AS o`)
}

func waitShares(t testing.TB, pool *pgxpool.Pool, want string) {
	t.Helper()
	testwait.UntilNil(t, "the lanes to be shared "+want, func() error {
		if got := shares(t, pool); got != want {
			return fmt.Errorf("they are shared %q", got)
		}
		return nil
	})
}

// fleet is a configuration with many lanes, and leases that no test waits for.
func fleet(t testing.TB, sink relay.Sink) (relay.Config, *logBook) {
	cfg, log := logged(t, sink)
	cfg.Lease = 10 * time.Minute
	cfg.BatchEvents = 10
	cfg.Subscriptions[0].Lanes = 16
	return cfg, log
}

// Relays share the lanes as evenly as these can be, whoever comes and goes, and none of that makes a duplicate.
func TestRelaysShareTheLanes(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	slow := pausing(sink, func() time.Duration { return time.Duration(rand.IntN(5)) * time.Millisecond })
	end := writing(t, pool, book, sink)
	var logs []*logBook
	join := func() func() {
		cfg, log := fleet(t, slow)
		logs = append(logs, log)
		_, stop := start(t, pool, cfg)
		return stop
	}
	first := join()
	waitShares(t, pool, "16")
	second := join()
	waitShares(t, pool, "8 8")
	third := join()
	waitShares(t, pool, "6 5 5")
	second()
	waitShares(t, pool, "8 8")
	first()
	waitShares(t, pool, "16")
	join()
	waitShares(t, pool, "8 8")
	third()
	waitShares(t, pool, "16")
	end()
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	for i, log := range logs {
		if loud := log.loud(); len(loud) > 0 {
			t.Errorf("relay %d: %q", i, loud)
		}
	}
}

// A relay that ends without a word leaves its lanes to the others, once its lease has run out.
func TestLanesOfTheDead(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	cfg, _ := fleet(t, sink)
	cfg.Lease = 2 * time.Second
	start(t, pool, cfg)
	waitShares(t, pool, "16")
	// As its heartbeat and its leases would look.
	mustExec(t, pool, `INSERT INTO commitrelay.relays (id, host, pid, version, subscriptions, lease)
		VALUES ('00000000-0000-4000-8000-000000000001', 'dead', 1, '', '{all}', interval '2 s')`)
	testwait.Until(t, "lanes to be given up for it", func() bool { return shares(t, pool) == "8" })
	mustExec(t, pool, `UPDATE commitrelay.lanes SET owner = '00000000-0000-4000-8000-000000000001', epoch = epoch + 1, lease_until = now() + interval '2 s'
		WHERE owner IS NULL`)
	waitShares(t, pool, "8 8")
	for key := range 40 {
		book.write(t, pool, fmt.Sprint(key), 2)
	}
	waitShares(t, pool, "16")
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// A relay whose row is gone, as after a day of silence, comes back with its next heartbeat. Others count on it.
func TestForgottenRelayComesBack(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	cfg, _ := fleet(t, &capture{})
	cfg.Lease = 2 * time.Second
	start(t, pool, cfg)
	waitShares(t, pool, "16")
	mustExec(t, pool, "DELETE FROM commitrelay.relays")
	testwait.Until(t, "it to be back", func() bool { return count(t, pool, "SELECT count(*) FROM commitrelay.relays") == 1 })
	cfg, _ = fleet(t, &capture{})
	cfg.Lease = 2 * time.Second
	start(t, pool, cfg)
	waitShares(t, pool, "8 8")
}

// What relays leave behind when they die is removed by those that live.
func TestPositionsOfTheDead(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	mustExec(t, pool, `INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, run, created_at)
		SELECT 7, snapshot, h, next_xid, run, now() - interval '2 h' FROM commitrelay.windows`)
	cfg, _ := fleet(t, &capture{})
	start(t, pool, cfg)
	testwait.Until(t, "it to be removed", func() bool { return count(t, pool, "SELECT count(*) FROM commitrelay.windows WHERE id = 7") == 0 })
}

// Events that come late, below numbers that are settled, are settled themselves when a relay stops just after them: the place
// where it stands has no higher number then.
func TestLateEventsAreStored(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink, book := &capture{}, &ledger{}
	older := begin(t, pool) // it stays, so that what is settled for good does not grow either
	insertMany(t, older, "older", 1)
	for round := range 3 {
		cfg, _ := fleet(t, sink)
		_, stop := start(t, pool, cfg)
		waitShares(t, pool, "16")
		late := begin(t, pool)
		rows := insertMany(t, late, fmt.Sprint("late", round), 2)
		book.write(t, pool, "a", 1)
		book.wait(t, sink)
		settled(t, pool)
		if err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		book.add(rows...)
		book.wait(t, sink)
		stop()
	}
	cfg, _ := fleet(t, sink)
	start(t, pool, cfg)
	waitShares(t, pool, "16")
	book.write(t, pool, "b", 20)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}
