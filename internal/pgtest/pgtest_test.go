package pgtest_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	a, b := pgtest.Pool(t), pgtest.Pool(t)
	if _, err := a.Exec(t.Context(), "CREATE TABLE mine ()"); err != nil {
		t.Fatal(err)
	}
	var exists bool
	if err := b.QueryRow(t.Context(), "SELECT to_regclass('mine') IS NOT NULL").Scan(&exists); err != nil {
		t.Fatal(err)
	}
	if exists {
		t.Error("a table of one database is in the other")
	}
}

// A test that fails leaves sessions and prepared transactions behind; its database goes all the
// same, and with it what would hold back everyone else's snapshots.
func TestTheDatabaseIsDroppedWithAllThatIsInIt(t *testing.T) {
	ctx := context.Background()
	server := pgtest.Cluster(t, pgtemp.Options{Parameters: map[string]string{"max_prepared_transactions": "2"}})
	t.Setenv("COMMITRELAY_TEST_DATABASE", server.URL())
	var name string
	t.Run("failing", func(t *testing.T) {
		u := pgtest.URL(t)
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		name = strings.TrimPrefix(parsed.Path, "/")
		conn, err := pgx.Connect(ctx, u)
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"BEGIN", "CREATE TABLE left_behind ()", "PREPARE TRANSACTION '" + name + "'", "BEGIN"} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	})
	var left int
	err := pgtest.Connect(t, pgtest.ServerURL(t)).QueryRow(ctx, "SELECT count(*) FROM pg_database WHERE datname = $1", name).Scan(&left)
	if err != nil || left != 0 {
		t.Errorf("databases left: %d, %v", left, err)
	}
}

func TestCluster(t *testing.T) {
	c := pgtest.Cluster(t, pgtemp.Options{Parameters: map[string]string{"max_connections": "33"}})
	var connections, fsync string
	err := pgtest.Connect(t, c.URL()).QueryRow(t.Context(), "SELECT current_setting('max_connections'), current_setting('fsync')").Scan(&connections, &fsync)
	if err != nil {
		t.Fatal(err)
	}
	if connections != "33" || fsync != "off" {
		t.Errorf("max_connections = %s, fsync = %s, want 33 and off", connections, fsync)
	}
}
