// Package migrate makes, checks and removes the tables of the outbox: the events table that
// applications write to, and a schema with what relays know.
package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Version is the version of the tables that this package makes and knows.
const Version = 1

// DB begins transactions: a *pgx.Conn, a *pgxpool.Pool or a *pgxpool.Conn.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Roles may have other defaults: a stricter level would not see what another migration has just
// committed, and a role may be read-only by default.
var (
	readWrite = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	readOnly  = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
)

// Up makes the tables if they are not there, in one transaction, and gives opts.Writers and
// opts.Relays the rights that they lack. Any number of callers may do so at once.
//
// Tables that exist with other options (ErrDifferent) or in another version (ErrOlder, ErrNewer),
// and tables of these names that are not ours (ErrOccupied), are left alone.
func Up(ctx context.Context, db DB, opts Options) error {
	l, err := opts.parse()
	if err != nil {
		return err
	}
	return inTx(ctx, db, readWrite, func(tx pgx.Tx) error {
		begin, err := l.render("begin.sql", nil)
		if err != nil {
			return err
		}
		if err := exec(ctx, tx, "wait for other migrations", begin); err != nil {
			return err
		}
		sql, err := l.plan(ctx, tx)
		if err != nil || sql == "" {
			return err
		}
		if err := exec(ctx, tx, "make the tables", sql); err != nil {
			return err
		}
		// A GRANT by someone who may not give the right is a mere warning to PostgreSQL.
		if sql, err = l.plan(ctx, tx); err != nil || sql == "" {
			return err
		}
		return fmt.Errorf("migrate: the owner has to run what this role may not: %s", sql)
	})
}

// Plan is the SQL that Up would run on this database, as a script like that of Print; empty if
// there is nothing to do. It changes nothing, and fails where Up would.
func Plan(ctx context.Context, db DB, opts Options) (string, error) {
	l, err := opts.parse()
	if err != nil {
		return "", err
	}
	var sql string
	err = inTx(ctx, db, readOnly, func(tx pgx.Tx) error {
		sql, err = l.plan(ctx, tx)
		return err
	})
	if err != nil || sql == "" {
		return "", err
	}
	return l.script(sql)
}

// inTx runs fn in a transaction of its own and commits it unless fn fails.
func inTx(ctx context.Context, db DB, opts pgx.TxOptions, fn func(pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("migrate: begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("migrate: commit: %w", err)
	}
	return nil
}

// exec runs statements whose results nobody wants.
func exec(ctx context.Context, tx pgx.Tx, doing, sql string) error {
	_, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	var pg *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pg) && pg.Code == "42501": // insufficient_privilege
		return fmt.Errorf("migrate: %s: %w: connect as a role that may, or give the SQL of `commitrelay migrate print` to one who may", doing, err)
	case pg != nil && pg.Code == "55P03": // lock_not_available
		return fmt.Errorf("migrate: %s: %w: it is in use: try again when the writers have gone", doing, err)
	case pg != nil && pg.Detail != "":
		return fmt.Errorf("migrate: %s: %w: %s", doing, err, pg.Detail)
	}
	return fmt.Errorf("migrate: %s: %w", doing, err)
}
