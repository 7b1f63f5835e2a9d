package relay_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// interrupted runs a relay and stops it in as many ways at once as there are: with events that are settled, parked behind
// another, settled ahead in a window that is half done, not settled, and committed late by a transaction that was open.
func interrupted(t testing.TB, pool *pgxpool.Pool, book *ledger, sink *capture) {
	t.Helper()
	sink.setAnswer(func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		half, parked := 0, false
		for i, m := range batch {
			switch m.Event.AggregateID {
			case "parked":
				if errs[i] = relay.RetryAfter(errors.New("later"), 100*time.Millisecond); parked {
					errs[i] = errors.New("held back")
				}
				parked = true
			case "half":
				if half++; half > 2 {
					errs[i] = errors.New("the sink is gone")
				}
			}
		}
		return &relay.BatchError{Errs: errs}
	})
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].MaxAttempts = 1000
	_, stop := start(t, pool, cfg)
	book.write(t, pool, "a", 5)
	settled(t, pool)
	late := begin(t, pool)
	lateRows := insertMany(t, late, "late", 2)
	book.write(t, pool, "a", 3)
	settled(t, pool)
	book.write(t, pool, "parked", 2)
	settled(t, pool)
	if n := count(t, pool, `SELECT count(*) FROM commitrelay.parked`); n != 2 {
		t.Fatalf("%d events are parked, want 2", n)
	}
	tx := begin(t, pool)
	rows := append(insertMany(t, tx, "half", 4), insertMany(t, tx, "ahead", 2)...)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	book.add(rows...)
	testwait.Until(t, "the window to be half done", func() bool {
		return one[bool](t, pool, `SELECT to_window IS NOT NULL AND cardinality(ahead) = 2 FROM commitrelay.lanes`)
	})
	stop()
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	book.add(lateRows...)
	book.write(t, pool, "a", 3)
	sink.setAnswer(nil)
}

// resumed starts a relay and waits until all has arrived, each event once.
func resumed(t testing.TB, pool *pgxpool.Pool, book *ledger, sink *capture) (*logBook, func()) {
	t.Helper()
	cfg, log := logged(t, sink)
	_, stop := start(t, pool, cfg)
	book.wait(t, sink)
	settled(t, pool)
	book.write(t, pool, "a", 2)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	testwait.Until(t, "no event to be parked", func() bool {
		return count(t, pool, `SELECT count(*) FROM commitrelay.parked`) == 0
	})
	return log, stop
}

// burned is a new cluster that has handed out n transaction ids and more.
func burned(t testing.TB, n int) *pgtemp.Cluster {
	t.Helper()
	c := newCluster(t, quick(nil))
	pool, err := pgxpool.New(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	burn(t, pool, n)
	return c
}

// Numbers come along with a dump, transaction ids do not: those of the restored events may be higher or lower than what
// the new cluster hands out.
func TestDumpAndRestore(t *testing.T) {
	for name, burns := range map[string][3]int{
		"into lower ids, then into higher": {3000, 0, 9000},
		"into higher ids, then into lower": {0, 9000, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sink, book := &capture{}, &ledger{}
			from := burned(t, burns[0])
			pool := migrated(t, from)
			for i, n := range burns[1:] {
				interrupted(t, pool, book, sink)
				to := burned(t, n)
				before := nextXID(t, pool)
				pool = restore(t, to, dump(t, from, "dump"))
				if now := nextXID(t, pool); (now < before) != (n == 0) {
					t.Fatalf("the next transaction id was %d and is %d: the test is wrong", before, now)
				}
				book.write(t, pool, "a", 3) // before a relay has seen the new cluster
				if i == 0 {
					breakOffCatchUp(t, pool, book, sink)
				}
				log, stop := resumed(t, pool, book, sink)
				if i == 0 && len(log.find("stored positions are void")) > 0 {
					t.Error("caught up for a second time, want to go on where the first was broken off")
				}
				newcomer(t, pool)
				stop()
				from = to
			}
		})
	}
}

// breakOffCatchUp runs a relay that is stopped in the middle of catching up.
func breakOffCatchUp(t testing.TB, pool *pgxpool.Pool, book *ledger, sink *capture) {
	t.Helper()
	sink.setAnswer(func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		for i := range batch {
			if i >= len(batch)/2 {
				errs[i] = errors.New("the sink is gone")
			}
		}
		return &relay.BatchError{Errs: errs}
	})
	cfg, log := logged(t, sink)
	_, stop := start(t, pool, cfg)
	log.waitFor("stored positions are void", "another database cluster")
	log.waitFor("sink down")
	book.write(t, pool, "a", 1)
	stop()
	sink.setAnswer(nil)
}

// newcomer checks that a new subscription gets every retained event, whatever its transaction id.
func newcomer(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	sink := &capture{}
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].Name = "new"
	_, stop := start(t, pool, cfg)
	retained := &ledger{}
	rows, err := pool.Query(t.Context(), `SELECT id, aggregate_id FROM outbox_events ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var r row
		if err := rows.Scan((*[16]byte)(&r.id), &r.key); err != nil {
			t.Fatal(err)
		}
		retained.add(r)
	}
	retained.wait(t, sink)
	stop()
	retained.checkOnce(t, sink)
	mustExec(t, pool, `DELETE FROM commitrelay.subscriptions WHERE name = 'new'`)
}

// pg_upgrade keeps transaction ids and numbers: nothing is repeated.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	sink, book := &capture{}, &ledger{}
	old := newCluster(t, quick(nil))
	pool := migrated(t, old)
	interrupted(t, pool, book, sink)
	next := nextXID(t, pool)
	pool.Close()
	if err := old.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	opts := quick(nil)
	opts.Password, opts.BinDir = old.Password(), old.BinDir()
	upgraded, err := pgtemp.Create(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	closeCluster(t, upgraded)
	tool(t, upgraded, "pg_upgrade", "--username", "postgres", "--old-bindir", old.BinDir(), "--new-bindir", upgraded.BinDir(),
		"--old-datadir", old.DataDir(), "--new-datadir", upgraded.DataDir())
	if err := upgraded.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool = pgtest.Connect(t, upgraded.URL())
	if now := nextXID(t, pool); now < next {
		t.Fatalf("the next transaction id was %d and is %d: pg_upgrade has not kept it", next, now)
	}
	book.write(t, pool, "a", 3)
	log, _ := resumed(t, pool, book, sink)
	log.waitFor("stored positions are void", "another database cluster")
}

// A copy of the files of a stopped server goes on where the original stopped, beside it.
func TestCopyOfTheFiles(t *testing.T) {
	t.Parallel()
	sink, book := &capture{}, &ledger{}
	original := newCluster(t, quick(nil))
	pool := migrated(t, original)
	interrupted(t, pool, book, sink)
	pool.Close()
	if err := original.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	opts := quick(nil)
	opts.Password, opts.BinDir = original.Password(), original.BinDir()
	copied, err := pgtemp.Create(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	closeCluster(t, copied)
	if err := os.RemoveAll(copied.DataDir()); err != nil {
		t.Fatal(err)
	}
	tool(t, copied, "/bin/cp", "-a", original.DataDir(), copied.DataDir())
	soFar, copyBook := &capture{got: sink.messages()}, &ledger{committed: book.rows()}
	for _, c := range []*pgtemp.Cluster{original, copied} {
		if err := c.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The two go different ways, with the same numbers and transaction ids.
	pool = pgtest.Connect(t, original.URL())
	book.write(t, pool, "a", 5)
	log, _ := resumed(t, pool, book, sink)
	pool = pgtest.Connect(t, copied.URL())
	copyBook.write(t, pool, "a", 2)
	copyLog, _ := resumed(t, pool, copyBook, soFar)
	if void := append(log.find("is void"), copyLog.find("is void")...); len(void) > 0 {
		t.Errorf("nothing is void in a copy: %q", void)
	}
}
