package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

// A standby that is promoted and lacks the last epochs hands them out again, and the ids of parked events too: neither alone
// says that a row is ours.
func TestEpochsAndIDsComeAgain(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "a", "0")
	d.insert(t, "b", "1")
	events, _ := d.read(t, 10, 1<<20)
	d.storeLane(t, d.load(t), parking(events[0]), parking(events[1]))
	claimed, err := d.store.ClaimParked(t.Context(), d.lane, []store.Key{key("a")}, 1, 1<<20)
	if err != nil || len(claimed) != 1 {
		t.Fatalf("claimed %v, %v", claimed, err)
	}
	theirs := d.lane
	theirs.Owner = other
	if got, err := d.store.ClaimParked(t.Context(), theirs, []store.Key{key("b")}, 1, 1<<20); err != nil || len(got) != 0 {
		t.Errorf("another owner with this epoch claimed %v, %v; want nothing", got, err)
	}
	id := claimed[0].RowID
	settle := func(l store.Lane) error {
		return d.store.SettleParked(t.Context(), l, []int64{id}, []store.Settling{{RowID: id + 1, Attempts: 7}}, nil)
	}
	if err := settle(theirs); !errors.Is(err, store.ErrFenced) {
		t.Errorf("another owner with this epoch settles: %v, want %v", err, store.ErrFenced)
	}
	// Who owns another lane, with whatever epoch, has nothing to say of this one's rows.
	elsewhere := store.Lane{Subscription: "elsewhere", Owner: owner}
	if _, err := d.store.Subscribe(t.Context(), store.Subscription{Name: "elsewhere", Lanes: 1, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	d.acquire(t, &elsewhere)
	if err := settle(elsewhere); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, d.pool, "SELECT count(*) FROM commitrelay.parked WHERE attempts < 7"); n != 2 {
		t.Errorf("%d parked events are as they were, want 2", n)
	}
	if err := settle(d.lane); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, d.pool, "SELECT attempts FROM commitrelay.parked"); n != 7 {
		t.Errorf("the owner's settling left an event with %d attempts, want 7", n)
	}
}

// Logical replication copies rows, and leaves their sequence behind. Ids keep the order of parked events: none is given out
// below those that are there.
func TestParkedSequenceIsBehind(t *testing.T) {
	for name, set := range map[string]string{
		"below":       "SELECT setval(pg_get_serial_sequence('commitrelay.parked', 'id'), 40)",
		"on the rows": "SELECT setval(pg_get_serial_sequence('commitrelay.parked', 'id'), 99)",
	} {
		t.Run(name, func(t *testing.T) {
			d := newDB(t, migrate.Options{})
			d.exec(t, "SELECT setval(pg_get_serial_sequence('commitrelay.parked', 'id'), 99)")
			for _, payload := range []string{"0", "1", "2"} {
				d.insert(t, "a", payload)
			}
			events, _ := d.read(t, 10, 1<<20)
			d.storeLane(t, d.load(t), parking(events[0]))
			d.exec(t, set)
			settled := store.Settled{Lane: d.lane, Open: d.load(t)}
			run := d.position(t).Run
			err := d.store.StoreParking(t.Context(), run, settled, []store.Parking{parking(events[1]), parking(events[2])})
			if err == nil || store.Transient(err) {
				t.Fatalf("error %v; want one that needs a person", err)
			}
			_, sql, found := strings.Cut(err.Error(), "Run: ")
			if !found {
				t.Fatalf("error %q does not say what to run", err)
			}
			d.exec(t, sql)
			d.storeLane(t, d.load(t), parking(events[1]), parking(events[2]))
			got, _ := d.claim(t, 10, 1<<20, "a")
			same(t, "claimed", []string{"0", "1", "2"}, got)
		})
	}
}

// Numbers that were handed out where the tables were copied from are not to be handed out again, even if no event has them.
func TestQuietPositionNamesWhatWasUsedElsewhere(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "a", "0")
	d.insert(t, "a", "1")
	d.exec(t, "SELECT setval(pg_get_serial_sequence('outbox_events', 'seq'), 1)")
	setTo := func(want int64) {
		t.Helper()
		_, err := d.store.QuietPosition(t.Context())
		e, ok := errors.AsType[*store.SequenceError](err)
		if !ok || max(e.Highest, e.Used) != want {
			t.Fatalf("error %v; want one that names %d", err, want)
		}
	}
	d.exec(t, "UPDATE commitrelay.windows SET h = 9")
	setTo(2) // here, numbers may have been started over on purpose
	d.exec(t, `UPDATE commitrelay.windows SET run = run || '{"system": "another"}'`)
	setTo(9)
}
