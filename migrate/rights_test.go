package migrate_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

// documentedGrants are those of docs/tables.md, for these roles.
func documentedGrants(t *testing.T, app, relay, viewer string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/tables.md")
	if err != nil {
		t.Fatal(err)
	}
	sql := regexp.MustCompile("(?s)```sql\n(-- app .*?)```").FindSubmatch(text)
	if sql == nil {
		t.Fatal("docs/tables.md has no grants")
	}
	quoted := func(role string) string { return "TO " + pgx.Identifier{role}.Sanitize() + ";" }
	return strings.NewReplacer("TO app;", quoted(app), "TO relay;", quoted(relay), "TO viewer;", quoted(viewer)).Replace(string(sql[1]))
}

// privileges are tried with the grants of the documentation, and with those of Up, in a database
// whose schema public is closed.
func withGrants(t *testing.T, test func(t *testing.T, pool, app, relay, viewer *pgxpool.Pool)) {
	for _, how := range []string{"documented", "by Up"} {
		t.Run(how, func(t *testing.T) {
			app, relay, viewer := newRole(t), newRole(t), newRole(t)
			pool := pgtest.Pool(t)
			exec(t, pool, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
			up(t, pool, migrate.Options{})
			if how == "documented" {
				exec(t, pool, documentedGrants(t, app, relay, viewer))
			} else {
				exec(t, pool, `GRANT USAGE ON SCHEMA commitrelay TO "`+viewer+`"; GRANT SELECT ON commitrelay.events TO "`+viewer+`"`)
			}
			opts := migrate.Options{Writers: []string{app}, Relays: []string{relay}}
			plan, err := migrate.Plan(context.Background(), pool, opts)
			if err != nil {
				t.Fatal(err)
			}
			if (plan == "") != (how == "documented") {
				t.Errorf("left to grant:\n%s", plan)
			}
			up(t, pool, opts)
			test(t, pool, as(t, pool, app), as(t, pool, relay), as(t, pool, viewer))
		})
	}
}

func TestWriterRole(t *testing.T) {
	withGrants(t, func(t *testing.T, pool, app, _, _ *pgxpool.Pool) {
		ctx := context.Background()
		exec(t, app, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4)`, "user", "1", "UserCreated", "{}")
		exec(t, app, `INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
			VALUES (gen_random_uuid(), 'user', '2', 'UserCreated', '{}', '{"a": "b"}'), (gen_random_uuid(), 'user', '3', 'UserCreated', NULL, NULL)`)
		n, err := app.CopyFrom(ctx, pgx.Identifier{"outbox_events"}, []string{"aggregate_type", "aggregate_id", "event_type", "payload"},
			pgx.CopyFromRows([][]any{{"user", "4", "UserCreated", "{}"}, {"user", "5", "UserCreated", "{}"}}))
		if err != nil || n != 2 {
			t.Errorf("COPY: %d, %v", n, err)
		}
		err = pgx.BeginFunc(ctx, app, func(tx pgx.Tx) error {
			event := func(id string) *outbox.Event {
				return &outbox.Event{AggregateType: "user", AggregateID: id, Type: "UserCreated", Payload: []byte("{}"), Headers: map[string]string{"a": "b"}}
			}
			w := outbox.Writer{}
			return errors.Join(w.Write(ctx, tx, event("6")), w.Write(ctx, tx, event("7"), event("8")))
		})
		if err != nil {
			t.Errorf("Writer: %v", err)
		}
		if got := get[string](t, pool, `SELECT string_agg(aggregate_id, '' ORDER BY seq) FROM outbox_events`); got != "12345678" {
			t.Errorf("events %s, want 12345678", got)
		}

		for _, sql := range []string{
			`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, xid) VALUES ('a', 'b', 'c', '3')`,
			`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, seq) VALUES ('a', 'b', 'c', DEFAULT)`,
			`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, seq) OVERRIDING SYSTEM VALUE VALUES ('a', 'b', 'c', 1)`,
			`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, slot) VALUES ('a', 'b', 'c', 0)`,
			`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, created_at) VALUES ('a', 'b', 'c', now())`,
			`INSERT INTO outbox_events_s0 (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')`,
			`SELECT * FROM outbox_events`,
			`UPDATE outbox_events SET payload = NULL`,
			`DELETE FROM outbox_events`,
			`TRUNCATE outbox_events`,
			`SELECT nextval('outbox_events_seq')`,
			`SELECT setval('outbox_events_seq', 1)`,
			`SELECT * FROM commitrelay.events`,
		} {
			wantDenied(t, app, sql)
		}
	})
}

func TestRelayRole(t *testing.T) {
	withGrants(t, func(t *testing.T, pool, app, relay, viewer *pgxpool.Pool) {
		ctx := context.Background()
		exec(t, app, plainInsert)
		findings, err := migrate.Check(ctx, relay, migrate.Options{})
		if err != nil || len(findings) > 0 {
			t.Errorf("Check: %v, %v", findings, err)
		}
		up(t, relay, migrate.Options{}) // a relay may ask for the tables at each start

		for _, sql := range []string{
			// positions
			`SELECT h, age('3'::xid), pg_current_snapshot(), pg_postmaster_start_time(), pg_relation_filenode('public.outbox_events_seq'),
				(SELECT system_identifier FROM pg_control_system()), (SELECT timeline_id FROM pg_control_checkpoint()), (SELECT id FROM commitrelay.run)
				FROM pg_sequence_last_value('public.outbox_events_seq') AS h`,
			`SELECT pg_get_serial_sequence('public.outbox_events', 'seq')`,
			`INSERT INTO commitrelay.run DEFAULT VALUES ON CONFLICT DO NOTHING`,
			`SELECT count(*) FROM pg_locks WHERE relation = 'public.outbox_events'::regclass`,
			// events
			`SELECT *, hashtextextended(aggregate_id, 0) FROM outbox_events WHERE seq > 0 AND NOT pg_visible_in_snapshot(xid, '3:3:') ORDER BY seq LIMIT 10`,
			`BEGIN; LOCK TABLE outbox_events IN SHARE MODE; COMMIT`,
			// state
			`INSERT INTO commitrelay.subscriptions (name, lanes, sink, topic) VALUES ('all', 1, 's', 't') ON CONFLICT (name) DO UPDATE SET sink = excluded.sink`,
			`INSERT INTO commitrelay.lanes (subscription, lane) SELECT 'all', 0`,
			`INSERT INTO commitrelay.relays (id, host, pid, version, subscriptions, lease) VALUES (gen_random_uuid(), 'h', 1, 'v', '{}', '10s')`,
			`UPDATE commitrelay.relays SET heartbeat_at = clock_timestamp()`,
			`UPDATE commitrelay.lanes SET owner = gen_random_uuid(), epoch = epoch + 1, lease_until = clock_timestamp() + '10s'`,
			`WITH w AS (INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, run) SELECT 7, snapshot, h, next_xid, run FROM commitrelay.windows WHERE id = 0 RETURNING id)
				UPDATE commitrelay.lanes SET to_window = w.id FROM w`,
			`INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, payload, created_at)
				SELECT 'all', 0, 'parked', 1, 't', seq, id, aggregate_type, aggregate_id, event_type, payload, created_at FROM outbox_events`,
			`UPDATE commitrelay.parked SET state = 'sending', attempts = attempts + 1 WHERE id IN (SELECT id FROM commitrelay.parked FOR UPDATE SKIP LOCKED)`,
		} {
			exec(t, relay, sql)
		}
		if got := get[string](t, viewer, `SELECT status FROM commitrelay.events`); got != "RETRYING" {
			t.Errorf("the viewer sees %s", got)
		}
		for _, sql := range []string{
			`DELETE FROM commitrelay.parked`, `UPDATE commitrelay.lanes SET to_window = NULL`, `DELETE FROM commitrelay.windows WHERE id > 0`,
			`DELETE FROM commitrelay.subscriptions`, `DELETE FROM commitrelay.relays`,
			`BEGIN; LOCK TABLE ONLY outbox_events_s3 IN ACCESS EXCLUSIVE MODE NOWAIT; TRUNCATE ONLY outbox_events_s3; COMMIT`,
		} {
			exec(t, relay, sql)
		}
		for _, sql := range []string{
			`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')`,
			`UPDATE outbox_events SET payload = NULL`,
			`DELETE FROM outbox_events`,
			`DELETE FROM outbox_events_s0`,
			`SELECT nextval('outbox_events_seq')`,
			`UPDATE commitrelay.installation SET version = 2`,
			`DELETE FROM commitrelay.run`,
			`CREATE TABLE commitrelay.x (a int)`,
		} {
			wantDenied(t, relay, sql)
		}
		for _, sql := range []string{`SELECT * FROM public.outbox_events`, `SELECT * FROM commitrelay.parked`, `SELECT * FROM commitrelay.lanes`} {
			wantDenied(t, viewer, sql)
		}
	})
}

func wantDenied(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(context.Background(), sql)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "42501" {
		t.Errorf("%s: %v, want permission denied", sql, err)
	}
}

func TestUpWithoutRights(t *testing.T) {
	ctx := context.Background()
	role, other := newRole(t), newRole(t)
	pool := pgtest.Pool(t)
	nobody := as(t, pool, role)
	err := migrate.Up(ctx, nobody, migrate.Options{})
	if err == nil || !strings.Contains(err.Error(), "42501") || !strings.Contains(err.Error(), "commitrelay migrate print") {
		t.Errorf("Up without rights: %v", err)
	}
	// A schema that was prepared needs no right on the database.
	exec(t, pool, `CREATE SCHEMA commitrelay AUTHORIZATION "`+role+`"; CREATE SCHEMA app AUTHORIZATION "`+role+`"`)
	opts := migrate.Options{Table: "app.outbox_events", Relays: []string{other}}
	up(t, nobody, opts)

	if err := migrate.Up(ctx, pool, migrate.Options{Table: opts.Table, Writers: []string{"no such role"}}); err == nil || !strings.Contains(err.Error(), `role "no such role" does not exist`) {
		t.Errorf("Up for a role that is not there: %v", err)
	}
	// GRANT by one who may not grant is an error or a mere warning.
	err = migrate.Up(ctx, as(t, pool, other), migrate.Options{Table: opts.Table, Writers: []string{other}})
	if err == nil || !strings.Contains(err.Error(), "GRANT INSERT") && !strings.Contains(err.Error(), "42501") {
		t.Errorf("Up by one who may not grant: %v", err)
	}
}

// An installation whose relays have no right to the slots yet gets it by another Up.
func TestUpGrantsTheSlots(t *testing.T) {
	role := newRole(t)
	pool := pgtest.Pool(t)
	opts := migrate.Options{Relays: []string{role}, Slots: 3}
	up(t, pool, opts)
	exec(t, pool, `REVOKE ALL ON outbox_events_s0, outbox_events_s1, outbox_events_s2 FROM "`+role+`"`)
	relay := as(t, pool, role)
	findings := check(t, relay, migrate.Options{})
	if len(findings) != 1 || findings[0].Severity != migrate.Warning || !strings.Contains(findings[0].Problem, "to give space back") {
		t.Errorf("findings: %v", findings)
	}
	plan, err := migrate.Plan(t.Context(), pool, opts)
	want := `GRANT TRUNCATE ON TABLE "public"."outbox_events_s0", "public"."outbox_events_s1", "public"."outbox_events_s2" TO "` + role + `";`
	if err != nil || !strings.Contains(plan, want) {
		t.Errorf("plan: %v\n%s\nwant %s", err, plan, want)
	}
	up(t, pool, opts)
	if findings := check(t, relay, migrate.Options{}); findings != nil {
		t.Errorf("after the second Up: %v", findings)
	}
	exec(t, relay, `TRUNCATE ONLY outbox_events_s2`)
}
