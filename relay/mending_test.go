package relay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// byHand returns the statements that docs/tables.md gives operators for parked and dead events.
func byHand(t testing.TB) (retry, discard, unblock string) {
	t.Helper()
	doc, err := os.ReadFile("../docs/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)\n## By hand\n.*?```sql\n(.*?)```").FindStringSubmatch(string(doc))
	if found == nil {
		t.Fatal("docs/tables.md has no section By hand with statements")
	}
	list := strings.Split(strings.TrimSpace(found[1]), ";")
	if len(list) != 4 || list[3] != "" {
		t.Fatalf("docs/tables.md: %d statements under By hand, want 3: %q", len(list)-1, list)
	}
	return list[0], list[1], list[2]
}

// What people do to parked events by SQL: the keys' later events flow again afterwards, in order.
func TestMendingByHand(t *testing.T) {
	t.Parallel()
	retry, discard, unblock := byHand(t)
	pool := newOutbox(t)
	sink := &capture{}
	sink.setAnswer(judge(func(m relay.Message) error {
		switch key := m.Event.AggregateID; {
		case string(m.Event.Payload) != "1":
			return nil
		case strings.HasPrefix(key, "dead"):
			return relay.Permanent(errors.New("too large"))
		default:
			return relay.Retry(errors.New("not now"))
		}
	}))
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].OnDead = relay.Block
	cfg.Subscriptions[0].Backoff, cfg.Subscriptions[0].MaxBackoff = time.Hour, time.Hour
	start(t, pool, cfg)

	keys := map[string]struct {
		statement string
		want      []string
	}{
		"parked, tried again": {retry, []string{"1", "2", "3"}},
		"dead, tried again":   {retry, []string{"1", "2", "3"}},
		"parked, discarded":   {discard, []string{"2", "3"}},
		"dead, discarded":     {discard, []string{"2", "3"}},
		"dead, unblocked":     {unblock, []string{"2", "3"}},
	}
	ids := map[string]string{}
	for key := range keys {
		ids[key] = insertMany(t, pool, key, 2)[0].id.String()
	}
	testwait.Until(t, "all to be parked or dead", func() bool { return parkedRows(t, pool) == "dead 3, parked 7" })
	sink.setAnswer(nil)
	want := 0
	for key, k := range keys {
		example := regexp.MustCompile(`'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'`)
		if sql := strings.Replace(example.ReplaceAllString(k.statement, "'"+ids[key]+"'"), "'42'", "'"+key+"'", 1); sql == k.statement {
			t.Fatalf("the statement names neither an event nor a key: %s", sql)
		} else if tag, err := pool.Exec(t.Context(), sql); err != nil || tag.RowsAffected() != 1 {
			t.Fatalf("%s: %v, %d rows", sql, err, tag.RowsAffected())
		}
		insert(t, pool, key, "3")
		want += len(k.want)
	}
	sink.waitFor(t, want)
	testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, pool) == "none" })
	got := map[string][]string{}
	for _, m := range sink.messages() {
		got[m.Event.AggregateID] = append(got[m.Event.AggregateID], string(m.Event.Payload))
	}
	for key, k := range keys {
		if !slices.Equal(got[key], k.want) {
			t.Errorf("of the key %q arrived %q, want %q", key, got[key], k.want)
		}
	}
}

// afterParking calls fn once, just before a transaction that parks is committed.
type afterParking struct {
	fn func()

	mu    sync.Mutex
	parks map[*pgx.Conn]bool
	once  sync.Once
}

func (a *afterParking) TraceQueryStart(ctx context.Context, conn *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case strings.HasPrefix(q.SQL, "/* commitrelay park */"):
		a.parks[conn] = true
	case q.SQL == "commit" && a.parks[conn]:
		a.once.Do(a.fn)
	}
	return ctx
}

func (a *afterParking) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Events are parked, and nobody tells the relay. Later events of their key wait for them, and no longer.
func TestAnswerToParkingIsLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(nil))
	admin := migrated(t, c)
	proxy, err := tcpproxy.Listen(c.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	poolCfg, err := pgxpool.ParseConfig(through(t, c.URL(), proxy))
	if err != nil {
		t.Fatal(err)
	}
	committing := make(chan struct{})
	poolCfg.ConnConfig.Tracer = &afterParking{parks: map[*pgx.Conn]bool{}, fn: func() {
		proxy.PauseOpen(tcpproxy.ToClient)
		close(committing)
	}}
	pool, err := pgxpool.NewWithConfig(t.Context(), poolCfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)

	sink, book := &capture{}, &ledger{}
	sink.setAnswer(judge(func(relay.Message) error { return relay.Retry(errors.New("not now")) }))
	cfg, log := logged(t, sink)
	cfg.Lease = 0 // the default: the lane is not lost for want of renewals
	cfg.Subscriptions[0].Backoff, cfg.Subscriptions[0].MaxBackoff = time.Hour, time.Hour
	r, _ := start(t, pool, cfg)
	book.write(t, admin, "k", 2)
	testwait.Closed(t, "events to be parked", committing)
	testwait.Until(t, "the parking to be committed", func() bool { return parkedRows(t, admin) == "parked 2" })
	proxy.Cut()
	log.waitFor("PostgreSQL answers again")
	settled(t, admin)
	testwait.Until(t, "health to know the events that wait", func() bool {
		h := r.Health().Subscriptions[0]
		return h.State == relay.Delivering && h.Parked > 0
	})
	if n := r.Health().Subscriptions[0].Parked; n != 2 {
		t.Errorf("%d events wait, want 2", n)
	}
	sink.setAnswer(nil)
	mustExec(t, admin, "UPDATE commitrelay.parked SET next_attempt = now() WHERE next_attempt IS NOT NULL")
	book.wait(t, sink)
	book.write(t, admin, "k", 1)
	book.wait(t, sink)
	testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, admin) == "none" })
	book.checkOnce(t, sink, admin)
}

// A relay that cannot work says so at once, and how to mend it, and does not wait for better times.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wrong func(t *testing.T, pool *pgxpool.Pool, r *relay.Relay)
		want  []string
		is    error
	}{
		"numbers drawn ahead": {
			wrong: func(t *testing.T, pool *pgxpool.Pool, _ *relay.Relay) {
				mustExec(t, pool, "ALTER SEQUENCE outbox_events_seq CACHE 20")
			},
			want: []string{"CACHE 20", "ALTER SEQUENCE", "CACHE 1;"},
		},
		"no tables": {
			wrong: func(t *testing.T, pool *pgxpool.Pool, _ *relay.Relay) {
				if err := migrate.Uninstall(t.Context(), pool, migrate.UninstallOptions{Force: true}); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"commitrelay is not installed", "commitrelay migrate up"},
		},
		"no tables any more": {
			wrong: func(t *testing.T, pool *pgxpool.Pool, r *relay.Relay) {
				if _, err := r.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := migrate.Uninstall(t.Context(), pool, migrate.UninstallOptions{Force: true}); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"outbox_events", "commitrelay migrate up"},
			is:   store.ErrNoTable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := newOutbox(t)
			sink := &capture{}
			cfg, log := logged(t, sink)
			r, err := relay.New(pool, cfg)
			if err != nil {
				t.Fatal(err)
			}
			c.wrong(t, pool, r)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			var running sync.WaitGroup
			running.Go(func() { done <- r.Run(ctx) })
			t.Cleanup(func() { cancel(); running.Wait() })
			err = testwait.Recv(t, "Run to refuse", done)
			for _, part := range c.want {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("Run: %v; want it to say %q", err, part)
				}
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("Run: %v, want %v", err, c.is)
			}
			if lines := log.find("trying again"); len(lines) > 0 {
				t.Errorf("it was tried again: %q", lines)
			}
		})
	}
}

// Drain does not call it a success when the sink is down, even if all that is due was parked before.
func TestDrainParkedWhileTheSinkIsDown(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink := &capture{}
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].Backoff, cfg.Subscriptions[0].MaxBackoff = time.Hour, time.Hour
	r, err := relay.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	drain := func(answer, want error, delivered int) {
		t.Helper()
		sink.setAnswer(func([]relay.Message) error { return answer })
		if n, err := r.Drain(t.Context()); n != delivered || !errors.Is(err, want) {
			t.Errorf("Drain() while the sink says %v: %d, %v; want %d, %v", answer, n, err, delivered, want)
		}
	}
	insert(t, pool, "k", "1")
	drain(relay.Retry(errors.New("not now")), nil, 0)
	down := errors.New("connection refused")
	drain(down, nil, 0) // nothing is due
	for _, step := range []struct {
		answer    error
		delivered int
	}{{down, 0}, {nil, 1}} {
		mustExec(t, pool, "UPDATE commitrelay.parked SET next_attempt = now()")
		drain(step.answer, step.answer, step.delivered)
	}
	if got := fmt.Sprint(sink.payloads()); got != "[1]" {
		t.Errorf("arrived: %s, want [1]", got)
	}
}

// TestRequeuedKeepsItsOrder requeues a dead event by hand, lets a later one wait behind it and be refused itself, and inserts a
// third: it must not overtake the second.
func TestRequeuedKeepsItsOrder(t *testing.T) {
	pool := newOutbox(t)
	sink := &capture{}
	bad := map[string]error{"1": relay.Permanent(errors.New("x"))}
	sink.setAnswer(judge(func(m relay.Message) error { return bad[string(m.Event.Payload)] }))
	set := func(p string, err error) {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		bad[p] = err
	}
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].Backoff, cfg.Subscriptions[0].MaxBackoff = time.Hour, time.Hour
	start(t, pool, cfg)
	insert(t, pool, "k", "1")
	testwait.Until(t, "dead", func() bool { return parkedRows(t, pool) == "dead 1" })
	settled(t, pool)
	later := relay.Retry(errors.New("later"))
	set("1", later)
	set("2", later)
	mustExec(t, pool, "UPDATE commitrelay.parked SET state='parked', next_attempt=now()")
	testwait.Until(t, "refused again", func() bool {
		return one[bool](t, pool, "SELECT bool_and(state='parked' AND attempts=1) FROM commitrelay.parked")
	})
	insert(t, pool, "k", "2")
	testwait.Until(t, "2 rows", func() bool { return parkedRows(t, pool) == "parked 2" })
	settled(t, pool)
	set("1", nil)
	// 1 goes; 2 is refused (again); 3 must wait behind it
	mustExec(t, pool, "UPDATE commitrelay.parked SET next_attempt=now() WHERE seq = 1")
	sink.waitFor(t, 1)
	testwait.Until(t, "1 row", func() bool { return parkedRows(t, pool) == "parked 1" })
	insert(t, pool, "k", "3")
	testwait.Until(t, "2 rows wait", func() bool { return parkedRows(t, pool) == "parked 2" })
	set("2", nil)
	mustExec(t, pool, "UPDATE commitrelay.parked SET next_attempt = now() WHERE seq = 2")
	sink.waitFor(t, 3)
	if got := sink.payloads(); !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("arrived: %q, want 1, 2, 3", got)
	}
}

// TestSubscriptionDeleted takes the subscription's row away under two relays: neither may call that standing by.
func TestSubscriptionDeleted(t *testing.T) {
	pool := newOutbox(t)
	cfg, log := logged(t, &capture{})
	relays := make([]*relay.Relay, 2)
	for i := range relays {
		relays[i], _ = start(t, pool, cfg)
	}
	testwait.Until(t, "both are ready", func() bool { return relays[0].Health().Ready && relays[1].Health().Ready })
	mustExec(t, pool, "DELETE FROM commitrelay.subscriptions")
	for _, r := range relays {
		testwait.Until(t, "it says that it cannot deliver", func() bool {
			h := r.Health()
			return !h.Ready && h.Subscriptions[0].State == relay.Stopped
		})
	}
	log.waitFor("not in the database any more")
}
