package migrate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

func TestUninstall(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	empty := fingerprint(t, pool)
	uninstall := func() error { return migrate.Uninstall(ctx, pool, migrate.UninstallOptions{}) }
	force := func() error { return migrate.Uninstall(ctx, pool, migrate.UninstallOptions{Force: true}) }
	wantNothingLeft := func() {
		t.Helper()
		if diff := cmp.Diff(empty, fingerprint(t, pool)); diff != "" {
			t.Errorf("left behind:\n%s", diff)
		}
	}
	refused := func(err, want error, text string) {
		t.Helper()
		if !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %v with %q", err, want, text)
		}
	}

	refused(uninstall(), migrate.ErrNotInstalled, "nothing to remove")
	up(t, pool, migrate.Options{Slots: 2})
	if err := uninstall(); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft()

	// Events that nobody was there to receive, that wait, that are dead; then all is delivered.
	up(t, pool, migrate.Options{})
	exec(t, pool, plainInsert)
	refused(uninstall(), migrate.ErrUnsettled, "1 of them")
	exec(t, pool, `INSERT INTO commitrelay.subscriptions (name, lanes, sink, topic) VALUES ('all', 1, 's', 't');
		INSERT INTO commitrelay.lanes (subscription, lane) VALUES ('all', 0)`)
	refused(uninstall(), migrate.ErrUnsettled, "1 of them")
	exec(t, pool, `WITH w AS (INSERT INTO commitrelay.windows (id, snapshot, h, next_xid, run) VALUES (7, pg_current_snapshot(), 1, '3', '{}') RETURNING id)
		UPDATE commitrelay.lanes SET from_window = id FROM w`)
	exec(t, pool, `INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at)
		SELECT 'all', 0, 'dead', 1, 't', seq, id, aggregate_type, aggregate_id, event_type, created_at FROM outbox_events`)
	refused(uninstall(), migrate.ErrUnsettled, "1 of them")
	exec(t, pool, `DELETE FROM commitrelay.parked`)

	exec(t, pool, `INSERT INTO commitrelay.relays (id, host, pid, version, subscriptions, lease) VALUES (gen_random_uuid(), 'box', 7, 'v', '{}', '1h')`)
	refused(uninstall(), migrate.ErrRelaysLive, "box (pid 7)")
	exec(t, pool, `UPDATE commitrelay.relays SET heartbeat_at = now() - interval '2h'`)

	refused(migrate.Uninstall(ctx, pool, migrate.UninstallOptions{Table: "public.others", Force: true}), migrate.ErrDifferent, "public.outbox_events, not public.others")

	exec(t, pool, `CREATE VIEW mine AS SELECT * FROM outbox_events; CREATE TABLE commitrelay.mine (a int)`)
	if err := force(); err == nil || !strings.Contains(err.Error(), "view mine depends on table outbox_events") {
		t.Errorf("with a view on it: %v", err)
	}
	exec(t, pool, `DROP VIEW mine`)
	if err := uninstall(); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `DROP TABLE commitrelay.mine; DROP SCHEMA commitrelay`) // what was not ours is still there
	wantNothingLeft()

	// By force, even what is broken.
	up(t, pool, migrate.Options{})
	exec(t, pool, plainInsert)
	if err := force(); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft()
	up(t, pool, migrate.Options{})
	exec(t, pool, `DROP TABLE outbox_events CASCADE`)
	refused(uninstall(), migrate.ErrIncomplete, "public.outbox_events")
	if err := force(); err != nil {
		t.Fatal(err)
	}
	wantNothingLeft()
}

// A writer at work keeps the tables, and is not kept waiting for long.
func TestUninstallMeetsAWriter(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err := tx.Exec(ctx, plainInsert); err != nil {
		t.Fatal(err)
	}
	err = migrate.Uninstall(ctx, pool, migrate.UninstallOptions{})
	if err == nil || !strings.Contains(err.Error(), "try again when the writers have gone") {
		t.Errorf("Uninstall beside a writer: %v", err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Errorf("the writer: %v", err)
	}
}
