// Package pgtest gives tests a real PostgreSQL.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"os"
	"testing"

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

// URL is the URL of a new, empty database, dropped when the test ends.
func URL(t testing.TB) string {
	t.Helper()
	ctx := context.Background()
	server := ServerURL(t)
	var b [6]byte
	_, _ = rand.Read(b[:])
	name := "t_" + hex.EncodeToString(b[:])
	exec := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, server)
		if err != nil {
			t.Fatalf("connect to COMMITRELAY_TEST_DATABASE: %v", err)
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec("CREATE DATABASE " + name)
	t.Cleanup(func() { exec("DROP DATABASE " + name + " WITH (FORCE)") })
	u, err := url.Parse(server)
	if err != nil {
		t.Fatalf("COMMITRELAY_TEST_DATABASE: %v", err)
	}
	u.Path = "/" + name
	return u.String()
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
