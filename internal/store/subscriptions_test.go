package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
)

func TestPauseAndWantLanes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	d.subscribe(t, "other", 1)
	for _, c := range []struct{ paused, was bool }{{true, false}, {true, true}, {false, true}, {false, false}} {
		was, found, err := d.store.Pause(ctx, "all", c.paused)
		if err != nil || !found || was != c.was {
			t.Errorf("Pause(%v): was %v, found %v, %v; want it to have been %v", c.paused, was, found, err, c.was)
		}
		if is := get[bool](t, d.pool, "SELECT paused FROM commitrelay.subscriptions WHERE name = 'all'"); is != c.paused {
			t.Errorf("Pause(%v): it is %v", c.paused, is)
		}
	}
	for _, c := range []struct{ ask, wanted int }{{16, 16}, {4, 4}, {1, 0}, {1, 0}} {
		present, found, err := d.store.WantLanes(ctx, "all", c.ask)
		if err != nil || !found || present != 1 {
			t.Errorf("WantLanes(%d): %d, %v, %v", c.ask, present, found, err)
		}
		if wanted := get[int](t, d.pool, "SELECT coalesce(lanes_wanted, 0) FROM commitrelay.subscriptions WHERE name = 'all'"); wanted != c.wanted {
			t.Errorf("WantLanes(%d): %d are wanted, want %d", c.ask, wanted, c.wanted)
		}
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.subscriptions WHERE name = 'other' AND NOT paused AND lanes_wanted IS NULL"); n != 1 {
		t.Errorf("the other subscription was changed as well")
	}
	if _, found, err := d.store.Pause(ctx, "nobody's", true); found || err != nil {
		t.Errorf("Pause of what is not there: %v, %v", found, err)
	}
	if _, found, err := d.store.WantLanes(ctx, "nobody's", 2); found || err != nil {
		t.Errorf("WantLanes of what is not there: %v, %v", found, err)
	}
}

// Whoever has paused a subscription can rely on it that nobody takes lanes from then on: not on a snapshot from before, either.
func TestAcquireOfWhatIsBeingPaused(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "some", 8)
	for _, pausing := range []bool{true, false} {
		tx, err := d.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context()))
		if _, err := tx.Exec(t.Context(), "UPDATE commitrelay.subscriptions SET paused = $1 WHERE name = 'some'", pausing); err != nil {
			t.Fatal(err)
		}
		if lanes := d.acquireAll(t, "some"); len(lanes) > 0 {
			t.Errorf("while paused = %v is being written: lanes %v were taken", pausing, numbers(lanes))
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		lanes := d.acquireAll(t, "some")
		if want := map[bool]int{true: 0, false: 8}[pausing]; len(lanes) != want {
			t.Errorf("paused = %v: lanes %v were taken, want %d", pausing, numbers(lanes), want)
		}
	}
}

const parkSome = `INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at)
	SELECT $1, 0, s, 1, 't', 1000 + i, gen_random_uuid(), 'a', '1', 'C', now() FROM unnest(ARRAY['dead', 'parked', 'sending']) WITH ORDINALITY AS x (s, i)`

func TestSubscriptions(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "some", 8)
	d.exec(t, parkSome, "some")
	d.exec(t, "UPDATE commitrelay.subscriptions SET lanes_wanted = 2, paused = true WHERE name = 'some'")
	got, err := d.store.Subscriptions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []store.SubscriptionInfo{
		{Name: "all", OnDead: "continue", Lanes: 1, Wanted: 1},
		{Name: "some", OnDead: "continue", Lanes: 8, Wanted: 2, Paused: true, Parked: 2, Dead: 1},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(store.SubscriptionInfo{}, "CreatedAt")); diff != "" {
		t.Errorf("subscriptions (-want +got):\n%s", diff)
	}
	if age := time.Since(got[0].CreatedAt); age < -time.Hour || age > time.Hour {
		t.Errorf("made at %v", got[0].CreatedAt)
	}
}

func TestDrop(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	d.subscribe(t, "some", 4)
	for _, k := range []string{"a", "b", "c"} {
		d.insert(t, k, "x")
	}
	for _, name := range []string{"some", "all"} {
		d.exec(t, parkSome, name)
	}
	for i, subs := range [][]string{{"all", "some"}, {"all"}, {"some"}} {
		if err := d.store.Register(ctx, store.RelayInfo{ID: relayID(i), Host: "h", PID: i, Version: "v", Subscriptions: subs, Lease: time.Hour, Health: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	d.exec(t, "UPDATE commitrelay.relays SET heartbeat_at = now() - interval '2h' WHERE pid = 2")

	refused := errors.New("refused")
	var told store.Dropping
	found, err := d.store.Drop(ctx, "some", func(g store.Dropping) error { told = g; return refused })
	if !found || !errors.Is(err, refused) {
		t.Errorf("refused: %v, %v", found, err)
	}
	if told.Pending != 3 || told.More || told.Parked != 2 || told.Dead != 1 || len(told.Relays) != 1 || told.Relays[0].PID != 0 {
		t.Errorf("what goes with it: %+v", told)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.lanes WHERE subscription = 'some'"); n != 4 {
		t.Errorf("%d lanes are left of what was not dropped", n)
	}

	// A relay that begins meanwhile waits, and makes it anew.
	began := make(chan error, 1)
	found, err = d.store.Drop(ctx, "some", func(store.Dropping) error {
		go func() {
			was, err := d.store.Subscribe(context.WithoutCancel(ctx), store.Subscription{Name: "some", Lanes: 2, OnDead: "continue"}, false)
			if err == nil && !was.New {
				err = errors.New("it found the one that was being dropped")
			}
			began <- err
		}()
		testwait.Until(t, "the relay to wait", func() bool {
			return get[bool](t, d.pool, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE '%subscribe %'")
		})
		return nil
	})
	if !found || err != nil {
		t.Errorf("dropped: %v, %v", found, err)
	}
	if err := testwait.Recv(t, "the relay to begin", began); err != nil {
		t.Error(err)
	}
	left := get[string](t, d.pool, `SELECT concat_ws(' ',
		(SELECT count(*) FROM commitrelay.lanes WHERE subscription = 'some'), (SELECT count(*) FROM commitrelay.parked WHERE subscription = 'some'),
		(SELECT count(*) FROM commitrelay.lanes WHERE subscription = 'all'), (SELECT count(*) FROM commitrelay.parked WHERE subscription = 'all'),
		(SELECT count(*) FROM outbox_events))`)
	if left != "2 0 1 3 3" {
		t.Errorf("what is left is %s", left)
	}
	if found, err := d.store.Drop(ctx, "nobody's", func(store.Dropping) error { t.Error("asked"); return nil }); found || err != nil {
		t.Errorf("of what is not there: %v, %v", found, err)
	}
}
