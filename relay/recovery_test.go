package relay_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// lazy are parameters of a server that flushes its WAL when a commit asks for it, and else not for as long as the test takes.
var lazy = map[string]string{
	"wal_writer_delay": "10000ms", "wal_writer_flush_after": "1GB", "full_page_writes": "off",
	"bgwriter_lru_maxpages": "0", "checkpoint_timeout": "1d",
}

// proxied is a pool that reaches the cluster through a proxy.
func proxied(t testing.TB, c *pgtemp.Cluster) (*pgxpool.Pool, *tcpproxy.Proxy) {
	t.Helper()
	proxy, err := tcpproxy.Listen(c.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return pgtest.Connect(t, through(t, c.URL(), proxy)), proxy
}

// newStandby is a copy of the cluster that follows it.
func newStandby(t testing.TB, primary *pgtemp.Cluster) *pgtemp.Cluster {
	t.Helper()
	standby, err := primary.Standby(t.Context(), pgtemp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	closeCluster(t, standby)
	return standby
}

// caughtUp waits until the standby has all that has been committed.
func caughtUp(t testing.TB, primary *pgxpool.Pool) {
	t.Helper()
	lsn := one[string](t, primary, `SELECT pg_current_wal_flush_lsn()::text`)
	testwait.Until(t, "the standby to catch up", func() bool {
		return one[bool](t, primary, `SELECT coalesce(bool_and(replay_lsn >= $1::text::pg_lsn), false) FROM pg_stat_replication`, lsn)
	})
}

// hold opens a transaction on a connection of its own, which ends with the test at the latest.
func hold(t testing.TB, url string, statements ...string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(contextOf(t)) })
	for _, sql := range append([]string{"BEGIN"}, statements...) {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return conn
}

// After a crash transaction ids and numbers that were never flushed are handed out again. The relay has read positions
// in which they are over; it must not believe them.
func TestCrashHandsOutTheSameIDsAgain(t *testing.T) {
	type crash func(t *testing.T, primary, standby *pgtemp.Cluster, pid int)
	for name, crash := range map[string]crash{
		"the server stops at once": func(t *testing.T, c, _ *pgtemp.Cluster, _ int) {
			if err := c.Restart(t.Context(), pgtemp.Immediate); err != nil {
				t.Fatal(err)
			}
		},
		"one backend is killed": func(t *testing.T, c, _ *pgtemp.Cluster, pid int) {
			if err := c.KillBackend(t.Context(), pid); err != nil {
				t.Fatal(err)
			}
		},
		"a standby is promoted": func(t *testing.T, primary, standby *pgtemp.Cluster, _ int) {
			if err := primary.Stop(pgtemp.Immediate); err != nil {
				t.Fatal(err)
			}
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, quick(lazy))
			var standby *pgtemp.Cluster
			if name == "a standby is promoted" {
				standby = newStandby(t, c)
			}
			pool := migrated(t, c)
			through, proxy := proxied(t, c)
			sink, book := &capture{}, ledger{}
			cfg, log := logged(t, sink)
			cfg.Lease = time.Minute // no heartbeat flushes the WAL meanwhile
			cfg.PollMin, cfg.PollMax = 100*time.Millisecond, 100*time.Millisecond
			r, _ := start(t, through, cfg)
			book.write(t, pool, "a", 3)
			settled(t, pool)

			// From now on nothing can be stored. Two events are delivered even so.
			hold(t, c.URL(), "LOCK TABLE commitrelay.windows IN SHARE MODE")
			book.write(t, pool, "a", 2)
			book.wait(t, sink)

			if standby != nil {
				caughtUp(t, pool)
			}

			// The WAL writer wakes up when a page is full: begin a new one.
			mustExec(t, pool, `SELECT pg_switch_wal()`)
			aborted := hold(t, c.URL())
			lost := insertMany(t, aborted, "a", 2)
			for _, sql := range []string{"SELECT nextval('outbox_events_seq') FROM generate_series(1, 60)", "ROLLBACK"} {
				if _, err := aborted.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			last := one[int64](t, pool, `SELECT last_value FROM outbox_events_seq`)
			mustExec(t, pool, `DO $$ BEGIN FOR i IN 1..58 LOOP PERFORM pg_current_xact_id(); ROLLBACK; END LOOP; END $$`)
			ended := one[time.Time](t, pool, `SELECT clock_timestamp()`)
			testwait.Until(t, "the relay to have read a position after the abort", func() bool {
				return one[bool](t, pool, `SELECT count(*) > 0 FROM pg_stat_activity
					WHERE query LIKE '%pg_sequence_last_value%' AND pid <> pg_backend_pid() AND query_start > $1`, ended)
			})
			after := nextXID(t, pool)
			pid := one[int](t, pool, `SELECT pg_backend_pid()`)

			proxy.Refuse()
			crash(t, c, standby, pid)
			if standby != nil {
				c = standby
				proxy.SetTarget(c.Addr())
			}
			pool = pgtest.Connect(t, c.URL())
			for range 10 {
				for _, w := range book.write(t, pool, "a", 2) {
					if w.xid < lost[0].xid || w.xid >= after {
						t.Fatalf("transaction id %d was not handed out before: want one of %d to %d", w.xid, lost[0].xid, after)
					}
					if w.seq > last {
						t.Fatalf("number %d was not handed out before: want one up to %d", w.seq, last)
					}
				}
			}
			if err := proxy.Accept(); err != nil {
				t.Fatal(err)
			}
			book.wait(t, sink)
			settled(t, pool)
			book.write(t, pool, "a", 1)
			book.wait(t, sink)
			book.checkOnce(t, sink, pool)
			if n := r.Health().Subscriptions[0].Duplicates; n != 2 {
				t.Errorf("%d events were read again and not sent again, want the 2 that were delivered and not stored", n)
			}
			log.waitFor("PostgreSQL answers again")
		})
	}
}

// TRUNCATE takes the events away, and with RESTART IDENTITY their numbers come again.
func TestSequenceRestarted(t *testing.T) {
	for name, truncate := range map[string]string{
		"with the identity":    "TRUNCATE outbox_events RESTART IDENTITY",
		"without the identity": "TRUNCATE outbox_events",
	} {
		for count, n := range map[string]int{"fewer": 3, "more": 30} {
			for when, running := range map[string]bool{"the relay runs": true, "the relay is stopped": false} {
				t.Run(name+", "+count+" events, "+when, func(t *testing.T) {
					t.Parallel()
					pool := newOutbox(t)
					sink, book := &capture{}, ledger{}
					cfg, log := logged(t, sink)
					_, stop := start(t, pool, cfg)
					book.write(t, pool, "a", 10)
					settled(t, pool)
					if !running {
						stop()
					}
					tx := begin(t, pool)
					if _, err := tx.Exec(t.Context(), truncate); err != nil {
						t.Fatal(err)
					}
					rows := insertMany(t, tx, "a", n)
					if err := tx.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
					book.add(rows...)
					if !running {
						start(t, pool, cfg)
					}
					book.wait(t, sink)
					settled(t, pool)
					book.write(t, pool, "b", 2)
					book.write(t, pool, "a", 2)
					book.wait(t, sink)
					book.checkOnce(t, sink, pool)
					said := log.find("stored positions are void", "the sequence was restarted")
					if want := name == "with the identity"; (len(said) == 1) != want {
						t.Errorf("the log tells %d times of a restarted sequence", len(said))
					}
				})
			}
		}
	}
}

// A sequence below the events that exist would hide new events among old ones.
func TestSequenceSetBelowTheEvents(t *testing.T) {
	for name, set := range map[string]string{
		"restart": "ALTER SEQUENCE outbox_events_seq RESTART WITH 4",
		"setval":  "SELECT setval('outbox_events_seq', 3)",
	} {
		for when, running := range map[string]bool{"the relay runs": true, "the relay is stopped": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				pool := newOutbox(t)
				sink, book := &capture{}, ledger{}
				cfg, log := logged(t, sink)
				r, stop := start(t, pool, cfg)
				book.write(t, pool, "a", 10)
				settled(t, pool)
				if !running {
					stop()
				}
				mustExec(t, pool, set)
				book.write(t, pool, "a", 2) // numbers 4 and 5 for the second time
				if !running {
					r, _ = start(t, pool, cfg)
				}
				log.waitFor("level=ERROR", "SELECT setval(")
				testwait.Until(t, "health to say so", func() bool {
					h := r.Health().Subscriptions[0]
					return h.State == relay.Stopped && !r.Health().Ready
				})
				if n := len(log.find("PostgreSQL does not answer")); n > 0 {
					t.Errorf("the log says %d times that PostgreSQL does not answer: it does", n)
				}
				mustExec(t, pool, setvalIn(t, r.Health().Subscriptions[0].Error))
				book.wait(t, sink)
				settled(t, pool)
				book.write(t, pool, "a", 3)
				book.wait(t, sink)
				book.checkOnce(t, sink, pool)
				if n := len(log.find("level=ERROR")); n != 1 {
					t.Errorf("%d errors were logged, want 1: %q", n, log.find("level=ERROR"))
				}
			})
		}
	}
}
