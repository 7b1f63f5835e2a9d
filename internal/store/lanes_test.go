package store_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

// subscribe makes another subscription with so many lanes.
func (d *db) subscribe(t testing.TB, name string, lanes int) {
	t.Helper()
	if _, err := d.store.Subscribe(t.Context(), store.Subscription{Name: name, Lanes: lanes, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
}

// acquireAll takes all free lanes of a subscription, by number.
func (d *db) acquireAll(t testing.TB, name string) []store.Lane {
	t.Helper()
	lanes, err := d.store.Acquire(t.Context(), name, owner, 1024, time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(lanes, func(a, b store.Lane) int { return a.Lane - b.Lane })
	return lanes
}

func numbers(lanes []store.Lane) (list []int) {
	for _, l := range lanes {
		list = append(list, l.Lane)
	}
	slices.Sort(list)
	return list
}

func relayID(i int) string { return fmt.Sprintf("00000000-0000-7000-8000-0000000001%02d", i) }

// However many relays ask at once, each lane goes to one of them, and none gets more than it asked for.
func TestAcquireByManyAtOnce(t *testing.T) {
	d := newDB(t, migrate.Options{})
	const lanes, relays, each = 64, 8, 11
	d.subscribe(t, "many", lanes)
	for round := range 4 {
		if round == 2 {
			d.exec(t, "ANALYZE") // the plan may be another one
		}
		d.exec(t, "UPDATE commitrelay.lanes SET owner = NULL, lease_until = NULL WHERE subscription = 'many'")
		before := get[int64](t, d.pool, "SELECT sum(epoch)::bigint FROM commitrelay.lanes WHERE subscription = 'many'")
		got, errs := make([][]store.Lane, relays), make([]error, relays)
		var asking sync.WaitGroup
		for i := range relays {
			asking.Go(func() {
				for range 3 { // what others were taking is left to them, so ask again
					var more []store.Lane
					more, errs[i] = d.store.Acquire(t.Context(), "many", relayID(i), each-len(got[i]), time.Hour, numbers(got[i]))
					if got[i] = append(got[i], more...); errs[i] != nil || len(got[i]) == each {
						return
					}
				}
			})
		}
		asking.Wait()
		owner := map[int]string{}
		for i, list := range got {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			if len(list) > each {
				t.Errorf("relay %d got %d lanes, and asked for %d", i, len(list), each)
			}
			for _, l := range list {
				if owner[l.Lane] != "" {
					t.Errorf("lane %d went to %s and to %s", l.Lane, owner[l.Lane], l.Owner)
				}
				owner[l.Lane] = l.Owner
				var held string
				var epoch int64
				err := d.pool.QueryRow(t.Context(), "SELECT owner::text, epoch FROM commitrelay.lanes WHERE subscription = 'many' AND lane = $1", l.Lane).Scan(&held, &epoch)
				if err != nil || held != l.Owner || epoch != l.Epoch {
					t.Errorf("lane %d is %s's in epoch %d, was given to %s in epoch %d: %v", l.Lane, held, epoch, l.Owner, l.Epoch, err)
				}
			}
		}
		if after := get[int64](t, d.pool, "SELECT sum(epoch)::bigint FROM commitrelay.lanes WHERE subscription = 'many'"); after != before+int64(len(owner)) {
			t.Errorf("%d epochs have begun, for %d lanes", after-before, len(owner))
		}
	}
}

func TestAcquire(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	d.subscribe(t, "some", 8)
	take := func(owner string, n int, except ...int) []int {
		t.Helper()
		lanes, err := d.store.Acquire(ctx, "some", owner, n, time.Hour, except)
		if err != nil {
			t.Fatal(err)
		}
		return numbers(lanes)
	}
	if got := take(owner, 3, 0, 1, 2, 3, 4); !slices.Equal(got, []int{5, 6, 7}) {
		t.Errorf("all but the first five: %v", got)
	}
	if got := take(other, 8); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("what is free: %v", got)
	}
	if got := take(other, 0); len(got) != 0 {
		t.Errorf("none was asked for: %v", got)
	}
	// One's own come first: those of a tenure that ended without giving them back.
	d.exec(t, "UPDATE commitrelay.lanes SET owner = NULL WHERE subscription = 'some' AND lane < 5")
	for range 5 {
		if got := take(owner, 3); !slices.Equal(got, []int{5, 6, 7}) {
			t.Errorf("own lanes first: %v", got)
		}
	}
	// A lease that has run out.
	d.exec(t, "UPDATE commitrelay.lanes SET lease_until = now() - interval '1 ms' WHERE subscription = 'some' AND lane = 6")
	if got := take(other, 8, 0, 1, 2, 3, 4); !slices.Equal(got, []int{6}) {
		t.Errorf("the one whose lease is over: %v", got)
	}
	if lanes, err := d.store.Acquire(ctx, "nobody's", owner, 3, time.Hour, nil); err != nil || len(lanes) != 0 {
		t.Errorf("of a subscription that is not there: %v, %v", lanes, err)
	}
}

// An epoch is on disk before it is used, whatever the role's default is.
func TestAcquireWaitsForTheDisk(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.exec(t, "CREATE TABLE committed (synchronous_commit text)")
	d.exec(t, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO committed VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`)
	d.exec(t, `CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON commitrelay.lanes DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION note()`)
	for _, c := range []struct{ setting, want string }{{"off", "on"}, {"local", "local"}, {"on", "on"}} {
		d.exec(t, "TRUNCATE committed")
		cfg := d.pool.Config()
		cfg.ConnConfig.RuntimeParams["synchronous_commit"] = c.setting
		pool := connect(t, cfg)
		before := get[string](t, d.pool, "SELECT pg_current_wal_insert_lsn()::text")
		lanes, err := d.open(t, pool).Acquire(t.Context(), "all", owner, 1, time.Hour, nil)
		if err != nil || len(lanes) != 1 {
			t.Fatalf("acquired %v, %v", lanes, err)
		}
		if !get[bool](t, d.pool, "SELECT pg_current_wal_flush_lsn() > $1::text::pg_lsn", before) {
			t.Errorf("%s: Acquire has returned, and the WAL is not on disk beyond %s", c.setting, before)
		}
		if got := get[string](t, pool, "SELECT current_setting('synchronous_commit')"); got != c.setting {
			t.Errorf("%s: the session's setting has become %s", c.setting, got)
		}
		if got := get[string](t, d.pool, "SELECT string_agg(synchronous_commit, ' ') FROM committed"); got != c.want {
			t.Errorf("%s: committed with %s, want %s", c.setting, got, c.want)
		}
	}
}

func TestRenewSeveral(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "a", 2)
	d.subscribe(t, "b", 2)
	lanes := append(d.acquireAll(t, "a"), d.acquireAll(t, "b")...)
	d.exec(t, "UPDATE commitrelay.lanes SET owner = $1, epoch = epoch + 1 WHERE subscription = 'a' AND lane = 1", other)
	stale := lanes[3]
	stale.Epoch--
	d.exec(t, "UPDATE commitrelay.lanes SET lease_until = now()")
	renewed, err := d.store.Renew(t.Context(), owner, []store.Lane{lanes[0], lanes[1], lanes[2], stale}, time.Hour)
	if want := map[store.Lane]bool{lanes[0]: true, lanes[2]: true}; err != nil || !maps.Equal(renewed, want) {
		t.Errorf("renewed %v, %v; want %v", renewed, err, want)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.lanes WHERE lease_until > now() + interval '30 min'"); n != 2 {
		t.Errorf("%d leases were prolonged, want 2", n)
	}
	if renewed, err := d.store.Renew(t.Context(), owner, nil, time.Hour); err != nil || len(renewed) != 0 {
		t.Errorf("of no lane: %v, %v", renewed, err)
	}
}

// Lanes are stored together. Those that are another relay's by now stay as they are, and keep what they refer to.
func TestStoreSeveralLanes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	d.subscribe(t, "some", 4)
	lanes := d.acquireAll(t, "some")
	run := d.position(t).Run
	a, b, c := d.fullPosition(t, 10), d.fullPosition(t, 20), d.fullPosition(t, 30)
	void, quiet := d.fullPosition(t, 40), d.fullPosition(t, 5)
	catchUp := &window.CatchUp{Snapshot: "5:6:5", H: 9}
	opens := []window.Open{
		{From: a},
		{From: a, Window: &window.Window{From: a, To: b}, P: 15, Ahead: []int64{17, 18}},
		{From: b, Window: &window.Window{From: b, To: c}, P: 25},
		{From: void, Window: &window.Window{From: void, To: quiet, CatchUp: catchUp}, P: 3},
	}
	put := func(opens []window.Open, gone ...*window.Position) map[int]bool {
		t.Helper()
		var rows []store.Settled
		for i, o := range opens {
			rows = append(rows, store.Settled{Lane: lanes[i], Open: o})
		}
		var ids []int64
		for _, p := range gone {
			ids = append(ids, p.ID)
		}
		stored, err := d.store.StoreLanes(ctx, run, rows, ids)
		if err != nil {
			t.Fatal(err)
		}
		return stored
	}
	loaded := func(i int) window.Open {
		t.Helper()
		open, _, err := d.store.Load(ctx, lanes[i])
		if err != nil {
			t.Fatalf("lane %d: %v", i, err)
		}
		return open
	}
	rows := func(want int, when string) {
		t.Helper()
		if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows WHERE id <> 0"); n != want {
			t.Errorf("%s: %d positions, want %d", when, n, want)
		}
	}

	same(t, "stored", map[int]bool{0: true, 1: true, 2: true, 3: true}, put(opens))
	rows(5, "each once")
	for i, o := range opens {
		got := loaded(i)
		if got.From.ID != o.From.ID || got.P != o.P || !slices.Equal(got.Ahead, o.Ahead) || (got.Window == nil) != (o.Window == nil) {
			t.Errorf("lane %d is %+v, want %+v", i, got, o)
		}
		if w := o.Window; w != nil && (got.Window.To.ID != w.To.ID || (got.Window.CatchUp == nil) != (w.CatchUp == nil) || w.CatchUp != nil && *got.Window.CatchUp != *w.CatchUp) {
			t.Errorf("lane %d is in the window %+v, want %+v", i, got.Window, w)
		}
	}

	// Two of them are taken over. All go on to c, and nothing else is needed: but those two refer to a, b, void and quiet.
	d.exec(t, "UPDATE commitrelay.lanes SET owner = $1, epoch = epoch + 1 WHERE subscription = 'some' AND lane IN (1, 3)", other)
	at := window.Open{From: c}
	same(t, "stored without those of another relay", map[int]bool{0: true, 2: true}, put([]window.Open{at, at, at, at}, a, b, void, quiet))
	rows(5, "all are referred to")
	if open := loaded(1); open.From.ID != a.ID || open.Window.To.ID != b.ID || open.P != 15 {
		t.Errorf("lane 1 was another's, and is %+v", open)
	}
	if open := loaded(3); open.Window.CatchUp == nil || open.P != 3 {
		t.Errorf("lane 3 was another's, and is %+v", open)
	}
	if open := loaded(2); open.From.ID != c.ID || open.Window != nil || open.P != 0 {
		t.Errorf("lane 2 is %+v, want it at %d", open, c.ID)
	}

	// They come back, catch up, and what nobody refers to goes.
	d.exec(t, "UPDATE commitrelay.lanes SET owner = NULL WHERE subscription = 'some'")
	lanes = d.acquireAll(t, "some")
	put([]window.Open{at, at, at, at}, a, b, void, quiet)
	rows(1, "all stand at one position")
	if open := loaded(3); open.Window != nil || get[int](t, d.pool, "SELECT count(*) FROM commitrelay.lanes WHERE catch_up IS NOT NULL") != 0 {
		t.Errorf("lane 3 still catches up: %+v", open)
	}
	// What is stored is not gone, whoever says so; nor is the beginning.
	put([]window.Open{at, {From: a}, {From: a, Window: &window.Window{From: a, To: b}}, at}, a, b, c, &window.Position{ID: 0})
	rows(3, "named as gone while they are stored")
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.windows WHERE id = 0"); n != 1 {
		t.Errorf("the beginning is gone")
	}
	for i := range lanes {
		loaded(i)
	}
	// In another run nothing is stored.
	run.ID = "00000000-0000-4000-8000-000000000000"
	same(t, "stored in another run", map[int]bool{}, put([]window.Open{{From: void}, at, at, at}, a, b))
	rows(3, "in another run")
}

// Two relays that store what they hold of one subscription, in whatever order, do not wait for each other for ever.
func TestStoresOfManyLanesMeet(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "some", 16)
	lanes := d.acquireAll(t, "some")
	run := d.position(t).Run
	done := make(chan error, 3)
	for i := range 2 {
		go func() {
			for range 30 {
				var rows []store.Settled
				at := d.fullPosition(t, 10)
				for k := range lanes {
					if i == 1 {
						k = len(lanes) - 1 - k
					}
					rows = append(rows, store.Settled{Lane: lanes[k], Open: window.Open{From: at}})
				}
				if stored, err := d.store.StoreLanes(context.WithoutCancel(t.Context()), run, rows, nil); err != nil || len(stored) != len(lanes) {
					done <- fmt.Errorf("stored %d lanes: %w", len(stored), err)
					return
				}
			}
			done <- nil
		}()
	}
	go func() {
		for range 30 {
			turned := slices.Clone(lanes)
			slices.Reverse(turned)
			if renewed, err := d.store.Renew(context.WithoutCancel(t.Context()), owner, turned, time.Hour); err != nil || len(renewed) != len(lanes) {
				done <- fmt.Errorf("renewed %d lanes: %w", len(renewed), err)
				return
			}
		}
		done <- nil
	}()
	for range 3 {
		if err := testwait.Recv(t, "stores and renewals", done); err != nil {
			t.Error(err)
		}
	}
}

func TestSweep(t *testing.T) {
	d := newDB(t, migrate.Options{})
	used, to, young, old := d.fullPosition(t, 1), d.fullPosition(t, 2), d.fullPosition(t, 3), d.fullPosition(t, 4)
	run := d.position(t).Run
	for _, open := range []window.Open{{From: young}, {From: old}, {From: used, Window: &window.Window{From: used, To: to}}} {
		stored, err := d.store.StoreLanes(t.Context(), run, []store.Settled{{Lane: d.lane, Open: open}}, nil)
		if err != nil || !stored[0] {
			t.Fatal(stored, err)
		}
	}
	d.exec(t, "UPDATE commitrelay.windows SET created_at = now() - interval '61 min' WHERE id <> $1", young.ID)
	if err := d.store.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	same(t, "what is left", "0 1 2 3", get[string](t, d.pool, "SELECT string_agg(h::text, ' ' ORDER BY h) FROM commitrelay.windows"))
}

func TestShare(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	d.subscribe(t, "some", 8)
	alive := func(i int, started string, subscriptions ...string) {
		t.Helper()
		err := d.store.Register(ctx, store.RelayInfo{ID: relayID(i), Host: "h", PID: i, Version: "v", Subscriptions: subscriptions, Lease: time.Hour, Health: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		d.exec(t, "UPDATE commitrelay.relays SET started_at = $2::text::timestamptz WHERE id = $1", relayID(i), started)
	}
	share := func(i int) store.Share {
		t.Helper()
		s, err := d.store.Share(ctx, "some", relayID(i))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	same(t, "alone, and not there yet", store.Share{Lanes: 8, Wanted: 8, Live: 1}, share(1))
	alive(1, "2026-01-03", "some")
	same(t, "alone", store.Share{Lanes: 8, Wanted: 8, Live: 1}, share(1))
	alive(2, "2026-01-02", "all", "some")
	alive(3, "2026-01-03", "some") // started at the same moment as 1
	alive(4, "2026-01-01", "all")  // is not configured for it
	alive(5, "2026-01-01", "some") // is dead
	d.exec(t, "UPDATE commitrelay.relays SET heartbeat_at = now() - interval '61 min' WHERE id = $1", relayID(5))
	for i, rank := range map[int]int{2: 0, 1: 1, 3: 2} {
		same(t, fmt.Sprint("relay ", i), store.Share{Lanes: 8, Wanted: 8, Live: 3, Rank: rank}, share(i))
	}
	// One that is dead in the database's eyes and looks again counts itself.
	same(t, "the dead one", store.Share{Lanes: 8, Wanted: 8, Live: 4, Rank: 0}, share(5))
	d.exec(t, "UPDATE commitrelay.subscriptions SET paused = true")
	if !share(1).Paused {
		t.Errorf("the subscription is paused, and the share does not say so")
	}
	if err := d.store.Goodbye(ctx, relayID(2)); err != nil {
		t.Fatal(err)
	}
	same(t, "after one has left", store.Share{Lanes: 8, Wanted: 8, Live: 2, Paused: true, Rank: 0}, share(1))
	if _, err := d.store.Share(ctx, "nobody's", relayID(1)); err == nil || store.Transient(err) || !strings.Contains(err.Error(), "nobody's") {
		t.Errorf("of a subscription that is not there: %v", err)
	}
}

// A heartbeat that was broken off may reach the server after the goodbye. It must not bring the relay back: others would leave
// it a share of the lanes until its lease is over.
func TestHeartbeatAfterGoodbye(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	me := store.RelayInfo{ID: relayID(1), Host: "h", PID: 1, Version: "v", Subscriptions: []string{"some"}, Lease: time.Hour, Health: []byte("{}")}
	beat := func(want bool) {
		t.Helper()
		me.Health = []byte(`{"beaten": true}`)
		if registered, err := d.store.Heartbeat(ctx, me); err != nil || registered != want {
			t.Errorf("registered = %v (%v), want %v", registered, err, want)
		}
	}
	beat(false)
	if err := d.store.Register(ctx, me); err != nil {
		t.Fatal(err)
	}
	d.exec(t, "UPDATE commitrelay.relays SET heartbeat_at = now() - interval '1 min'")
	beat(true)
	same(t, "the relay", "true 0", get[string](t, d.pool, "SELECT (health ->> 'beaten') || ' ' || extract(minute FROM now() - heartbeat_at) FROM commitrelay.relays"))
	if err := d.store.Goodbye(ctx, me.ID); err != nil {
		t.Fatal(err)
	}
	beat(false)
	same(t, "relays", 0, get[int](t, d.pool, "SELECT count(*) FROM commitrelay.relays"))
}

func TestDueKeysOfSeveralLanes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.subscribe(t, "some", 4)
	d.exec(t, `INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at, next_attempt)
		SELECT 'some', lane, 'parked', 1, 't', 10 * lane + n, gen_random_uuid(), 'user', format('%s-%s', lane, n), 't', now(), now() + n * interval '10 min'
		FROM generate_series(0, 3) AS lane, generate_series(0, 4) AS n`)
	due, err := d.store.DueKeys(t.Context(), "some", []int{3, 1}, 2)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, k := range due {
		got[k.AggregateID] = k.Lane
		if now := k.AggregateID[2] == '0'; now != (k.In <= 0) {
			t.Errorf("key %s is due in %v", k.AggregateID, k.In)
		}
	}
	same(t, "two keys of each lane", map[string]int{"1-0": 1, "1-1": 1, "3-0": 3, "3-1": 3}, got)
}
