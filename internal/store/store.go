// Package store holds every query on the outbox and on commitrelay's own tables: one .sql file beside one method.
//
// Each statement is autocommitted and short unless its method says otherwise; none holds session state, and none uses a
// named prepared statement, so all of it works through a pooler in transaction mode.
package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/psqlvars"
	"github.com/commitrelay/outbox/internal/window"
)

//go:embed sql/*.sql
var files embed.FS

// ErrNoTable says that the events table does not exist, or has no sequence of its own.
var ErrNoTable = errors.New("the outbox is not there")

// Store runs the queries. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	events   ident.Table
	sequence string // its name, quoted
	schema   string // of commitrelay's own tables
	sql      map[string]string
	run      lastRun
	quiet    sync.Mutex // one QuietPosition at a time
}

// Open finds the events table and prepares the queries. schema is that of commitrelay's own tables.
func Open(ctx context.Context, pool *pgxpool.Pool, events ident.Table, schema string) (*Store, error) {
	resolve, err := files.ReadFile("sql/resolve.sql")
	if err != nil {
		return nil, err
	}
	s := &Store{pool: pool, schema: schema, sql: map[string]string{}}
	var sequence string
	err = pool.QueryRow(ctx, string(resolve), pgx.QueryExecModeExec, events.String()).
		Scan(&s.events.Schema, &s.events.Name, &sequence)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("events table %s: %w: run `commitrelay migrate up`, or configure the table's name", events, ErrNoTable)
	}
	if err != nil {
		return nil, fmt.Errorf("look for events table %s: %w", events, err)
	}
	if sequence == "" {
		return nil, fmt.Errorf("events table %s: %w: its column seq has no sequence; `commitrelay migrate status` says what the table is", events, ErrNoTable)
	}
	s.sequence = sequence
	vars := map[string]string{
		"schema":        schema,
		"events_schema": s.events.Schema,
		"events_table":  s.events.Name,
		"events":        s.events.String(),
		"sequence":      sequence,
	}
	names, err := fs.Glob(files, "sql/*.sql")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		rendered, err := psqlvars.Render(string(text), vars)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		key := strings.TrimSuffix(strings.TrimPrefix(name, "sql/"), ".sql")
		s.sql[key] = named(key, rendered)
	}
	return s, nil
}

// named makes what is sent of a .sql file: its name, by which a DBA finds it in the server's views, and the statement
// without the comment above it, which would push the statement out of them.
func named(name, sql string) string {
	for strings.HasPrefix(sql, "--") {
		_, sql, _ = strings.Cut(sql, "\n")
	}
	return "/* commitrelay " + name + " */ " + strings.TrimRight(sql, "; \n")
}

// Events is the events table by its full name.
func (s *Store) Events() ident.Table { return s.events }

// collect runs a statement and reads its rows.
func collect[T any](ctx context.Context, s *Store, db querier, name string, args []any, fn pgx.RowToFunc[T]) (all []T, err error) {
	err = repeat(ctx, db, name, func() error {
		rows, err := db.Query(ctx, s.sql[name], plain(args)...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, fn)
		return err
	})
	return all, err
}

func (s *Store) exec(ctx context.Context, db querier, name string, args ...any) error {
	return repeat(ctx, db, name, func() error {
		_, err := db.Exec(ctx, s.sql[name], plain(args)...)
		return err
	})
}

// row scans the one row of a statement; found is false if there is none.
func (s *Store) row(ctx context.Context, db querier, name string, args []any, dest ...any) (found bool, err error) {
	err = repeat(ctx, db, name, func() error {
		err := db.QueryRow(ctx, s.sql[name], plain(args)...).Scan(dest...)
		found = err == nil
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return found, err
}

// plain asks for a way of sending a statement that leaves nothing behind on the connection.
func plain(args []any) []any { return append([]any{pgx.QueryExecModeExec}, args...) }

// repeats bounds how often a statement is repeated that meets others'.
const repeats = 20

// repeat runs a statement and names it in its error. Where the role's default is an isolation stricter than READ COMMITTED,
// a statement that meets another's fails; outside a transaction it has done nothing then, and is repeated.
func repeat(ctx context.Context, db querier, name string, run func() error) error {
	_, inTx := db.(pgx.Tx)
	for n := 1; ; n++ {
		err := run()
		if err == nil {
			return nil
		}
		if inTx || n == repeats || ctx.Err() != nil || !serialization(err) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// querier is a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// inTx runs fn in a short transaction. A role's default may be another isolation level, or read only.
func (s *Store) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	return pgx.BeginTxFunc(ctx, s.pool, opts, fn)
}

var _ window.Source = (*Reader)(nil)
