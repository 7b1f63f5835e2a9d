package store_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

// held are the slots that are held, by number.
func (d *db) held(t testing.TB, retention time.Duration) map[int]store.HeldSlot {
	t.Helper()
	list, err := d.store.Holds(t.Context(), retention)
	if err != nil {
		t.Fatal(err)
	}
	held := map[int]store.HeldSlot{}
	for _, h := range list {
		held[h.Slot] = h
	}
	return held
}

// Each reason why a slot is kept is found before and inside the lock, and named.
func TestWhatHoldsASlot(t *testing.T) {
	d := newDB(t, migrate.Options{Slots: wheelSlots})
	for name, c := range map[string]struct {
		set    func(t *testing.T, d *db, slot int)
		given  store.Given
		kind   store.HoldKind
		reason string
	}{
		"nobody has subscribed": {func(t *testing.T, d *db, _ int) {
			d.exec(t, "DELETE FROM commitrelay.subscriptions")
		}, store.Unsettled, store.HeldByNobody, "no subscription"},
		"a new event": {func(t *testing.T, d *db, slot int) {
			d.insertInto(t, slot, 1)
		}, store.Unsettled, store.HeldBySubscription, "lane 0 has settled all up to number 2, and the slot goes up to 3"},
		"a subscription at the beginning": {func(t *testing.T, d *db, _ int) {
			d.subscribe(t, "new", 4)
			d.beat(t, owner, "new", "all")
		}, store.Unsettled, store.HeldBySubscription, `subscription "new" needs it: lane 0 has settled all up to number 0`},
		"one that nobody delivers": {func(t *testing.T, d *db, _ int) {
			d.subscribe(t, "old", 4)
		}, store.Unsettled, store.HeldBySubscription, `subscription "old" is delivered by no live relay`},
		"one that is paused": {func(t *testing.T, d *db, _ int) {
			d.subscribe(t, "new", 4)
			d.exec(t, "UPDATE commitrelay.subscriptions SET paused = true WHERE name = 'new'")
		}, store.Unsettled, store.HeldBySubscription, `subscription "new" is paused`},
		"one lane of many": {func(t *testing.T, d *db, _ int) {
			d.subscribe(t, "more", 4)
			d.beat(t, owner, "more")
			d.exec(t, `UPDATE commitrelay.lanes SET from_window = (SELECT from_window FROM commitrelay.lanes WHERE subscription = 'all')
				WHERE subscription = 'more' AND lane <> 2`)
		}, store.Unsettled, store.HeldBySubscription, `subscription "more" needs it: lane 2 has`},
		"the begin of a window in progress": {func(t *testing.T, d *db, slot int) {
			d.insertInto(t, slot, 3)
			w := d.window(t)
			d.storeLane(t, window.Open{From: w.From, Window: w, P: 5})
		}, store.Unsettled, store.HeldBySubscription, "lane 0 has settled all up to number 2, and the slot goes up to 5"},
		"catching up": {func(t *testing.T, d *db, _ int) {
			quiet := window.Quiet(d.position(t))
			d.storeLane(t, window.Recover(window.Open{From: d.load(t).From}, quiet))
		}, store.Unsettled, store.HeldBySubscription, "lane 0: it is catching up"},
		"a position of another cluster": {func(t *testing.T, d *db, _ int) {
			d.exec(t, `UPDATE commitrelay.windows SET run = jsonb_set(run, '{system}', '"7"') WHERE id <> 0`)
		}, store.Unsettled, store.HeldBySubscription, "its position is void: another database cluster"},
		"a sequence that was set back": {func(t *testing.T, d *db, _ int) {
			d.exec(t, "SELECT setval('outbox_events_seq', 1)")
		}, store.Unsettled, store.HeldBySubscription, "its position is void: the sequence went back from 2 to 1"},
		"a position that is lost": {func(t *testing.T, d *db, _ int) {
			d.exec(t, "DELETE FROM commitrelay.windows WHERE id <> 0")
		}, store.Unsettled, store.HeldBySubscription, "it has no position"},
		"a transaction that may have written": {func(t *testing.T, d *db, slot int) {
			d.hold(t, "SELECT pg_current_xact_id()")
			d.insertInto(t, slot, 1)
			d.settle(t)
		}, store.Unsettled, store.HeldByTransaction, "(holder), in its transaction since"},
		"a prepared one": {func(t *testing.T, d *db, slot int) {
			tx := d.hold(t, "SELECT pg_current_xact_id()")
			const gid = "'wheel'"
			if _, err := tx.Exec(t.Context(), "PREPARE TRANSACTION "+gid); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if _, err := d.pool.Exec(context.Background(), "ROLLBACK PREPARED "+gid); err != nil {
					t.Error(err)
				}
			})
			d.insertInto(t, slot, 1)
			d.settle(t)
		}, store.Unsettled, store.HeldByTransaction, "prepared transaction 'wheel"},
		"one that has ended, and the lane has not looked since": {func(t *testing.T, d *db, slot int) {
			tx := d.hold(t, "SELECT pg_current_xact_id()")
			d.insertInto(t, slot, 1)
			d.settle(t)
			commit(t, tx)
		}, store.Unsettled, store.HeldBySubscription, "lane 0 has settled all up to number 2, and the slot goes up to 3"},
		"an open writer in the slot": {func(t *testing.T, d *db, slot int) {
			d.hold(t, insertInto, slot, 1)
		}, store.InUse, store.HeldByLock, "(holder), which writes, in its transaction since"},
		"a long reader": {func(t *testing.T, d *db, slot int) {
			d.hold(t, "SELECT 1 FROM outbox_events")
			testwait.Until(t, "the reader to count as a long one", func() bool { return len(d.held(t, 0)[slot].HeldBy) > 0 })
		}, store.InUse, store.HeldByLock, "(holder), which reads, in its transaction since"},
	} {
		t.Run(name, func(t *testing.T) {
			d.exec(t, `DELETE FROM outbox_events; DELETE FROM commitrelay.subscriptions; DELETE FROM commitrelay.relays;
				DELETE FROM commitrelay.windows WHERE id <> 0; SELECT setval('outbox_events_seq', 1, false)`)
			if _, err := d.store.Subscribe(t.Context(), store.Subscription{Name: "all", Lanes: 1, OnDead: "continue"}, false); err != nil {
				t.Fatal(err)
			}
			d.acquire(t, &d.lane)
			slot := d.fill(t)
			c.set(t, d, slot)
			held := d.held(t, 0)[slot]
			var reasons []string
			found := false
			for _, h := range held.HeldBy {
				reasons = append(reasons, string(h.Kind)+": "+h.Reason)
				found = found || h.Kind == c.kind && strings.Contains(h.Reason, c.reason)
			}
			if !found || len(reasons) != 1 || held.Settled != (c.given == store.InUse) {
				t.Errorf("held by\n%s\nwant %s: %s", strings.Join(reasons, "\n"), c.kind, c.reason)
			}
			if due := d.due(t, 0); len(due) != 0 && c.given == store.Unsettled {
				t.Errorf("due: %v", due)
			}
			before := get[int](t, d.pool, "SELECT count(*) FROM outbox_events")
			for _, patient := range []bool{false, true} {
				if given := d.empty(t, slot, patient); given != c.given {
					t.Errorf("given: %v, want %v", given, c.given)
				}
			}
			if n := get[int](t, d.pool, "SELECT count(*) FROM outbox_events"); n != before {
				t.Errorf("%d events are left of %d", n, before)
			}
		})
	}
}

// The wheel has gone round where a slot holds events from before its latest turn.
func TestLapped(t *testing.T) {
	d := newDB(t, migrate.Options{Slots: wheelSlots})
	old, current := d.past(t, 1), d.past(t, 0)
	d.exec(t, `INSERT INTO outbox_events (slot, created_at, aggregate_type, aggregate_id, event_type) SELECT s, now() - interval '4 hours', 'a', 'b', 'c' FROM unnest($1::integer[]) AS s`,
		[]int{old, current})
	d.insertInto(t, d.past(t, 2), 1)
	d.insertInto(t, old, 1)
	held := d.held(t, 0)
	if len(held) != 3 || !held[old].Lapped || !held[current].Lapped || held[d.past(t, 2)].Lapped {
		t.Errorf("%+v", held)
	}
	if age := held[old].Oldest; age < 4*3600 || age > 5*3600 {
		t.Errorf("the oldest event is %v s old, want 4 hours", age)
	}
	d.exec(t, `INSERT INTO outbox_events (slot, created_at, aggregate_type, aggregate_id, event_type) VALUES ($1, '-infinity', 'a', 'b', 'c')`, d.past(t, 3))
	if h := d.held(t, 0)[d.past(t, 3)]; !h.Lapped || h.Oldest != 0 {
		t.Errorf("an event of no time: %+v", h)
	}
}
