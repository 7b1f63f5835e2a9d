package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/commitrelay/outbox/admin"
	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an outbox without relays, and what plays them.
type rig struct {
	*admin.Admin
	t     *testing.T
	pool  *pgxpool.Pool
	store *store.Store
}

const first, second = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"

func newRig(t *testing.T) rig {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := migrate.Up(t.Context(), pool, migrate.Options{Slots: 2}); err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), pool, ident.Table{Schema: "public", Name: "outbox_events"}, "commitrelay")
	if err != nil {
		t.Fatal(err)
	}
	a, err := admin.Open(t.Context(), pool, admin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rig{a, t, pool, st}
}

func (r rig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.pool.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

func (r rig) subscribe(name string, lanes int) {
	r.t.Helper()
	_, err := r.store.Subscribe(r.t.Context(), store.Subscription{Name: name, Lanes: lanes, Sink: "bus", Topic: "{event_type}", EventTypes: []string{"User*"}, OnDead: "continue"}, false)
	if err != nil {
		r.t.Fatal(err)
	}
}

// alive has a relay say that it lives.
func (r rig) alive(id string, health string, subscriptions ...string) {
	r.t.Helper()
	pid := int(id[len(id)-1] - '0')
	err := r.store.Register(r.t.Context(), store.RelayInfo{ID: id, Host: "host", PID: pid, Version: "v", Subscriptions: subscriptions, Lease: time.Hour, Health: []byte(health)})
	if err != nil {
		r.t.Fatal(err)
	}
}

// own gives lanes to a relay.
func (r rig) own(id string, lanes ...int) {
	r.t.Helper()
	r.exec("UPDATE commitrelay.lanes SET owner = $1, lease_until = now() + interval '1h' WHERE lane = ANY ($2::integer[])", id, lanes)
}

// heard waits for what is waited for to be said.
func (r rig) heard(said <-chan string, parts ...string) {
	r.t.Helper()
	for {
		got := testwait.Recv(r.t, "word of what is waited for: "+strings.Join(parts, ", "), said)
		missing := false
		for _, p := range parts {
			missing = missing || !strings.Contains(got, p)
		}
		if !missing {
			return
		}
		r.t.Logf("waiting: %s", got)
	}
}

// awaiting runs what waits in the background.
func (r rig) awaiting(await func(ctx context.Context, progress func(string)) error) (said chan string, done chan error, stop context.CancelFunc) {
	ctx, stop := context.WithCancel(r.t.Context())
	r.t.Cleanup(stop)
	said, done = make(chan string, 1000), make(chan error, 1)
	go func() { done <- await(ctx, func(waiting string) { said <- waiting }) }()
	return said, done, stop
}

func (r rig) done(done <-chan error) {
	r.t.Helper()
	if err := testwait.Recv(r.t, "the end of the wait", done); err != nil {
		r.t.Error(err)
	}
}

func TestSubscriptions(t *testing.T) {
	r := newRig(t)
	r.subscribe("all", 4)
	r.subscribe("mails", 1)
	r.alive(first, "{}", "all", "mails")
	r.alive(second, "{}", "all")
	r.own(second, 1, 2)
	got, err := r.Subscriptions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	relay := func(id string, pid int, lanes ...int) admin.Relay {
		return admin.Relay{ID: id, Host: "host", PID: pid, Lanes: lanes}
	}
	sub := func(name string, lanes int, relays ...admin.Relay) admin.Subscription {
		return admin.Subscription{
			Name: name, Sink: "bus", Topic: "{event_type}", OnDead: "continue", EventTypes: []string{"User*"}, Lanes: lanes, LanesWanted: lanes, Relays: relays,
		}
	}
	want := []admin.Subscription{sub("all", 4, relay(first, 1), relay(second, 2, 1, 2)), sub("mails", 1, relay(first, 1))}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(admin.Subscription{}, "CreatedAt")); diff != "" {
		t.Errorf("subscriptions (-want +got):\n%s", diff)
	}
}

func TestUnknownNames(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	ask := func(name string) map[string]error {
		_, paused := r.Pause(ctx, name)
		_, resumed := r.Resume(ctx, name)
		_, dropped := r.Drop(ctx, name, admin.DropOptions{})
		return map[string]error{
			"Pause": paused, "Resume": resumed, "Drop": dropped, "SetLanes": r.SetLanes(ctx, name, 2),
			"AwaitLanes": r.AwaitLanes(ctx, name, 2, nil), "AwaitPaused": r.AwaitPaused(ctx, name, nil),
		}
	}
	check := func(name, hint string) {
		t.Helper()
		for what, err := range ask(name) {
			if !errors.Is(err, admin.ErrNoSubscription) || !strings.HasSuffix(err.Error(), hint) {
				t.Errorf("%s of %q: %v, want it to end in %q", what, name, err, hint)
			}
		}
	}
	check("all", "there are none: a relay makes those it is configured for known when it first runs")
	r.subscribe("welcome", 1)
	r.subscribe("audit", 1)
	check("welcmoe", `did you mean "welcome"?`)
	check("something", "there are audit, welcome")
	for _, n := range []int{-1, 0, 3, 2048} {
		if err := r.SetLanes(ctx, "audit", n); !errors.Is(err, admin.ErrBadLanes) {
			t.Errorf("%d lanes: %v", n, err)
		}
	}
	if _, err := admin.Open(ctx, r.pool, admin.Options{Table: "nothing"}); !errors.Is(err, store.ErrNoTable) {
		t.Errorf("another table: %v", err)
	}
}

func TestDropSaysAllThatIsInTheWay(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.subscribe("all", 4)
	r.alive(first, "{}", "all")
	r.alive(second, "{}", "other")
	r.exec("INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) SELECT 'user', g::text, 'UserCreated' FROM generate_series(1, 3) AS g")
	r.exec(`INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at)
		SELECT 'all', 0, s, 1, 't', 1000 + i, gen_random_uuid(), 'a', '1', 'C', now() FROM unnest(ARRAY['dead', 'parked', 'sending']) WITH ORDINALITY AS x (s, i)`)
	const inTheWay = `admin: subscription "all": relays are running that are configured for it: host pid 1
admin: subscription "all": events are not settled: 3 not delivered, 2 parked, 1 dead`
	if _, err := r.Drop(ctx, "all", admin.DropOptions{}); !errors.Is(err, admin.ErrRelaysLive) || !errors.Is(err, admin.ErrUnsettled) || err.Error() != inTheWay {
		t.Errorf("got %v\nwant %s", err, inTheWay)
	}
	if _, err := r.Drop(ctx, "all", admin.DropOptions{GiveUp: true}); !errors.Is(err, admin.ErrRelaysLive) || errors.Is(err, admin.ErrUnsettled) {
		t.Errorf("with what may be given up: %v", err)
	}
	if _, err := r.Drop(ctx, "all", admin.DropOptions{Live: true}); errors.Is(err, admin.ErrRelaysLive) || !errors.Is(err, admin.ErrUnsettled) {
		t.Errorf("whoever lives: %v", err)
	}
	gone, err := r.Drop(ctx, "all", admin.DropOptions{Live: true, GiveUp: true})
	if want := (admin.Dropped{Pending: 3, Parked: 2, Dead: 1}); err != nil || gone != want {
		t.Errorf("dropped: %+v, %v; want %+v", gone, err, want)
	}
	r.subscribe("idle", 1)
	r.exec("TRUNCATE outbox_events")
	if _, err := r.Drop(ctx, "idle", admin.DropOptions{}); err != nil {
		t.Errorf("with nothing in the way: %v", err)
	}
	if subs, err := r.Subscriptions(ctx); err != nil || len(subs) != 0 {
		t.Errorf("left: %v, %v", subs, err)
	}
}

func TestAwaitPaused(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.subscribe("all", 4)
	r.alive(first, "{}", "all")
	r.own(first, 0, 1, 3)
	r.own(second, 2)
	if changed, err := r.Pause(ctx, "all"); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if changed, err := r.Pause(ctx, "all"); err != nil || changed {
		t.Errorf("once more: %v, %v", changed, err)
	}
	said, done, _ := r.awaiting(func(ctx context.Context, progress func(string)) error { return r.AwaitPaused(ctx, "all", progress) })
	r.heard(said, "host pid 1 has lanes 0-1, 3; a relay that is gone has lane 2, and is silent: its lease runs out")
	r.exec("UPDATE commitrelay.lanes SET owner = NULL WHERE owner = $1", first)
	r.exec("UPDATE commitrelay.lanes SET lease_until = now() WHERE owner = $1", second)
	r.done(done)

	r.own(first, 0)
	_, done, _ = r.awaiting(func(ctx context.Context, progress func(string)) error { return r.AwaitPaused(ctx, "all", progress) })
	if changed, err := r.Resume(ctx, "all"); err != nil || !changed {
		t.Fatal(changed, err)
	}
	if err := testwait.Recv(t, "the end of the wait", done); !errors.Is(err, admin.ErrOverruled) {
		t.Errorf("resumed meanwhile: %v", err)
	}
	if changed, err := r.Resume(ctx, "all"); err != nil || changed {
		t.Errorf("resumed twice: %v, %v", changed, err)
	}
}

// AwaitLanes says what it waits for, in each of the cases, and changes the number itself where it can.
func TestAwaitLanes(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	r.subscribe("all", 4)
	lanes := func(want int) {
		t.Helper()
		var got, rows int
		err := r.pool.QueryRow(ctx, "SELECT lanes, (SELECT count(*) FROM commitrelay.lanes) FROM commitrelay.subscriptions").Scan(&got, &rows)
		if err != nil || got != want || rows != want {
			t.Errorf("%d lanes, %d rows, %v; want %d", got, rows, err, want)
		}
	}
	set := func(n int) {
		t.Helper()
		if err := r.SetLanes(ctx, "all", n); err != nil {
			t.Fatal(err)
		}
	}
	await := func(n int) func(ctx context.Context, progress func(string)) error {
		return func(ctx context.Context, progress func(string)) error { return r.AwaitLanes(ctx, "all", n, progress) }
	}

	// Nobody has one, and all stand at the beginning.
	set(8)
	if err := r.AwaitLanes(ctx, "all", 8, nil); err != nil {
		t.Fatal(err)
	}
	lanes(8)
	if err := r.AwaitLanes(ctx, "all", 8, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
	set(8)
	if err := r.AwaitLanes(ctx, "all", 8, nil); err != nil {
		t.Errorf("asked for once more: %v", err)
	}

	// One stands elsewhere.
	r.exec("INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, run) SELECT 7, snapshot, 5, next_xid, run FROM commitrelay.windows WHERE id = 0")
	r.exec("UPDATE commitrelay.lanes SET from_window = 7 WHERE lane = 6")
	set(2)
	said, done, stop := r.awaiting(await(2))
	r.heard(said, "no live relay is configured for the subscription")
	r.exec("UPDATE commitrelay.subscriptions SET paused = true")
	r.heard(said, "is paused and its lanes stand at different places: resume it")
	r.own(first, 0, 1, 2)
	r.heard(said, "is paused, and a relay that is gone has lanes 0-2")
	r.exec("UPDATE commitrelay.subscriptions SET paused = false")
	r.heard(said, "a relay that is gone has lanes 0-2, and is silent: its lease runs out")
	r.alive(first, "{}", "all")
	r.alive(second, "{}", "all")
	r.own(second, 3, 4)
	r.heard(said, "one relay is to have all lanes: host pid 1 has lanes 0-2; host pid 2 has lanes 3-4")
	r.alive(first, `{"subscriptions": [{"name": "all", "state": "sink_down", "error": "connection refused"}]}`, "all")
	r.own(first, 0, 1, 2, 3, 4, 5, 6, 7)
	r.heard(said, "host pid 1 has lanes 0-7, and brings lanes 0-5, 7 to where the others are; it says sink_down: connection refused")
	r.exec("UPDATE commitrelay.lanes SET from_window = 7")
	r.heard(said, "host pid 1 has lanes 0-7, and is about to give them back")
	stop()
	if err := testwait.Recv(t, "the end of the wait", done); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "still waiting: host pid 1 has lanes 0-7") {
		t.Errorf("stopped: %v", err)
	}
	_, done, _ = r.awaiting(await(2))
	r.exec("UPDATE commitrelay.lanes SET owner = NULL")
	r.done(done)
	lanes(2)

	// Someone wants another number.
	r.own(first, 0, 1)
	set(4)
	said, done, _ = r.awaiting(await(4))
	r.heard(said, "about to give them back")
	set(16)
	if err := testwait.Recv(t, "the end of the wait", done); !errors.Is(err, admin.ErrOverruled) || !strings.Contains(err.Error(), "16 lanes are wanted, not 4") {
		t.Errorf("overruled: %v", err)
	}
	set(2) // taken back
	if err := r.AwaitLanes(ctx, "all", 16, nil); !errors.Is(err, admin.ErrOverruled) {
		t.Errorf("taken back: %v", err)
	}
	lanes(2)
}
