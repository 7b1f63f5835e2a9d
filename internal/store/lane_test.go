package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

func TestLaneChangesHands(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	mine, theirs := d.lane, store.Lane{Subscription: "all", Owner: other}
	if mine.Epoch != 1 {
		t.Errorf("the first epoch is %d, want 1", mine.Epoch)
	}
	if held, err := d.take(t, &theirs); held || err != nil {
		t.Fatalf("another relay took a lane that is leased: %v, %v", held, err)
	}
	if held, err := d.renew(t, mine, time.Hour); !held || err != nil {
		t.Errorf("renew: %v, %v", held, err)
	}
	// Ours already: a new epoch all the same, as our last tenure may have left something in flight.
	again := mine
	if d.acquire(t, &again); again.Epoch != 2 {
		t.Errorf("taken again in epoch %d, want 2", again.Epoch)
	}
	if held, err := d.renew(t, mine, time.Hour); held || err != nil {
		t.Errorf("renewed with an old epoch: %v, %v", held, err)
	}
	if err := d.store.Release(ctx, mine); err != nil { // of an old epoch: nothing
		t.Fatal(err)
	}
	if held, err := d.take(t, &theirs); held || err != nil {
		t.Fatalf("another relay took a lane after a release that counts no more: %v, %v", held, err)
	}
	if err := d.store.Release(ctx, again); err != nil {
		t.Fatal(err)
	}
	if d.acquire(t, &theirs); theirs.Epoch != 3 {
		t.Errorf("taken after the release in epoch %d, want 3", theirs.Epoch)
	}
	// Their lease ends.
	if held, err := d.renew(t, theirs, -time.Second); !held || err != nil {
		t.Fatalf("renew: %v, %v", held, err)
	}
	if d.acquire(t, &mine); mine.Epoch != 4 {
		t.Errorf("taken after the lease in epoch %d, want 4", mine.Epoch)
	}
	if held, err := d.renew(t, theirs, time.Hour); held || err != nil {
		t.Errorf("renewed a lane that was taken over: %v, %v", held, err)
	}
}

// position is one with something in every field.
func (d *db) fullPosition(t *testing.T, h int64) *window.Position {
	t.Helper()
	r := d.position(t)
	s, err := window.ParseSnapshot("4294967290:4294967310:4294967290,4294967299")
	if err != nil {
		t.Fatal(err)
	}
	return &window.Position{
		Snapshot: s, H: h, Next: 4294967312, Floor: 17, Run: r.Run, ID: 1 + rand.Int64N(1<<62),
		Bounds: window.Bounds{
			Pairs:  []window.Pair{{Next: 4294967290, H: 5}, {Next: 18446744073709551615, H: h}},
			Raised: []window.Raised{{XID: 4294967299, H: 9}},
		},
	}
}

func TestStoreAndLoad(t *testing.T) {
	d := newDB(t, migrate.Options{})
	begin := d.load(t)
	if begin.From.ID != 0 || begin.From.Snapshot.String() != "3:3:" || begin.From.H != 0 || begin.From.Next != 3 || begin.Window != nil || begin.P != 0 {
		t.Errorf("a lane begins at %+v, window %+v", begin.From, begin.Window)
	}
	r := d.position(t)
	if reason := begin.From.Void(r); reason != "" {
		t.Errorf("the beginning is void: %s", reason)
	}

	from, to := d.fullPosition(t, 1000), d.fullPosition(t, 1<<62)
	void, end := d.fullPosition(t, 3000), d.fullPosition(t, 2000)
	catchUp := &window.CatchUp{Snapshot: "5:6:5", H: 9, SettledSnapshot: "7:7:", SettledP: 8}
	for _, open := range []window.Open{
		{From: from},
		{From: from, Window: &window.Window{From: from, To: to}, P: 1234, Ahead: []int64{1236, 1300}},
		{From: from, Window: &window.Window{From: from, To: to}, P: 1235},
		{From: to},
		{From: void, Window: &window.Window{From: void, To: end, CatchUp: catchUp}, P: 3, Ahead: []int64{5}},
	} {
		d.storeLane(t, open)
		got := d.load(t)
		want := open
		if len(got.Ahead) == 0 {
			got.Ahead = nil
		}
		if w := open.Window; w != nil {
			want.Window = &window.Window{From: w.From, To: w.To, Low: open.P, CatchUp: w.CatchUp} // Low is not kept: P is as good
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stored and loaded (-want +got):\n%s", diff)
		}
		// Row 0 stays; what no lane refers to goes.
		edges := 1
		if open.Window != nil {
			edges = 2
		}
		if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows"); n != edges+1 {
			t.Errorf("%d rows of windows, want the beginning and %d", n, edges)
		}
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows WHERE id = 0"); n != 1 {
		t.Errorf("the beginning is gone")
	}
}

// Two lanes may refer to one row.
func TestSharedEdgesStay(t *testing.T) {
	d := newDB(t, migrate.Options{})
	if _, err := d.store.Subscribe(t.Context(), store.Subscription{Name: "second", Lanes: 1, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	second := store.Lane{Subscription: "second", Owner: owner}
	d.acquire(t, &second)
	run := d.position(t).Run
	shared, later := d.fullPosition(t, 10), d.fullPosition(t, 20)
	for _, l := range []store.Lane{d.lane, second} {
		if err := d.put(t.Context(), l, run, window.Open{From: shared}); err != nil {
			t.Fatal(err)
		}
	}
	d.storeLane(t, window.Open{From: later})
	if open, _, err := d.store.Load(t.Context(), second); err != nil || open.From.H != 10 {
		t.Errorf("the other lane's position is %+v, %v", open.From, err)
	}
	if err := d.put(t.Context(), second, run, window.Open{From: later}); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows"); n != 2 {
		t.Errorf("%d rows of windows, want 2: the beginning and the shared one", n)
	}
}

// Delivery state is written only by the lane's owner, in the server run in which it was read.
func TestFencing(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	d.insert(t, "k", "x")
	events, _ := d.read(t, 10, 1<<20)
	run := d.position(t).Run
	fenced := func(what string, l store.Lane, run window.Run) {
		t.Helper()
		before := get[string](t, d.pool, "SELECT row(from_window, to_window, p, stored_at)::text FROM commitrelay.lanes")
		for _, parked := range [][]store.Parking{nil, {parking(events[0])}} {
			err := d.put(ctx, l, run, window.Open{From: d.fullPosition(t, 99)}, parked...)
			if !errors.Is(err, store.ErrFenced) {
				t.Errorf("%s, %d parked: StoreLanes: %v, want ErrFenced", what, len(parked), err)
			}
		}
		if after := get[string](t, d.pool, "SELECT row(from_window, to_window, p, stored_at)::text FROM commitrelay.lanes"); after != before {
			t.Errorf("%s: the lane was %s and is %s", what, before, after)
		}
		if n := get[int](t, d.pool, "SELECT (SELECT count(*) FROM commitrelay.windows WHERE h = 99) + (SELECT count(*) FROM commitrelay.parked)"); n != 0 {
			t.Errorf("%s: %d rows were left behind", what, n)
		}
	}
	old := d.lane
	d.acquire(t, &d.lane)
	fenced("an old epoch", old, run)
	if err := d.store.SettleParked(ctx, old, []int64{1}, nil, nil); !errors.Is(err, store.ErrFenced) {
		t.Errorf("SettleParked with an old epoch: %v, want ErrFenced", err)
	}

	d.exec(t, "UPDATE commitrelay.run SET id = gen_random_uuid()")
	fenced("another run", d.lane, run)
	d.exec(t, "DELETE FROM commitrelay.run") // as crash recovery leaves it
	fenced("no run", d.lane, run)
	now := d.position(t).Run // makes a new one
	if now.ID == run.ID || now.ID == "" {
		t.Errorf("the new run is %q, the old one was %q", now.ID, run.ID)
	}
	if err := d.put(ctx, d.lane, now, window.Open{From: d.fullPosition(t, 99)}); err != nil {
		t.Error(err)
	}
	if err := d.put(ctx, store.Lane{Subscription: "nobody", Owner: d.lane.Owner, Epoch: 1}, now, window.Open{From: d.fullPosition(t, 99)}); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a lane that is not there: %v, want ErrFenced", err)
	}
}

// A heartbeat or another owner comes between: StoreLanes waits for it, and then writes all or nothing.
func TestStoreLaneWaits(t *testing.T) {
	for name, c := range map[string]struct {
		between string
		fenced  bool
	}{
		"a renewal":     {"UPDATE commitrelay.lanes SET lease_until = lease_until + interval '1 s'", false},
		"a taking over": {"UPDATE commitrelay.lanes SET epoch = epoch + 1, owner = '" + other + "'", true},
	} {
		d := newDB(t, migrate.Options{})
		ctx := t.Context()
		run := d.position(t).Run
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, c.between); err != nil {
			t.Fatal(err)
		}
		stored := make(chan error, 1)
		open := window.Open{From: d.fullPosition(t, 99)}
		go func() { stored <- d.put(ctx, d.lane, run, open) }()
		testwait.Until(t, "StoreLanes waits for the lane's row", func() bool {
			return get[bool](t, d.pool, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')")
		})
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		err = testwait.Recv(t, "StoreLanes", stored)
		if errors.Is(err, store.ErrFenced) != c.fenced || err != nil && !c.fenced {
			t.Errorf("%s: StoreLanes: %v; fenced should be %v", name, err, c.fenced)
		}
		want := 1
		if c.fenced {
			want = 0
		}
		if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows WHERE h = 99"); n != want {
			t.Errorf("%s: %d rows of windows were written, want %d", name, n, want)
		}
	}
}

// What is stored together goes together: a position whose transaction was rolled back is not in the database, and is
// written the next time.
func TestStoreLaneAfterFailedParking(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "k", "x")
	events, _ := d.read(t, 10, 1<<20)
	d.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no room'; END $$`)
	d.exec(t, `CREATE TRIGGER refuse BEFORE INSERT ON commitrelay.parked FOR EACH ROW EXECUTE FUNCTION refuse()`)
	from, to := d.fullPosition(t, 10), d.fullPosition(t, 20)
	open := window.Open{From: from, Window: &window.Window{From: from, To: to}, P: 15}
	run := d.position(t).Run
	err := d.put(t.Context(), d.lane, run, open, parking(events[0]))
	if err == nil || !strings.Contains(err.Error(), "no room") {
		t.Fatalf("StoreLanes: %v, want the trigger's error", err)
	}
	if got := d.load(t); got.From.ID != 0 || got.Window != nil {
		t.Fatalf("the position has moved to %+v without the parked event", got.From)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows WHERE id <> 0"); n != 0 {
		t.Errorf("%d positions were left behind by what was rolled back", n)
	}
	d.exec(t, "DROP TRIGGER refuse ON commitrelay.parked")
	d.storeLane(t, open, parking(events[0]))
	if got := d.load(t); got.From.H != 10 || got.Window == nil || got.Window.To.H != 20 || got.P != 15 {
		t.Errorf("loaded %+v, window %+v", got.From, got.Window)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.parked"); n != 1 {
		t.Errorf("%d parked events, want 1", n)
	}
}

// A stored position waits for the disk, whatever the role's default is. The setting is looked at when the transaction
// commits, and the WAL is where it has been written to: nobody else writes it on this server.
func TestStoreLaneWaitsForTheDisk(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "k", "x")
	events, _ := d.read(t, 10, 1<<20)
	d.exec(t, "CREATE TABLE committed (synchronous_commit text)")
	d.exec(t, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO committed VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`)
	d.exec(t, `CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON commitrelay.lanes DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION note()`)
	for _, c := range []struct{ setting, want string }{
		{"off", "on"}, {"local", "local"}, {"on", "on"},
	} {
		d.exec(t, "TRUNCATE committed")
		cfg := d.pool.Config()
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = c.setting
		pool := connect(t, cfg)
		s := d.open(t, pool)
		run := d.position(t).Run
		for _, parked := range [][]store.Parking{nil, {parking(events[0])}} {
			before := get[string](t, d.pool, "SELECT pg_current_wal_insert_lsn()::text")
			settled := store.Settled{Lane: d.lane, Open: window.Open{From: d.fullPosition(t, 10)}}
			var err error
			if parked == nil {
				_, err = s.StoreLanes(t.Context(), run, []store.Settled{settled}, nil)
			} else {
				err = s.StoreParking(t.Context(), run, settled, parked)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !get[bool](t, d.pool, "SELECT pg_current_wal_flush_lsn() > $1::text::pg_lsn", before) {
				t.Errorf("%s, %d parked: StoreLanes has returned, and the WAL is not on disk beyond %s", c.setting, len(parked), before)
			}
			if got := get[string](t, pool, "SELECT current_setting('synchronous_commit')"); got != c.setting {
				t.Errorf("%s: the session's setting has become %s", c.setting, got)
			}
		}
		if got := get[string](t, d.pool, "SELECT string_agg(synchronous_commit, ' ') FROM committed"); got != c.want+" "+c.want {
			t.Errorf("%s: committed with %s, want %s", c.setting, got, c.want)
		}
	}
}

func TestLoadOfADroppedSubscription(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.exec(t, "DELETE FROM commitrelay.subscriptions")
	if _, _, err := d.store.Load(context.Background(), d.lane); err == nil || !strings.Contains(err.Error(), `"all"`) {
		t.Errorf("error %v, want one that names the subscription", err)
	}
}
