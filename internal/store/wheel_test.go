package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

const wheelSlots = 4

// newWheel is a database in which two events lie in the slot before last, and the one lane has settled all.
func newWheel(t testing.TB) (d *db, slot int) {
	t.Helper()
	d = newDB(t, migrate.Options{Slots: wheelSlots})
	return d, d.fill(t)
}

func (d *db) fill(t testing.TB) (slot int) {
	t.Helper()
	d.beat(t, owner, "all")
	slot = d.past(t, 2)
	d.insertInto(t, slot, 2)
	testwait.Until(t, "no transaction to be running that may have written", func() bool {
		d.settle(t)
		return d.load(t).From.Lowest() == 2
	})
	return slot
}

// past is the slot whose turn was n turns ago.
func (d *db) past(t testing.TB, n int) int {
	t.Helper()
	return get[int](t, d.pool, `SELECT ((date_part('epoch', now())::bigint / slot_seconds - $1) % slots)::integer FROM commitrelay.installation`, n)
}

const insertInto = `INSERT INTO outbox_events (slot, aggregate_type, aggregate_id, event_type, payload)
	SELECT $1::integer, 'user', g::text, 'UserCreated', '{}' FROM generate_series(1, $2::integer) AS g`

// insertInto writes events into a slot.
func (d *db) insertInto(t testing.TB, slot, n int) {
	t.Helper()
	d.exec(t, insertInto, slot, n)
}

// settle moves the one lane on over all there is.
func (d *db) settle(t testing.TB) {
	t.Helper()
	d.storeLane(t, window.Open{From: d.window(t).To})
}

// beat says that a relay lives which is configured for these subscriptions.
func (d *db) beat(t testing.TB, relay string, subscriptions ...string) {
	t.Helper()
	err := d.store.Register(t.Context(), store.RelayInfo{
		ID: relay, Host: "h", Subscriptions: subscriptions, Lease: time.Hour, Health: []byte("{}"), Configurations: map[string]store.Subscription{},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// empty tries to empty a slot, whatever Due says of it.
func (d *db) empty(t testing.TB, slot int, patient bool) store.Given {
	t.Helper()
	w, err := d.store.Wheel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range w.Slots {
		if o.Slot == slot {
			given, err := d.store.Empty(t.Context(), o, patient)
			if err != nil {
				t.Fatal(err)
			}
			return given
		}
	}
	t.Fatalf("slot %d is empty: %+v", slot, w.Slots)
	return 0
}

// due are the slots that may be emptied.
func (d *db) due(t testing.TB, retention time.Duration) (slots []int) {
	t.Helper()
	w, err := d.store.Wheel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range w.Due(retention) {
		slots = append(slots, o.Slot)
	}
	return slots
}

// hold opens a transaction on a connection of its own. It ends with the test, if not before.
func (d *db) hold(t testing.TB, sql string, args ...any) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.url+"&application_name=holder")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestSettledSlotIsEmptied(t *testing.T) {
	d, slot := newWheel(t)
	current := d.past(t, 0)
	d.insertInto(t, current, 1)
	d.settle(t)
	before := d.position(t)
	held := d.held(t, 0)
	if h := held[slot]; !h.Settled || len(h.HeldBy) > 0 || h.Lowest != 1 || h.Highest != 2 || h.Bytes < 8192 || h.Over < 3600 || h.Lapped {
		t.Errorf("slot: %+v", h)
	}
	if h := held[current]; !h.Current || len(h.HeldBy) != 1 || h.HeldBy[0].Kind != store.HeldByTurn || len(held) != 2 {
		t.Errorf("current slot: %+v", held)
	}
	if due := d.due(t, 0); len(due) != 1 || due[0] != slot {
		t.Errorf("due: %v, want %d", due, slot)
	}
	if due := d.due(t, 2*time.Hour); due != nil {
		t.Errorf("due with a retention of two hours: %v", due)
	}
	if h := d.held(t, 2*time.Hour)[slot]; len(h.HeldBy) != 1 || h.HeldBy[0].Kind != store.HeldByRetention {
		t.Errorf("held by %+v", h.HeldBy)
	}
	if given := d.empty(t, slot, false); given != store.Emptied {
		t.Fatalf("given: %v", given)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM outbox_events"); n != 1 {
		t.Errorf("%d events are left, want that of the current slot", n)
	}
	if h, ok := d.held(t, 0)[slot]; ok {
		t.Errorf("the slot is still there: %+v", h)
	}
	// The server run is the same, and the numbers go on.
	if after := d.position(t); after.Run != before.Run || after.H != before.H {
		t.Errorf("position %+v, was %+v", after, before)
	}
	d.insert(t, "a", "x")
	if seq := get[int64](t, d.pool, "SELECT max(seq) FROM outbox_events"); seq != 4 {
		t.Errorf("the next number is %d, want 4", seq)
	}
	if given := d.empty(t, current, false); given != store.Unsettled {
		t.Errorf("the new event: %v", given)
	}
}

// What was rolled back takes up room, too.
func TestSlotOfRolledBackEvents(t *testing.T) {
	d := newDB(t, migrate.Options{Slots: wheelSlots})
	slot := d.past(t, 1)
	tx := d.hold(t, insertInto, slot, 1000)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h := d.held(t, 0)[slot]; h.Highest != 0 || h.Bytes < 8192 || !h.Settled {
		t.Errorf("%+v", h)
	}
	if given := d.empty(t, slot, true); given != store.Emptied {
		t.Errorf("given: %v", given)
	}
}

// tracer runs something just before a statement of a given name.
type tracer struct {
	statement string
	before    func(ctx context.Context)
}

func (r tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "/* commitrelay "+r.statement+" */") {
		r.before(ctx)
	}
	return ctx
}

func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// What commits between the look at a slot and its lock is not destroyed, whatever the role's default isolation is.
func TestInsertBeforeTheLock(t *testing.T) {
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			d, slot := newWheel(t)
			cfg := d.pool.Config()
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
			inserts := 0
			cfg.ConnConfig.Tracer = tracer{"wheel_lock", func(context.Context) {
				inserts++
				d.insertInto(t, slot, 1)
			}}
			strict := d.open(t, connect(t, cfg))
			w, err := strict.Wheel(t.Context())
			if err != nil || len(w.Slots) != 1 || !w.Settled(w.Slots[0]) {
				t.Fatalf("%+v, %v", w, err)
			}
			given, err := strict.Empty(t.Context(), w.Slots[0], false)
			if err != nil || given != store.Unsettled || inserts != 1 {
				t.Errorf("given: %v, %v after %d inserts", given, err, inserts)
			}
			if n := get[int](t, d.pool, "SELECT count(*) FROM outbox_events"); n != 3 {
				t.Errorf("%d events, want 3", n)
			}
		})
	}
}

// While a slot is locked nobody can write to it, nor read it; positions are read all the same. A subscription that comes
// before the lock counts.
func TestWhileASlotIsLocked(t *testing.T) {
	d, slot := newWheel(t)
	cfg := d.pool.Config()
	var blocked error
	cfg.ConnConfig.Tracer = tracer{"wheel_empty", func(ctx context.Context) {
		d.position(t)
		d.exec(t, insertInto, d.past(t, 0), 1) // another slot
		_, blocked = d.pool.Exec(ctx, "BEGIN; SET LOCAL lock_timeout = '10ms'; INSERT INTO outbox_events (slot, aggregate_type, aggregate_id, event_type) VALUES ("+string(rune('0'+slot))+", 'a', 'b', 'c')")
	}}
	s := d.open(t, connect(t, cfg))
	w, err := s.Wheel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if given, err := s.Empty(t.Context(), w.Slots[0], false); err != nil || given != store.Emptied {
		t.Fatalf("given: %v, %v", given, err)
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](blocked); !ok || pgErr.Code != "55P03" {
		t.Errorf("an insert beside the lock: %v", blocked)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM outbox_events"); n != 1 {
		t.Errorf("%d events, want that of the other slot", n)
	}
}

// One relay at a time tries, and one that hangs does not keep the lock.
func TestOneRelayAtATime(t *testing.T) {
	d, slot := newWheel(t)
	tx := d.hold(t, "SELECT pg_advisory_xact_lock(hashtextextended('commitrelay wheel', 'outbox_events'::regclass::oid::bigint))")
	if given := d.empty(t, slot, false); given != store.Elsewhere {
		t.Errorf("given: %v", given)
	}
	commit(t, tx)

	cfg := d.pool.Config()
	cfg.ConnConfig.Tracer = tracer{"wheel_empty", func(context.Context) { // the process is frozen here
		d.exec(t, insertInto, slot, 1)
	}}
	s := d.open(t, connect(t, cfg))
	w, err := s.Wheel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if given, err := s.Empty(t.Context(), w.Slots[0], false); err == nil {
		t.Errorf("given: %v, though the server should have ended the transaction", given)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM outbox_events"); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
	if given := d.empty(t, slot, false); given != store.Unsettled {
		t.Errorf("given: %v", given)
	}
}

// Two connections do, in a pool that others use.
func TestWheelInASmallPool(t *testing.T) {
	d, slot := newWheel(t)
	cfg := d.pool.Config()
	cfg.MaxConns = 2
	d.store = d.open(t, connect(t, cfg))
	done := make(chan error, 1)
	go func() {
		for range 20 {
			if _, err := d.store.QuietPosition(t.Context()); err != nil {
				if _, ok := errors.AsType[*store.HeldError](err); !ok {
					done <- err
					return
				}
			}
		}
		done <- nil
	}()
	given := store.InUse
	for given == store.InUse {
		given = d.empty(t, slot, false)
	}
	if given != store.Emptied {
		t.Errorf("given: %v", given)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWheelRights(t *testing.T) {
	d, slot := newWheel(t)
	role := fmt.Sprintf("wheelless%d", databases.Add(1))
	d.exec(t, "CREATE ROLE "+role+" LOGIN; GRANT USAGE ON SCHEMA commitrelay TO "+role+"; GRANT SELECT ON ALL TABLES IN SCHEMA commitrelay, public TO "+role+"; GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO "+role)
	cfg := d.pool.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	as := d.open(t, connect(t, cfg))
	look := func() (due int, reasons []string) {
		t.Helper()
		w, err := as.Wheel(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		held, err := as.Holds(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range held {
			for _, by := range h.HeldBy {
				reasons = append(reasons, string(by.Kind)+": "+by.Reason)
			}
		}
		return len(w.Due(0)), reasons
	}
	leaf := get[string](t, d.pool, "SELECT format('public.%I', 'outbox_events_s' || $1::integer)", slot)
	if due, reasons := look(); due != 0 || len(reasons) != 1 || !strings.HasPrefix(reasons[0], "right: ") {
		t.Errorf("without the right: %d due, %v", due, reasons)
	}
	d.exec(t, "GRANT TRUNCATE ON "+leaf+" TO "+role)
	if due, reasons := look(); due != 1 || reasons != nil {
		t.Errorf("with the right: %d due, %v", due, reasons)
	}
	d.exec(t, "ALTER TABLE outbox_events ENABLE ROW LEVEL SECURITY; CREATE POLICY part ON outbox_events FOR SELECT USING (aggregate_id = '1')")
	if due, reasons := look(); due != 0 || len(reasons) != 1 || !strings.Contains(reasons[0], "row level security") {
		t.Errorf("with a policy that hides events: %d due, %v", due, reasons)
	}
	d.exec(t, "CREATE POLICY whole ON outbox_events FOR SELECT TO "+role+" USING (true)")
	if due, reasons := look(); due != 1 || reasons != nil {
		t.Errorf("with a policy that shows all: %d due, %v", due, reasons)
	}
	w, err := as.Wheel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if given, err := as.Empty(t.Context(), w.Slots[0], false); err != nil || given != store.Emptied {
		t.Errorf("given: %v, %v", given, err)
	}
}
