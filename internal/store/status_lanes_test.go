package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

// status reads the status of one subscription.
func (d *db) status(t testing.TB, name string) store.SubscriptionStatus {
	t.Helper()
	st, err := d.store.ReadStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st.Subscriptions {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no subscription %s", name)
	panic("unreachable")
}

// Lanes that stand far apart: each is looked at from where it stands, and what is counted is right.
func TestReadStatusOfScatteredLanes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "some", 4)
	const events = 45_000
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) SELECT 'user', g::text, 'C' FROM generate_series(1, $1::integer) AS g`, events)
	d.exec(t, `INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, bounds, run)
		SELECT 7, s, $1::bigint, pg_snapshot_xmax(s), jsonb_build_object('pairs', jsonb_build_array(jsonb_build_object('n', pg_snapshot_xmax(s), 'h', $1::bigint))), run
		FROM commitrelay.windows, pg_current_snapshot() AS s WHERE id = 0`, events)
	at := []int64{1_000, 15_000, 15_500, 44_000}
	for lane, p := range at {
		d.exec(t, `UPDATE commitrelay.lanes SET to_window = 7, p = $2::bigint WHERE subscription = 'some' AND lane = $1::integer`, lane, p)
	}
	look := []struct {
		upTo int64
		more bool
	}{{11_000, true}, {25_500, true}, {25_500, true}, {events, false}}
	s := d.status(t, "some")
	if len(s.Lanes) != 4 {
		t.Fatalf("%d lanes", len(s.Lanes))
	}
	for i, l := range s.Lanes {
		want := get[int64](t, d.pool, `SELECT count(*) FROM commitrelay.events
			WHERE subscription = 'some' AND lane = $1 AND status = 'PENDING' AND seq <= $2`, i, look[i].upTo)
		if l.Lane != i || l.Position != at[i] || l.Window != events || l.Pending != want || l.More != look[i].more || l.Lag <= 0 {
			t.Errorf("lane %d: %+v, want %d pending up to %d", i, l, want, look[i].upTo)
		}
	}

	// One without anything to do has no lag, whatever waits in the others.
	d.exec(t, `UPDATE commitrelay.lanes SET from_window = 7, to_window = NULL WHERE subscription = 'some' AND lane = 3`)
	if l := d.status(t, "some").Lanes[3]; l.Pending != 0 || l.More || l.Lag != 0 || l.Position != events {
		t.Errorf("the lane that has settled all: %+v", l)
	}
}

// All lanes close to each other are counted at once, however many there are.
func TestReadStatusOfManyLanes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "some", 1024)
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) SELECT 'user', g::text, 'C' FROM generate_series(1, 1000) AS g`)
	var sum int64
	for i, l := range d.status(t, "some").Lanes {
		if l.More || l.Lane != i {
			t.Fatalf("%+v", l)
		}
		sum += l.Pending
	}
	if sum != 1000 {
		t.Errorf("%d events are pending, want 1000", sum)
	}
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) VALUES ('user', 'late', 'C')`)
	for _, l := range d.status(t, "some").Lanes {
		if !l.More {
			t.Fatalf("%+v: there is more than is looked at", l)
		}
	}
}

// What relays are asked for shows.
func TestReadStatusOfRequests(t *testing.T) {
	d := newDB(t, migrate.Options{})
	if s := d.status(t, "all"); s.Paused || s.Wanted != 0 {
		t.Errorf("nothing was asked for: %+v", s)
	}
	d.exec(t, "UPDATE commitrelay.subscriptions SET paused = true, lanes_wanted = 4")
	if s := d.status(t, "all"); !s.Paused || s.Wanted != 4 {
		t.Errorf("paused, and 4 lanes are wanted: %+v", s)
	}
	for i, topic := range []string{"a", "b"} {
		err := d.store.Register(t.Context(), store.RelayInfo{
			ID: relayID(i), Host: "h", Version: "v", Subscriptions: []string{"all"}, Lease: 1e12, Health: []byte("{}"),
			Configurations: map[string]store.Subscription{"all": {Sink: "bus", Topic: topic}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	d.exec(t, `INSERT INTO commitrelay.relays (id, host, pid, version, subscriptions, lease, configurations) VALUES ($1, 'old', 3, 'v0', '{all}', '1h', '[1]')`, relayID(9))
	relays, err := d.store.Relays(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, r := range relays {
		fmt.Fprintf(&got, "%s %q %v; ", r.Host, r.Configurations["all"].Topic, r.Serves("all"))
	}
	if want := `h "a" true; h "b" true; old "" true; `; got.String() != want {
		t.Errorf("configurations: got %s, want %s", got.String(), want)
	}
}
