package outbox_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

// newOutbox is a new database with the tables in it.
func newOutbox(t testing.TB, opts migrate.Options) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := migrate.Up(context.Background(), pool, opts); err != nil {
		t.Fatal(err)
	}
	return pool
}

// newRole is a role without rights, dropped when the test ends. Its name needs no quotes.
func newRole(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	role := "r_" + strings.ReplaceAll(outbox.NewID().String(), "-", "")
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec("CREATE ROLE " + role)
	t.Cleanup(func() {
		exec("DROP OWNED BY " + role)
		exec("DROP ROLE " + role)
	})
	return role
}

// begin opens a transaction that is rolled back when the test ends, unless it was committed.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// beginSQL is begin with database/sql.
func beginSQL(t testing.TB, pool *pgxpool.Pool) *sql.Tx {
	t.Helper()
	db := stdlib.OpenDB(*pool.Config().ConnConfig)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tx.Rollback()
		_ = db.Close()
	})
	return tx
}

// stored reads a table of events. payload is the SQL that makes bytes of the column.
func stored(t testing.TB, tx pgx.Tx, table, payload string) []outbox.Event {
	t.Helper()
	rows, err := tx.Query(context.Background(), `SELECT id, aggregate_type, aggregate_id, event_type, `+payload+`, headers FROM `+table+` ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outbox.Event, err error) {
		return e, row.Scan(&e.ID, &e.AggregateType, &e.AggregateID, &e.Type, &e.Payload, &e.Headers)
	})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// user is a valid event.
func user(id, payload string) *outbox.Event {
	return &outbox.Event{AggregateType: "user", AggregateID: id, Type: "UserCreated", Payload: []byte(payload)}
}
