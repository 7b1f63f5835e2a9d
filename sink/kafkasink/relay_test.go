package kafkasink

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// newOutbox is a new database with the tables in it.
func newOutbox(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := migrate.Up(t.Context(), pool, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	return pool
}

func mustExec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// deliverTo runs a relay until the test ends. Its topic is the sink's default, the aggregate type.
func deliverTo(t *testing.T, pool *pgxpool.Pool, s *Sink) {
	t.Helper()
	r, err := relay.New(pool, relay.Config{Subscriptions: []relay.Subscription{{
		Name: "all", Sink: s, Backoff: 100 * time.Millisecond, MaxBackoff: time.Second,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := testwait.Recv(t, "the relay stops", done); err != nil {
			t.Errorf("the relay: %v", err)
		}
	})
}

// distinct is the number of different events that have arrived.
func (r *reader) distinct() int {
	seen := map[string]bool{}
	for _, id := range r.ids() {
		seen[id] = true
	}
	return len(seen)
}

// Half of the events are for a topic that does not exist, and none is created. The others arrive;
// these are kept, with the topic's name, and delivered once it exists.
func TestARelayAndAMissingTopic(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	b := newBroker(t, brokerURL(t))
	ok, missing := b.topic("ok", 3), b.name+"missing"
	arrived := b.read(ok)
	mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT CASE i % 2 WHEN 0 THEN $1 ELSE $2 END, (i / 10)::text, 'made', '{}' FROM generate_series(1, 2000) i`, ok, missing)
	deliverTo(t, pool, open(t, Config{URL: brokerURL(t)}))
	testwait.Until(t, "those for the other topic arrive", func() bool { return len(arrived.records()) >= 1000 })
	testwait.Until(t, "the others are kept with the reason", func() bool {
		return number(t, pool, `SELECT count(*) FROM commitrelay.parked WHERE aggregate_type = $1 AND attempts = 0`, missing) == 1000 &&
			number(t, pool, `SELECT count(*) FROM commitrelay.parked WHERE state = 'dead'`) == 0 &&
			number(t, pool, `SELECT count(*) FROM commitrelay.events WHERE last_error LIKE '%' || $1 || '%does not exist%'`, missing) > 0
	})
	b.topic("missing", 1)
	late := b.read(missing)
	testwait.Until(t, "they arrive once the topic exists", func() bool { return late.distinct() == 1000 })
	testwait.Until(t, "none is kept any more", func() bool { return number(t, pool, `SELECT count(*) FROM commitrelay.parked`) == 0 })
	if n, m := len(arrived.records()), len(late.records()); n != 1000 || m != 1000 {
		t.Errorf("%d and %d records arrived, want 1000 each", n, m)
	}
}

// Many events become due at the same moment, and three relays are there to deliver them over a slow
// network: each arrives once.
func TestThreeRelaysAndABacklog(t *testing.T) {
	t.Parallel()
	const events = 10_000
	pool := newOutbox(t)
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 4)
	arrived := b.read(topic)
	mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT $1, (i % 500)::text, 'made', '{}' FROM generate_series(1, $2) i`, topic, events)
	for range 3 {
		px := newProxy(t, b.addr)
		px.Delay(15 * time.Millisecond) // each way
		s := open(t, Config{URL: brokerURL(t)})
		through(s, px)
		deliverTo(t, pool, s)
	}
	testwait.Until(t, "all arrive", func() bool { return arrived.distinct() == events })
	testwait.Until(t, "all is settled", func() bool {
		return number(t, pool, `SELECT count(*) FROM commitrelay.events WHERE status <> 'PUBLISHED'`) == 0
	})
	offsets, err := b.admin.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	stored := int64(0)
	for _, o := range offsets[topic] {
		stored += o.Offset
	}
	if stored != events {
		t.Errorf("the topic holds %d records, want %d", stored, events)
	}
}
