package relay_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// replicate fills an empty cluster from another by logical replication, as a blue/green deployment does: all tables but the
// unlogged one, and no sequence. The returned function waits until all is there, and ends it.
func replicate(t testing.TB, blue, green *pgtemp.Cluster, bluePool *pgxpool.Pool) (pool *pgxpool.Pool, end func()) {
	t.Helper()
	file := filepath.Join(blue.Dir(), "schema.sql")
	tool(t, blue, "pg_dump", "--schema-only", "--file", file, "postgres")
	tool(t, green, "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", file)
	pool = pgtest.Connect(t, green.URL())
	mustExec(t, bluePool, `CREATE PUBLICATION everything FOR ALL TABLES`)
	mustExec(t, pool, `CREATE SUBSCRIPTION everything CONNECTION '`+blue.URL()+`' PUBLICATION everything`)
	return pool, func() {
		t.Helper()
		testwait.Until(t, "the tables to be copied", func() bool {
			return one[bool](t, pool, `SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel`)
		})
		lsn := one[string](t, bluePool, `SELECT pg_current_wal_lsn()::text`)
		testwait.Until(t, "replication to catch up", func() bool {
			return one[bool](t, bluePool, `SELECT coalesce(bool_and(replay_lsn >= $1::text::pg_lsn), false) FROM pg_stat_replication
				WHERE application_name = 'everything'`, lsn)
		})
		mustExec(t, pool, `DROP SUBSCRIPTION everything`)
	}
}

// Green has everything but blue's counters. A relay there does not begin before the sequence stands where blue's stood, and says
// how to set it; then it goes on where blue's relays stopped.
func TestBlueGreen(t *testing.T) {
	for name, c := range map[string]struct {
		same          bool
		blueX, greenX int // transaction ids that have been handed out before
	}{
		"new relays, lower ids":       {same: false, blueX: 3000},
		"the same relays, higher ids": {same: true, greenX: 9000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := quick(map[string]string{"wal_level": "logical"})
			blue := newCluster(t, opts)
			opts.Password = blue.Password()
			green := newCluster(t, opts)
			pool := migrated(t, blue)
			burn(t, pool, 1+c.blueX)
			greenPool, replicated := replicate(t, blue, green, pool)
			burn(t, greenPool, 1+c.greenX)
			sink, book := &capture{}, &ledger{}
			relays := newPair(t, blue, sink)
			relays.start(2 * time.Second)
			waitShares(t, pool, "8 8")
			book.writeAll(t, pool, manyKeys(), 2)
			book.wait(t, sink)
			settled(t, pool)

			// Events are parked, as others were before, and the last numbers were drawn by transactions that nobody kept.
			refuse := func(key string) {
				sink.setAnswer(func(batch []relay.Message) error {
					errs := make([]error, len(batch))
					for i, m := range batch {
						if m.Event.AggregateID == key {
							errs[i] = relay.RetryAfter(errors.New("later"), 300*time.Millisecond)
						}
					}
					return &relay.BatchError{Errs: errs}
				})
			}
			parked := func(n int) {
				testwait.Until(t, "events to be parked", func() bool { return count(t, pool, `SELECT count(*) FROM commitrelay.parked`) == n })
			}
			refuse("early")
			book.write(t, pool, "early", 5)
			parked(5)
			refuse("parked")
			parked(0)
			book.write(t, pool, "parked", 3)
			parked(3)
			book.write(t, pool, "a0", 1)
			testwait.Until(t, "all others to arrive", func() bool { return len(arrived(sink)) == len(book.rows())-3 })
			mustExec(t, pool, `SELECT nextval('outbox_events_seq') FROM generate_series(1, 7)`)
			settled(t, pool)
			last := one[int64](t, pool, `SELECT last_value FROM outbox_events_seq`)
			relays.leave()
			if !c.same {
				relays.stop()
			}
			replicated()
			if err := blue.Stop(pgtemp.Fast); err != nil {
				t.Fatal(err)
			}
			n := sink.size()
			relays.reach(green)
			if !c.same {
				relays.start(2 * time.Second)
			}
			for i, log := range relays.logs {
				log.waitFor("level=ERROR", "outbox_events", "SELECT setval(")
				stoppedBy(t, relays.relays[i], "outbox_events")
			}
			if sink.size() != n {
				t.Errorf("%d events were published with a sequence that is behind", sink.size()-n)
			}
			mustExec(t, greenPool, setvalIn(t, relays.relays[0].Health().Subscriptions[0].Error))
			if at := one[int64](t, greenPool, `SELECT last_value FROM outbox_events_seq`); at != last {
				t.Errorf("the sequence is to be set to %d, want %d, where it stood", at, last)
			}

			// Events that are to wait behind parked ones would go before them: the numbers of those rows are behind, too.
			book.write(t, greenPool, "parked", 2)
			book.writeAll(t, greenPool, manyKeys(), 2)
			var text string
			testwait.Until(t, "the relay to refuse to park", func() bool {
				for _, r := range relays.relays { // the other one may still say something else
					if text = r.Health().Subscriptions[0].Error; strings.Contains(text, `"parked"`) {
						return true
					}
				}
				return false
			})
			mustExec(t, greenPool, setvalIn(t, text))
			sink.setAnswer(nil)
			book.wait(t, sink)
			settled(t, greenPool)
			book.writeAll(t, greenPool, manyKeys(), 1)
			book.wait(t, sink)
			book.checkOnce(t, sink, greenPool)
		})
	}
}

// stoppedBy waits until the relay says that it does nothing, because of a sequence.
func stoppedBy(t testing.TB, r *relay.Relay, sequence string) {
	t.Helper()
	testwait.UntilNil(t, "health to say so", func() error {
		h := r.Health()
		if s := h.Subscriptions[0]; s.State != relay.Stopped || h.Ready || !strings.Contains(s.Error, sequence) {
			return fmt.Errorf("it says %+v", h)
		}
		return nil
	})
}

// Someone writes on green before the sequence is set right. The numbers are those of old events, and the transaction ids may be,
// too: what cannot be told from them is delivered, if need be again.
func TestBlueGreenWrittenTooEarly(t *testing.T) {
	t.Parallel()
	opts := quick(map[string]string{"wal_level": "logical"})
	blue := newCluster(t, opts)
	opts.Password = blue.Password()
	green := newCluster(t, opts)
	pool := migrated(t, blue)
	burn(t, pool, 3000)
	greenPool, replicated := replicate(t, blue, green, pool)
	sink, book := &capture{}, &ledger{}
	relays := newPair(t, blue, sink)
	relays.start(2 * time.Second)
	book.writeAll(t, pool, manyKeys(), 2)
	book.wait(t, sink)
	settled(t, pool)
	relays.stop()
	replicated()
	early := book.write(t, greenPool, "early", 2)
	if last := nextXID(t, pool); early[0].xid >= last {
		t.Fatalf("transaction id %d was not handed out on blue before, where %d is next: the test is wrong", early[0].xid, last)
	}
	relays.reach(green)
	relays.start(2 * time.Second)
	for _, r := range relays.relays {
		stoppedBy(t, r, "outbox_events")
	}
	mustExec(t, greenPool, setvalIn(t, relays.relays[0].Health().Subscriptions[0].Error))
	book.writeAll(t, greenPool, manyKeys(), 1)
	book.wait(t, sink)
	settled(t, greenPool)
	book.check(t, sink, greenPool)
}
