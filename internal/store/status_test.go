package store_test

import (
	"context"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestReadStatus(t *testing.T) {
	ctx := t.Context()
	pool := pgtest.Pool(t)
	if err := migrate.Up(ctx, pool, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(ctx, pool, ident.Table{Name: "outbox_events"}, "commitrelay")
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []store.Subscription{
		{Name: "all", Lanes: 1, Sink: "bus", Topic: "{event_type}", OnDead: "continue"},
		{Name: "some", Lanes: 1, EventTypes: []string{"B*"}, Sink: "bus", Topic: "x", OnDead: "block"},
	} {
		if _, err := st.Subscribe(ctx, sub, false); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, created_at)
		SELECT 'a', i::text, CASE WHEN i < 3 THEN 'Bx' ELSE 'C' END, c::timestamptz
		FROM unnest(ARRAY['now', 'infinity', '-infinity', '4714-11-24 00:00:00+00 BC', '294276-12-31 23:59:59+00', 'now']) WITH ORDINALITY AS x (c, i)`)
	read := func() store.Status {
		t.Helper()
		s, err := st.ReadStatus(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range s.Subscriptions {
			for _, l := range sub.Lanes {
				if math.IsNaN(l.Lag) || math.IsInf(l.Lag, 0) || l.Lag < 0 || l.Lag > 3600 {
					t.Errorf("%s: lag is %v", sub.Name, l.Lag)
				}
			}
		}
		return s
	}
	want := store.Status{Subscriptions: []store.SubscriptionStatus{
		{Name: "all", Sink: "bus", Topic: "{event_type}", OnDead: "continue", AggregateTypes: []string{}, EventTypes: []string{}, Lanes: []store.LaneStatus{{Pending: 6}}},
		{Name: "some", Sink: "bus", Topic: "x", OnDead: "block", AggregateTypes: []string{}, EventTypes: []string{"B*"}, Lanes: []store.LaneStatus{{Pending: 2}}},
	}}
	diff := func(want store.Status) {
		t.Helper()
		ignore := cmpopts.IgnoreFields(store.LaneStatus{}, "Stored", "Lag")
		if d := cmp.Diff(want, read(), ignore, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(store.RelayStatus{}, "Up", "HeartbeatAge")); d != "" {
			t.Errorf("status (-want +got):\n%s", d)
		}
	}
	diff(want)

	// Of a window in progress, what is up to p and ahead of it is settled.
	exec(t, pool, `INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, run) SELECT 1, pg_current_snapshot(), 6, pg_current_xact_id(), run FROM commitrelay.windows WHERE id = 0`)
	exec(t, pool, `UPDATE commitrelay.lanes SET to_window = (SELECT max(id) FROM commitrelay.windows), p = 2, ahead = '{4}' WHERE subscription = 'all'`)
	want.Subscriptions[0].Lanes[0] = store.LaneStatus{Pending: 3, Position: 2, Window: 6}
	diff(want)

	// A relay that is alive, and one that is not.
	for _, r := range []store.RelayInfo{{ID: "00000000-0000-4000-8000-000000000001", Host: "h", PID: 7, Version: "v1", Subscriptions: []string{"all"}, Lease: 1e10, Health: []byte(`{"ready":true}`)}} {
		if err := st.Register(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, `INSERT INTO commitrelay.relays (id, host, pid, version, subscriptions, lease, heartbeat_at) VALUES ('00000000-0000-4000-8000-000000000002', 'g', 8, 'v1', '{}', '1s', now() - interval '1h')`)
	want.Relays = []store.RelayStatus{
		{ID: "00000000-0000-4000-8000-000000000001", Host: "h", PID: 7, Version: "v1", Subscriptions: []string{"all"}, Alive: true, Health: []byte(`{"ready": true}`)},
		{ID: "00000000-0000-4000-8000-000000000002", Host: "g", PID: 8, Version: "v1", Health: []byte(`{}`)},
	}
	exec(t, pool, `INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at)
		SELECT 'all', 0, s, 1, 't', 1000 + i, gen_random_uuid(), 'a', '1', 'C', 'infinity' FROM unnest(ARRAY['dead', 'parked', 'sending']) WITH ORDINALITY AS x (s, i)`)
	want.Subscriptions[0].Lanes[0].Parked, want.Subscriptions[0].Lanes[0].Dead = 2, 1
	diff(want)
}

// An event of a transaction that was running when the position was read has a lower number than the position, and
// counts once it is committed. More than is looked at is said to be more.
func TestReadStatusLateAndMany(t *testing.T) {
	ctx := t.Context()
	pool := pgtest.Pool(t)
	if err := migrate.Up(ctx, pool, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(ctx, pool, ident.Table{Name: "outbox_events"}, "commitrelay")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Subscribe(ctx, store.Subscription{Name: "all", Lanes: 1, Sink: "bus", Topic: "x", OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	insert := `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) SELECT 'a', 'b', 'C' FROM generate_series(1, $1)`
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, insert, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, insert, 3); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, run) SELECT 1, pg_current_snapshot(), 5, pg_snapshot_xmax(pg_current_snapshot()), run FROM commitrelay.windows WHERE id = 0`)
	exec(t, pool, `UPDATE commitrelay.lanes SET from_window = (SELECT max(id) FROM commitrelay.windows)`)
	lane := func() store.LaneStatus {
		t.Helper()
		s, err := st.ReadStatus(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.Subscriptions[0].Lanes[0]
	}
	if l := lane(); l.Pending != 0 || l.More || l.Lag != 0 {
		t.Errorf("while the writer is at work: %+v", l)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if l := lane(); l.Pending != 2 || l.More || l.Lag <= 0 {
		t.Errorf("after its commit: %+v", l)
	}
	if _, err := pool.Exec(ctx, insert, 10_000); err != nil {
		t.Fatal(err)
	}
	if l := lane(); l.Pending != 10_002 || l.More {
		t.Errorf("with as many as are counted: %+v", l)
	}
	if _, err := pool.Exec(ctx, insert, 1); err != nil {
		t.Fatal(err)
	}
	if l := lane(); l.Pending != 10_002 || !l.More {
		t.Errorf("with one more: %+v", l)
	}
}
