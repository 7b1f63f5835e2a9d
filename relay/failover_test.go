package relay_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// successor is a server that is about to take another's place, with its history up to a point.
type successor struct {
	*pgtemp.Cluster
	cut   func() // the point is now
	begin func() // the other has ended
}

// standbyOf is a standby that loses its connection, and is promoted later.
func standbyOf(t testing.TB, c *pgtemp.Cluster, primary *pgxpool.Pool) successor {
	s := successor{Cluster: newStandby(t, c)}
	s.cut = func() {
		caughtUp(t, primary)
		pool := pgtest.Connect(t, s.URL())
		mustExec(t, pool, `ALTER SYSTEM SET primary_conninfo = ''`)
		mustExec(t, pool, `SELECT pg_reload_conf()`)
		testwait.Until(t, "replication to end", func() bool {
			return count(t, pool, `SELECT count(*) FROM pg_stat_wal_receiver`)+count(t, primary, `SELECT count(*) FROM pg_stat_replication`) == 0
		})
		pool.Close()
	}
	s.begin = func() {
		if err := s.Promote(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// backupOf is a backup that is restored to a point in time later.
func backupOf(t testing.TB, c *pgtemp.Cluster, primary *pgxpool.Pool) successor {
	backup, err := c.Backup(t.Context(), pgtemp.Options{})
	s := successor{Cluster: pgtest.Keep(t, backup, err)}
	s.cut = func() { mustExec(t, primary, `SELECT pg_create_restore_point('here')`) }
	s.begin = func() {
		if err := s.RestoreTo(t.Context(), c, "here"); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// pair are two relays that share 16 lanes, and reach their server through a proxy.
type pair struct {
	t      testing.TB
	sink   relay.Sink
	url    string // of the server; the proxy's address stays
	proxy  *tcpproxy.Proxy
	relays []*relay.Relay
	logs   []*logBook
	stops  []func()
}

func newPair(t testing.TB, c *pgtemp.Cluster, sink relay.Sink) *pair {
	t.Helper()
	proxy, err := tcpproxy.Listen(c.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return &pair{t: t, sink: sink, url: through(t, c.URL(), proxy), proxy: proxy}
}

// start begins two relays.
func (p *pair) start(lease time.Duration) {
	p.t.Helper()
	for range 2 {
		cfg, log := fleet(p.t, p.sink)
		cfg.Lease, cfg.Retention = lease, time.Hour // the tests look at what was written
		cfg.BatchEvents = 3                         // most windows take several calls
		r, stop := start(p.t, pgtest.Connect(p.t, p.url), cfg)
		p.relays, p.logs, p.stops = append(p.relays, r), append(p.logs, log), append(p.stops, stop)
	}
}

// stop ends them.
func (p *pair) stop() {
	for _, stop := range p.stops {
		stop()
	}
	p.relays, p.logs, p.stops = nil, nil, nil
}

// leave takes the server away.
func (p *pair) leave() {
	p.proxy.Refuse()
	p.proxy.Cut()
}

// reach lets the relays reach a server.
func (p *pair) reach(c *pgtemp.Cluster) {
	p.t.Helper()
	p.proxy.SetTarget(c.Addr())
	if err := p.proxy.Accept(); err != nil {
		p.t.Fatal(err)
	}
}

// Another server takes the place of the primary and lacks what came last: events that had been delivered, and the positions
// that said so. Numbers and transaction ids are handed out again. All that its history holds arrives, in order; again only
// what was not stored there, and is not remembered.
func TestTheLastSecondIsLost(t *testing.T) {
	for name, follow := range map[string]func(testing.TB, *pgtemp.Cluster, *pgxpool.Pool) successor{
		"a standby is promoted":        standbyOf,
		"a restore to a point in time": backupOf,
	} {
		for who, same := range map[string]bool{"the same relays": true, "new relays": false} {
			t.Run(name+", "+who, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, quick(nil))
				pool := migrated(t, c)
				next := follow(t, c, pool)
				sink, survive, undone := &capture{}, &ledger{}, &ledger{}
				relays := newPair(t, c, sink)
				lease := 2 * time.Second
				if same {
					lease = 10 * time.Minute // whatever they are kept from
				}
				relays.start(lease)
				waitShares(t, pool, "8 8")
				half, kept := keysOfBoth(t, pool)
				survive.writeAll(t, pool, manyKeys(), 2)
				survive.wait(t, sink)
				settled(t, pool)

				// A window is half done, and one relay has delivered what it cannot store.
				sink.refuseAfter(half, 2)
				rows := survive.write(t, pool, half, 5)
				midWindow(t, pool, rows[1])
				remembered := map[outbox.ID]bool{}
				if same {
					hold(t, c.URL(), `SELECT FROM commitrelay.lanes WHERE owner = '`+ownerOf(t, pool, kept)+`' FOR UPDATE`)
					remembered = idsOf(survive.write(t, pool, kept, 3))
					testwait.Until(t, "events to arrive", func() bool { return countIn(arrived(sink), remembered) == 3 })
				}

				// Then comes what the other server will not have.
				next.cut()
				sink.setAnswer(nil)
				undone.writeAll(t, pool, append(manyKeys(), half, kept), 3)
				survive.wait(t, sink)
				undone.wait(t, sink)
				if same {
					settledBy(t, pool, ownerOf(t, pool, half))
				} else {
					settled(t, pool)
				}
				relays.leave()
				if err := c.Stop(pgtemp.Immediate); err != nil {
					t.Fatal(err)
				}
				if !same {
					relays.stop()
				}
				before := len(sink.messages())
				delivered := arrived(sink)
				next.begin()
				pool = pgtest.Connect(t, next.URL())
				again := map[outbox.ID]bool{}
				for _, r := range unsettled(t, pool) {
					if delivered[r.id] && !remembered[r.id] {
						again[r.id] = true
					}
				}
				if len(again) != 3 {
					t.Fatalf("%d events are settled for the old server alone, want the 3 of the window that was half done", len(again))
				}
				seq, xid := highest(undone.rows())
				for _, key := range append(manyKeys()[:8], half, kept) {
					for _, r := range survive.write(t, pool, key, 2) {
						if r.seq > seq || r.xid > xid {
							t.Fatalf("%+v was not handed out before: want a number up to %d and an id up to %d", r, seq, xid)
						}
					}
				}
				relays.reach(next.Cluster)
				if !same {
					relays.start(lease)
				}
				survive.wait(t, sink)
				settled(t, pool)
				survive.writeAll(t, pool, manyKeys(), 1)
				survive.wait(t, sink)
				checkRepeated(t, survive.check(t, without(sink, before, undone.rows(), survive), pool), again)
				if same {
					relays.suppressed(int64(len(remembered)))
				}
				for _, log := range relays.logs {
					if void := log.find("are void"); len(void) > 0 {
						t.Errorf("what is stored there is as good as it was: %q", void)
					}
				}
			})
		}
	}
}

// suppressed checks how many events the relays read again and did not send again.
func (p *pair) suppressed(want int64) {
	p.t.Helper()
	n := int64(0)
	for _, r := range p.relays {
		n += r.Health().Subscriptions[0].Duplicates
	}
	if n != want {
		p.t.Errorf("%d events were read again and not sent again, want %d", n, want)
	}
}

func countIn(all, some map[outbox.ID]bool) (n int) {
	for id := range some {
		if all[id] {
			n++
		}
	}
	return n
}

// Relays that reach a standby wait until it is promoted: nobody has to do anything.
func TestRelaysWaitForThePromotion(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(nil))
	pool := migrated(t, c)
	sink, book := &capture{}, &ledger{}
	relays := newPair(t, c, sink)
	relays.start(2 * time.Second)
	book.writeAll(t, pool, manyKeys(), 1)
	book.wait(t, sink)
	settled(t, pool)
	standby := newStandby(t, c)
	caughtUp(t, pool)
	relays.leave()
	if err := c.Stop(pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	relays.reach(standby)
	for _, log := range relays.logs {
		log.waitFor("PostgreSQL does not answer")
	}
	for _, r := range relays.relays {
		testwait.UntilNil(t, "health to say so", func() error {
			if h := r.Health(); h.Ready || h.Subscriptions[0].State != relay.DatabaseOut {
				return fmt.Errorf("it says %+v", h)
			}
			return nil
		})
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool = pgtest.Connect(t, standby.URL())
	book.writeAll(t, pool, manyKeys(), 1)
	book.wait(t, sink)
	waitShares(t, pool, "8 8")
	book.checkOnce(t, sink, pool)
	for _, log := range relays.logs {
		if loud := log.find("level=ERROR"); len(loud) > 0 {
			t.Errorf("nothing needs a person: %q", loud)
		}
	}
}

// Many writers and two relays are at work on 16 lanes when the server goes. Nothing is lost, the order of every key is kept, and
// what arrives again was not stored on the server that goes on: after a crash nothing does, as the relays remember.
func TestTheServerGoesUnderLoad(t *testing.T) {
	for name, crash := range map[string]bool{"it crashes": true, "a standby that lags is promoted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, quick(nil))
			pool := migrated(t, c)
			sink := &capture{}
			relays := newPair(t, c, pausing(sink, func() time.Duration { return rand.N(200 * time.Millisecond) }))
			next := successor{Cluster: c, cut: func() {}, begin: func() {
				if err := c.StartAgain(t.Context()); err != nil {
					t.Fatal(err)
				}
			}}
			if !crash {
				next = standbyOf(t, c, pool)
			}
			relays.start(5 * time.Second)
			waitShares(t, pool, "8 8")
			end := loaded(t, pgtest.Connect(t, relays.url), sink)
			more := func() {
				t.Helper()
				n := sink.size() + 1000
				testwait.Until(t, "more to arrive", func() bool { return sink.size() > n })
			}
			more()
			next.cut()
			more()
			pool.Close()
			relays.leave()
			if err := c.Stop(pgtemp.Immediate); err != nil {
				t.Fatal(err)
			}
			next.begin()
			pool = pgtest.Connect(t, next.URL())
			pending := idsOf(unsettled(t, pool))
			relays.reach(next.Cluster)
			more()
			end()
			history := retained(t, pool)
			history.wait(t, sink)
			settled(t, pool)
			got := sink
			if !crash {
				if err := c.StartAgain(t.Context()); err != nil {
					t.Fatal(err)
				}
				undone := retained(t, pgtest.Connect(t, c.URL())).rows()
				if got = without(sink, sink.size(), undone, history); got.size() == sink.size() {
					t.Error("nothing that was delivered has been un-committed: the test is wrong")
				}
			}
			for _, r := range history.check(t, got, pool) {
				if crash || !pending[r.id] {
					t.Errorf("arrived twice, though it was settled or remembered: %+v", r)
				}
			}
		})
	}
}

// loaded writes events of many keys from several connections until the returned function is called, never far ahead of the sink.
// Statements that fail are done with: whether they wrote anything, the table says.
func loaded(t testing.TB, pool *pgxpool.Pool, sink *capture) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var written atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if written.Load() < int64(sink.size()+2000) {
					rows, _ := tryInsert(context.WithoutCancel(ctx), pool, fmt.Sprintf("w%d-%d", w, n%10), 1+n%9)
					written.Add(int64(len(rows)))
				}
			}
		})
	}
	var once sync.Once
	end = func() { once.Do(func() { cancel(); wg.Wait() }) }
	t.Cleanup(end)
	return end
}
