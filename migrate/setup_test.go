package migrate_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// up makes the tables.
func up(t testing.TB, db migrate.DB, opts migrate.Options) {
	t.Helper()
	if err := migrate.Up(context.Background(), db, opts); err != nil {
		t.Fatalf("Up: %v", err)
	}
}

// exec runs statements.
func exec(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// get reads one value.
func get[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// newRole makes a role without any right. Call it before the database is made: it goes after it.
func newRole(t testing.TB) string {
	t.Helper()
	var b [6]byte
	_, _ = rand.Read(b[:])
	name := "Role_" + hex.EncodeToString(b[:]) // capitals, so that a forgotten quote shows
	server := func(sql string) {
		t.Helper()
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, pgtest.ServerURL(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	server(`CREATE ROLE "` + name + `" LOGIN`)
	t.Cleanup(func() { server(`DROP ROLE "` + name + `"`) })
	return name
}

// as is a pool on the same database whose sessions are the role's.
func as(t testing.TB, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	return withSettings(t, pool, `SET SESSION AUTHORIZATION `+pgx.Identifier{role}.Sanitize())
}

// withSettings is a pool on the same database whose sessions begin with sql.
func withSettings(t testing.TB, pool *pgxpool.Pool, sql string) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	}
	p, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
