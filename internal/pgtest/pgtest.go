// Package pgtest gives tests a real PostgreSQL: a database of their own on the server that all
// tests share, or a server of their own.
package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ServerURL is the URL of a superuser's connection to the server that tests share, from
// COMMITRELAY_TEST_DATABASE. Without it the test fails: no test skips for want of a service.
func ServerURL(t testing.TB) string {
	t.Helper()
	s := os.Getenv("COMMITRELAY_TEST_DATABASE")
	if s == "" {
		t.Fatal("COMMITRELAY_TEST_DATABASE is not set: run the tests with `make test`, or set it to the URL of a PostgreSQL superuser")
	}
	return s
}

// URL is the URL of a new, empty database, dropped when the test ends. Tests that run in parallel
// each have their own. They share the server's transaction ids, snapshots and roles, though.
func URL(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	server := ServerURL(t)
	name := "t_" + strings.ToLower(rand.Text())
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("COMMITRELAY_TEST_DATABASE: %v", err)
	}
	u.Path = "/" + name
	// Not from template1: nobody can create a database while another is connected to it.
	if err := exec(ctx, server, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(ctx, server, u.String(), name); err != nil {
			t.Error(err)
		}
	})
	return u.String()
}

// drop drops a database with all that a failed test may have left in it.
func drop(ctx context.Context, server, database, name string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connect to COMMITRELAY_TEST_DATABASE: %w", err)
	}
	defer conn.Close(ctx)
	// FORCE ends sessions, but not prepared transactions.
	rows, err := conn.Query(ctx, "SELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts WHERE database = $1", name)
	if err != nil {
		return fmt.Errorf("look for prepared transactions: %w", err)
	}
	rollbacks, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for prepared transactions: %w", err)
	}
	for _, sql := range rollbacks {
		if err := exec(ctx, database, sql); err != nil {
			return err
		}
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("drop the test's database: %w", err)
	}
	return nil
}

func exec(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connect to the test's PostgreSQL: %w", err)
	}
	_, err = conn.Exec(ctx, sql)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// Pool is a pool on a new, empty database.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Connect(t, URL(t))
}

// Connect opens a pool that is closed when the test ends.
func Connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatalf("open pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Cluster is a server of the test's own, which it may stop, kill and copy; see [pgtemp.Cluster]. It
// is removed when the test ends. It takes a second or two to start: tests that do no harm to their
// server use URL. Unless opts says otherwise fsync is off, which only a crash of the whole machine
// could tell.
func Cluster(t testing.TB, opts pgtemp.Options) *pgtemp.Cluster {
	t.Helper()
	parameters := map[string]string{"fsync": "off"}
	maps.Copy(parameters, opts.Parameters)
	opts.Parameters = parameters
	c, err := pgtemp.Start(context.Background(), opts)
	return Keep(t, c, err)
}

// Keep closes a cluster when the test ends, and fails the test if there is none: for what
// [pgtemp.Create], Clone and Standby return.
func Keep(t testing.TB, c *pgtemp.Cluster, err error) *pgtemp.Cluster {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
