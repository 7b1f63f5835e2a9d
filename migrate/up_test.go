package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

const plainInsert = `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('user', '1', 'UserCreated', '{}')`

func TestUp(t *testing.T) {
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	exec(t, pool, plainInsert)
	before := fingerprint(t, pool)
	up(t, pool, migrate.Options{})
	if diff := cmp.Diff(before, fingerprint(t, pool)); diff != "" {
		t.Errorf("a second Up changed something:\n%s", diff)
	}
	if got := get[int](t, pool, `SELECT count(*) FROM outbox_events`); got != 1 {
		t.Errorf("%d events after a second Up, want 1", got)
	}
	if got := get[string](t, pool, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_events_s7'`); got != "{autovacuum_enabled=false}" {
		t.Errorf("leaf 7 has options %s", got)
	}
}

func TestUpPayloadTypes(t *testing.T) {
	for _, p := range []outbox.PayloadType{outbox.PayloadJSON, outbox.PayloadJSONB, outbox.PayloadBytea, outbox.PayloadText} {
		t.Run(string(p), func(t *testing.T) {
			pool := pgtest.Pool(t)
			up(t, pool, migrate.Options{Payload: p, Slots: 2, SlotWidth: time.Minute})
			exec(t, pool, plainInsert)
			for _, table := range []string{"public.outbox_events", "commitrelay.parked", "commitrelay.events"} {
				got := get[string](t, pool, `SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attname = 'payload'`, table)
				if got != string(p) {
					t.Errorf("payload of %s is %s, want %s", table, got, p)
				}
			}
		})
	}
}

// Several replicas start at once on an empty database.
func TestUpConcurrently(t *testing.T) {
	role := newRole(t)
	for range 3 {
		url := pgtest.URL(t)
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				ctx := context.Background()
				conn, err := pgx.Connect(ctx, url)
				if err != nil {
					errs[i] = err
					return
				}
				defer conn.Close(ctx)
				if _, err := conn.Exec(ctx, `SET lock_timeout = '1ms'`); err != nil { // a role may have one
					errs[i] = err
					return
				}
				errs[i] = migrate.Up(ctx, conn, migrate.Options{Relays: []string{role}})
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		pool := pgtest.Connect(t, url)
		if got := get[int](t, pool, `SELECT count(*) FROM commitrelay.windows`); got != 1 {
			t.Errorf("%d windows, want 1: the beginning", got)
		}
	}
}

// Defaults of a role or database must not matter.
func TestUpUnderOtherDefaults(t *testing.T) {
	for _, settings := range []string{
		`SET default_transaction_isolation = 'serializable'`,
		`SET default_transaction_read_only = on`,
		`SET standard_conforming_strings = off; SET backslash_quote = off`,
		// Functions of our names that come first.
		`CREATE SCHEMA IF NOT EXISTS trap; CREATE OR REPLACE FUNCTION trap.pg_current_xact_id() RETURNS xid8 LANGUAGE sql AS $$ SELECT '7'::xid8 $$; SET search_path = trap, public, pg_catalog`,
	} {
		t.Run(settings, func(t *testing.T) {
			pool := pgtest.Pool(t)
			up(t, withSettings(t, pool, settings), migrate.Options{})
			exec(t, pool, plainInsert)
			if !get[bool](t, pool, `SELECT pg_xact_status(xid) = 'committed' AND xid > '7' FROM outbox_events`) {
				t.Error("the event has not its transaction's id")
			}
		})
	}
}

func TestUpRefusesOptions(t *testing.T) {
	err := migrate.Up(context.Background(), nil, migrate.Options{
		Table: `a.b.c`, Schema: strings.Repeat("x", 64), Payload: "xml", Slots: 1, SlotWidth: time.Minute + time.Millisecond,
		Writers: []string{""}, Relays: []string{"a\x00"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"want schema.table", "64 bytes", `payload type "xml"`, "1 slots: want 2 to 64", "slot width 1m0.001s", "name is empty", "zero byte"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	for _, o := range []migrate.Options{{Slots: 65}, {Slots: -1}, {SlotWidth: time.Second / 2}, {SlotWidth: -time.Hour}} {
		if err := migrate.Up(context.Background(), nil, o); err == nil {
			t.Errorf("Up(%+v): no error", o)
		}
	}
}

func TestUpLeavesAloneWhatIsNotOurs(t *testing.T) {
	for _, c := range []struct{ name, setup, want string }{
		{
			"the tutorial's table",
			`CREATE TABLE outbox_events (id uuid PRIMARY KEY, aggregate_type text, aggregate_id text, event_type text, payload jsonb, status text, created_at timestamptz)`,
			"table public.outbox_events exists, and schema \"commitrelay\" knows nothing of it: a name is taken: choose another name; to go on with that table it has to be adopted, and `migrate adopt` is not in this version",
		},
		{"a view", `CREATE VIEW outbox_events AS SELECT 1`, "migrate adopt"},
		{"a leaf's name", `CREATE TABLE outbox_events_s3 (a int)`, "public.outbox_events_s3 exists and is not commitrelay's: a name is taken"},
		{"the sequence's name", `CREATE SEQUENCE outbox_events_seq`, "public.outbox_events_seq exists and is not commitrelay's"},
		{"names in our schema", `CREATE SCHEMA commitrelay; CREATE TABLE commitrelay.lanes (a int); CREATE TABLE commitrelay.run (a int)`, "commitrelay.lanes exists and is not commitrelay's"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := pgtest.Pool(t)
			exec(t, pool, c.setup)
			before := fingerprint(t, pool)
			err := migrate.Up(context.Background(), pool, migrate.Options{})
			if !errors.Is(err, migrate.ErrOccupied) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v\nwant ErrOccupied with %q", err, c.want)
			}
			if diff := cmp.Diff(before, fingerprint(t, pool)); diff != "" {
				t.Errorf("something was changed:\n%s", diff)
			}
		})
	}
}

func TestUpWithOtherOptions(t *testing.T) {
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	before := fingerprint(t, pool)
	for _, c := range []struct {
		opts migrate.Options
		want string
	}{
		{migrate.Options{Payload: outbox.PayloadText}, "the payload type is json, not text"},
		{migrate.Options{Slots: 9}, "the number of slots is 8, not 9"},
		{migrate.Options{SlotWidth: time.Minute}, "the slot width is 1h0m0s, not 1m0s"},
		{migrate.Options{Table: "public.events"}, "the events table is public.outbox_events, not public.events"},
		{migrate.Options{Table: "events", Slots: 3}, "the events table is public.outbox_events, not public.events; the number of slots is 8, not 3"},
	} {
		err := migrate.Up(context.Background(), pool, c.opts)
		if !errors.Is(err, migrate.ErrDifferent) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Up(%+v): %v\nwant ErrDifferent with %q", c.opts, err, c.want)
		}
	}
	if diff := cmp.Diff(before, fingerprint(t, pool)); diff != "" {
		t.Errorf("something was changed:\n%s", diff)
	}
	up(t, pool, migrate.Options{Schema: "second", Table: "events"}) // two outboxes in one database
	exec(t, pool, `INSERT INTO events (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')`)
}

func TestUpMeetsAnotherVersion(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	for _, c := range []struct {
		version int
		err     error
		want    string
	}{
		{migrate.Version + 1, migrate.ErrNewer, "they have version 2, this binary knows 1: use the newer binary"},
		{migrate.Version - 1, migrate.ErrOlder, "they have version 0, this binary needs 1"},
	} {
		exec(t, pool, `UPDATE commitrelay.installation SET version = $1`, c.version)
		if err := migrate.Up(ctx, pool, migrate.Options{}); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Up on version %d: %v", c.version, err)
		}
		if err := migrate.Uninstall(ctx, pool, migrate.UninstallOptions{Force: true}); !errors.Is(err, c.err) {
			t.Errorf("Uninstall on version %d: %v", c.version, err)
		}
		s, err := migrate.ReadStatus(ctx, pool, migrate.Options{})
		if err != nil || !s.Installed || s.Version != c.version || !errors.Is(s.Findings.Err(), c.err) {
			t.Errorf("ReadStatus on version %d: %+v, %v", c.version, s, err)
		}
	}
	// A newer version may have dropped any column but this one.
	exec(t, pool, `UPDATE commitrelay.installation SET version = 2; ALTER TABLE commitrelay.installation DROP COLUMN slots`)
	if err := migrate.Up(ctx, pool, migrate.Options{}); !errors.Is(err, migrate.ErrNewer) {
		t.Errorf("Up on a newer version with other columns: %v", err)
	}
}

func TestUpOnAnIncompleteInstallation(t *testing.T) {
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	exec(t, pool, `DROP TABLE outbox_events, commitrelay.relays CASCADE`)
	err := migrate.Up(context.Background(), pool, migrate.Options{})
	if !errors.Is(err, migrate.ErrIncomplete) || !strings.Contains(err.Error(), "commitrelay.relays, commitrelay.events, public.outbox_events") {
		t.Errorf("Up: %v", err)
	}
}

func TestIdentifiers(t *testing.T) {
	long := strings.Repeat("ü", 31) // 62 bytes
	for _, c := range []struct{ schema, table, schemaName, tableName, own string }{
		{"MyApp", "OutboxEvents", "MyApp", "OutboxEvents", "CommitRelay"},
		{"order", "select", "order", "select", "user"},
		{`"a.b"`, `"say ""hi"""`, "a.b", `say "hi"`, `it's "\`},
		{long, long, long, long, long + "x"},
		{"commitrelay", "outbox_events", "commitrelay", "outbox_events", "commitrelay"}, // all in one
		{"public", "outbox_events", "public", "outbox_events", "public"},
	} {
		t.Run(c.tableName, func(t *testing.T) {
			ctx := context.Background()
			writer, relay := newRole(t), newRole(t)
			pool := pgtest.Pool(t)
			quoted := func(names ...string) string { return pgx.Identifier(names).Sanitize() }
			for _, s := range []string{c.schemaName, strings.ToLower(c.schemaName)} {
				exec(t, pool, `CREATE SCHEMA IF NOT EXISTS `+quoted(s))
			}
			if twin := strings.ToLower(c.tableName); twin != c.tableName {
				exec(t, pool, `CREATE TABLE `+quoted(strings.ToLower(c.schemaName), twin)+` AS SELECT 'trap' AS aggregate_type`)
			}
			opts := migrate.Options{Table: c.schema + "." + c.table, Schema: c.own, Writers: []string{writer}, Relays: []string{relay}}
			up(t, pool, opts)
			up(t, pool, opts)

			w := outbox.Writer{Table: opts.Table}
			err := pgx.BeginFunc(ctx, as(t, pool, writer), func(tx pgx.Tx) error {
				return w.Write(ctx, tx, &outbox.Event{AggregateType: "a", AggregateID: "b", Type: "c", Payload: []byte("{}")})
			})
			if err != nil {
				t.Fatal(err)
			}
			table := quoted(c.schemaName, c.tableName)
			if got := get[string](t, pool, `SELECT aggregate_type FROM `+table); got != "a" {
				t.Errorf("read %q", got)
			}
			s, err := migrate.ReadStatus(ctx, as(t, pool, relay), migrate.Options{Table: opts.Table, Schema: opts.Schema})
			if err != nil || !s.Installed || len(s.Findings) > 0 {
				t.Errorf("ReadStatus: %+v, %v", s, err)
			}
			if s.Options.Table != opts.Table || s.Options.Schema != opts.Schema {
				t.Errorf("ReadStatus found %+v", s.Options)
			}
			if err := migrate.Uninstall(ctx, pool, migrate.UninstallOptions{Table: opts.Table, Schema: opts.Schema, Force: true}); err != nil {
				t.Fatal(err)
			}
			if got := get[int](t, pool, `SELECT count(*) FROM pg_class WHERE relnamespace >= 16384 AND relkind IN ('r', 'p', 'v', 'S') AND reltype <> (SELECT coalesce(max(reltype), 0) FROM pg_class WHERE relname = lower($1) AND relname <> $1)`, c.tableName); got != 0 {
				t.Errorf("%d relations are left", got)
			}
		})
	}
}

func TestIdentifierOfOurs(t *testing.T) {
	err := migrate.Up(context.Background(), pgtest.Pool(t), migrate.Options{Table: "commitrelay.lanes"})
	if !errors.Is(err, migrate.ErrOccupied) || !strings.Contains(err.Error(), "commitrelay has a table or view of that name") {
		t.Errorf("Up: %v", err)
	}
}

// A table without a schema is the first schema's of the search_path, for good.
func TestSearchPath(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	exec(t, pool, `CREATE SCHEMA app`)
	app := withSettings(t, pool, `SET search_path = nowhere, app, public`)
	opts := migrate.Options{Table: "outbox_events"}
	up(t, app, opts)
	up(t, pool, opts) // the installation knows better than this search_path
	for _, db := range []*pgxpool.Pool{app, pool} {
		s, err := migrate.ReadStatus(ctx, db, opts)
		if err != nil || s.Options.Table != "app.outbox_events" || s.Findings != nil {
			t.Errorf("ReadStatus: %+v, %v", s, err)
		}
	}
	if got := get[int](t, pool, `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`); got != 0 {
		t.Errorf("%d tables in public", got)
	}
	if err := migrate.Up(ctx, pool, migrate.Options{Table: "public.outbox_events"}); !errors.Is(err, migrate.ErrDifferent) {
		t.Errorf("Up for the table in public: %v", err)
	}
	nowhere := withSettings(t, pool, `SET search_path = nowhere`)
	if err := migrate.Up(ctx, nowhere, migrate.Options{Table: "x", Schema: "y"}); err == nil || !strings.Contains(err.Error(), "write schema.table") {
		t.Errorf("Up without any schema: %v", err)
	}
	if err := migrate.Up(ctx, pool, migrate.Options{Table: "myapp.x", Schema: "y"}); err == nil || !strings.Contains(err.Error(), `schema "myapp" of the events table does not exist`) {
		t.Errorf("Up in a schema that is not there: %v", err)
	}
}

// print and up make the same, and then nothing is left to do.
func TestPrint(t *testing.T) {
	ctx := context.Background()
	writer, relay := newRole(t), newRole(t)
	for _, opts := range []migrate.Options{
		{},
		{Table: `"My App"."a.b"`, Schema: "It's\nx", Payload: outbox.PayloadJSONB, Slots: 3, SlotWidth: 90 * time.Second},
		{Writers: []string{writer}, Relays: []string{relay, writer}},
	} {
		t.Run(fmt.Sprintf("%+v", opts), func(t *testing.T) {
			made, printed := pgtest.Pool(t), pgtest.Pool(t)
			for _, pool := range []*pgxpool.Pool{made, printed} {
				exec(t, pool, `CREATE SCHEMA "My App"`)
			}
			script, err := migrate.Print(opts)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := migrate.Plan(ctx, printed, opts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(script, plan); diff != "" {
				t.Errorf("Print and Plan differ:\n%s", diff)
			}
			up(t, made, opts)
			exec(t, printed, script)
			if diff := cmp.Diff(fingerprint(t, made), fingerprint(t, printed)); diff != "" {
				t.Errorf("Up and the output of Print make different things:\n%s", diff)
			}
			if plan, err := migrate.Plan(ctx, printed, opts); err != nil || plan != "" {
				t.Errorf("Plan afterwards: %q, %v", plan, err)
			}
		})
	}
	if _, err := migrate.Print(migrate.Options{Table: "events"}); err == nil || !strings.Contains(err.Error(), "write schema.table") {
		t.Errorf("Print without a schema: %v", err)
	}
}

// fingerprint is all that the catalog says of what users can make, in words.
func fingerprint(t testing.TB, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(context.Background(), `
		SELECT format('schema %s %s', nspname, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_'
		UNION ALL
		SELECT format('%s %s %s %s %s %s', c.oid::regclass, relkind, relpersistence, reloptions, relacl, pg_get_expr(relpartbound, c.oid))
		FROM pg_class AS c WHERE relnamespace::regnamespace::text !~ '^(pg_|information_schema)'
		UNION ALL
		SELECT format('%s %s %s %s %s %s %s %s', attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attacl, pg_get_expr(adbin, adrelid))
		FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
		WHERE attrelid >= 16384 AND attnum > 0 AND attrelid::regclass::text !~ '^pg_toast'
		UNION ALL
		SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint WHERE oid >= 16384
		UNION ALL
		SELECT indexdef FROM pg_indexes WHERE schemaname !~ '^pg_'
		UNION ALL
		SELECT format('%s %s', viewname, definition) FROM pg_views WHERE schemaname !~ '^(pg_|information_schema)'
		UNION ALL
		SELECT format('%s %s %s %s', sequencename, start_value, increment_by, cache_size) FROM pg_sequences
		ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
