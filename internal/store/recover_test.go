package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

func TestQuietPosition(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	r, err := d.store.QuietPosition(ctx)
	if err != nil || r.H != 0 {
		t.Fatalf("of an empty table: %+v, %v", r, err)
	}
	d.insert(t, "k", "1") // the lock is gone
	if r, err = d.store.QuietPosition(ctx); err != nil || r.H != 1 || r.Run != d.position(t).Run {
		t.Fatalf("%+v, %v", r, err)
	}
	begun := func(sql string) (end func(sql string)) {
		t.Helper()
		conn, err := d.pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(ctx, "SET application_name = 'the writer'; BEGIN; "+sql); err != nil {
			t.Fatal(err)
		}
		return func(sql string) {
			t.Helper()
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(ctx, "RESET application_name"); err != nil {
				t.Fatal(err)
			}
			conn.Release()
		}
	}
	held := func(what, by string) {
		t.Helper()
		_, err := d.store.QuietPosition(ctx)
		var e *store.HeldError
		if !errors.As(err, &e) || len(e.Holders) != 1 || !strings.Contains(err.Error(), by) {
			t.Errorf("%s: error %v with %d holders; want a HeldError that names %q", what, err, len(e.Holders), by)
		}
	}
	const insert = "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'b', 'c', '1')"

	end := begun(insert)
	held("an open writer", "(the writer)")
	end("COMMIT")

	leaf := get[string](t, d.pool, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass LIMIT 1")
	end = begun("DELETE FROM " + leaf)
	held("someone at work on a leaf", "(the writer)")
	end("ROLLBACK")

	begun("SAVEPOINT a; " + insert + "; RELEASE a")("PREPARE TRANSACTION 'in two phases'")
	held("a prepared transaction", "prepared transaction 'in two phases'")
	d.exec(t, "COMMIT PREPARED 'in two phases'")

	end = begun("SELECT count(*) FROM outbox_events") // a mere reader, and one who writes elsewhere
	defer end("ROLLBACK")
	if r, err = d.store.QuietPosition(ctx); err != nil || r.H != 3 {
		t.Errorf("beside a reader: %+v, %v", r, err)
	}
}

// A sequence below the numbers in the table would hand them out again.
func TestQuietPositionRefusesALowSequence(t *testing.T) {
	d := newDB(t, migrate.Options{})
	for range 5 {
		d.insert(t, "k", "1")
	}
	d.exec(t, "SELECT setval(pg_get_serial_sequence('outbox_events', 'seq'), 4)")
	_, err := d.store.QuietPosition(t.Context())
	if err == nil || store.Transient(err) {
		t.Fatalf("error %v; want one that needs a person", err)
	}
	// It says what to run.
	_, run, found := strings.Cut(err.Error(), "Run: ")
	if !found || !strings.Contains(run, "setval") {
		t.Fatalf("error %q does not say what to run", err)
	}
	d.exec(t, run)
	if r, err := d.store.QuietPosition(t.Context()); err != nil || r.H != 5 {
		t.Errorf("after %s: %+v, %v", run, r, err)
	}
	d.insert(t, "k", "6")
	if seq := get[int](t, d.pool, "SELECT max(seq) FROM outbox_events"); seq != 6 {
		t.Errorf("the next event has number %d, want 6", seq)
	}
}
