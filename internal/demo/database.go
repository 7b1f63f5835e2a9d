package demo

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/psqlvars"
)

//go:embed sql/*.sql
var files embed.FS

// readWrite is for all transactions of the demo: roles may have other defaults.
var readWrite = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

// database is the demo's place in a PostgreSQL: two schemas of its own, with a name that nothing
// else has. What was there before is not touched.
type database struct {
	url    string
	schema string // holds users and outbox_events
	state  string // holds commitrelay's own tables

	queries map[string]string // by the name of their file
}

// newDatabase makes the names up. It makes nothing else.
func newDatabase(url, name string) (database, error) {
	d := database{url: url, schema: name, state: name + "_state", queries: map[string]string{}}
	entries, err := files.ReadDir("sql")
	if err != nil {
		return database{}, fmt.Errorf("read the demo's SQL: %w", err)
	}
	for _, f := range entries {
		text, err := files.ReadFile("sql/" + f.Name())
		if err != nil {
			return database{}, fmt.Errorf("read the demo's SQL: %w", err)
		}
		query, err := psqlvars.Render(string(text), map[string]string{"schema": d.schema, "state_schema": d.state})
		if err != nil {
			return database{}, fmt.Errorf("%s: %w", f.Name(), err)
		}
		d.queries[strings.TrimSuffix(f.Name(), ".sql")] = query
	}
	return d, nil
}

// newName is the name of everything that one demo makes.
func newName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, says crypto/rand
	return "commitrelay_demo_" + hex.EncodeToString(b[:])
}

// table is the events table's name.
func (d database) table() string { return d.schema + ".outbox_events" }

// sql is the query of that file.
func (d database) sql(name string) string { return d.queries[name] }

// pool opens a pool of n connections at most. It works behind PgBouncer: no named statements.
func (d database) pool(ctx context.Context, n int) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	cfg.MaxConns = int32(n)
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// run executes scripts, each in one transaction, on a connection of its own.
func (d database) run(ctx context.Context, scripts ...string) error {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, name := range scripts {
		err := pgx.BeginTxFunc(ctx, conn, readWrite, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, d.sql(name), pgx.QueryExecModeSimpleProtocol)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// drop removes both schemas with all that is in them.
func (d database) drop(ctx context.Context) error {
	if err := persist(ctx, func() error { return d.run(ctx, "drop") }); err != nil {
		return fmt.Errorf("remove the demo's tables: %w; they can be removed with: DROP SCHEMA IF EXISTS %s, %s CASCADE", err, d.schema, d.state)
	}
	return nil
}

// exist says which of the events the table holds.
func (d database) exist(ctx context.Context, pool *pgxpool.Pool, ids []outbox.ID) (map[outbox.ID]bool, error) {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = id.String()
	}
	set := map[outbox.ID]bool{}
	err := persist(ctx, func() error {
		rows, err := pool.Query(ctx, d.sql("exist"), texts)
		if err != nil {
			return err
		}
		var id outbox.ID
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error { set[id] = true; return nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up uncertain commits: %w", err)
	}
	return set, nil
}

// patience is how long the demo goes on without one success, as when PostgreSQL restarts.
const patience = 15 * time.Second

// persist repeats fn for a while as long as its error may pass.
func persist(ctx context.Context, fn func() error) error {
	for end := time.Now().Add(patience); ; {
		err := fn()
		if err == nil || !passing(err) || time.Now().After(end) || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// passing says whether err may heal by itself: PostgreSQL restarts, a connection broke. What the
// server says of the statement, as a missing right, does not.
func passing(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return true
	}
	for _, class := range []string{"08", "40", "53", "57"} { // connection, rolled back, resources, operator
		if strings.HasPrefix(pg.Code, class) {
			return true
		}
	}
	return false
}
