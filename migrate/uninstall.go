package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrUnsettled: events are there that have not reached their subscriptions.
var ErrUnsettled = errors.New("events are not settled")

// ErrRelaysLive: relays are at work.
var ErrRelaysLive = errors.New("relays are running")

// UninstallOptions say what to remove.
type UninstallOptions struct {
	// Table and Schema are those of Options.
	Table, Schema string

	// Force gives up events that are not settled, and does not ask about live relays.
	Force bool
}

// Uninstall drops the events table with all events in it, our tables, and our schema if nothing
// else is in it, the role owns it and it is not "public". It refuses while events are not settled
// (ErrUnsettled) or relays run (ErrRelaysLive), unless forced; if the installation is another than
// opts say (ErrDifferent); and if something else was built on the tables. Either all of it goes
// or nothing.
func Uninstall(ctx context.Context, db DB, opts UninstallOptions) error {
	wanted := Options{Table: opts.Table, Schema: opts.Schema}
	l, err := wanted.parse()
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
		c, err := l.readCatalog(ctx, tx)
		if err != nil {
			return err
		}
		if err := c.server(); err != nil {
			return err
		}
		if !c.installed(l) {
			return fmt.Errorf("migrate: schema %q: %w: nothing to remove", l.schema, ErrNotInstalled)
		}
		i, _, err := l.readInstallation(ctx, tx)
		if err != nil {
			return err
		}
		if l, err = wanted.or(i.layout).parse(); err != nil {
			return err
		}
		if err := l.differences(i); err != nil {
			return err
		}
		return i.remove(ctx, tx, opts.Force)
	})
}

// remove drops everything.
func (l layout) remove(ctx context.Context, tx pgx.Tx, force bool) error {
	var c catalog
	if err := l.readRelations(ctx, tx, &c); err != nil {
		return err
	}
	missing := l.absent(c)
	if len(missing) > 0 && !force {
		return fmt.Errorf("migrate: %w: %s: whether events are settled cannot be known: restore them, or force the removal",
			ErrIncomplete, strings.Join(missing, ", "))
	}
	if !force { // before the lock as well: no need to disturb the writers for a refusal
		if err := l.mayGo(ctx, tx); err != nil {
			return err
		}
	}
	if c.relations[l.events].oid != 0 {
		lock, err := l.render("uninstall_lock.sql", nil)
		if err != nil {
			return err
		}
		if err := exec(ctx, tx, "lock the events table", lock); err != nil {
			return err
		}
	}
	if !force {
		if err := l.mayGo(ctx, tx); err != nil {
			return err
		}
	}
	drop, err := l.render("uninstall.sql", nil)
	if err != nil {
		return err
	}
	if err := exec(ctx, tx, "drop the tables", drop); err != nil {
		return err
	}
	return l.dropSchema(ctx, tx)
}

// mayGo says whether nobody needs the tables any more.
func (l layout) mayGo(ctx context.Context, tx pgx.Tx) error {
	sql, err := l.render("live_relays.sql", nil)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, sql, pgx.QueryExecModeExec)
	if err != nil {
		return fmt.Errorf("migrate: look for live relays: %w", err)
	}
	relays, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("migrate: look for live relays: %w", err)
	}
	if len(relays) > 0 {
		return fmt.Errorf("migrate: %w: %s: stop them first", ErrRelaysLive, strings.Join(relays, ", "))
	}

	const enough = 10_000
	if sql, err = l.render("unsettled.sql", nil); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, enough).Scan(&n); err != nil {
		return fmt.Errorf("migrate: count the events that are not settled: %w", err)
	}
	switch {
	case n >= enough:
		return fmt.Errorf("migrate: %w: %d or more of them: let relays deliver them, or force the removal", ErrUnsettled, enough)
	case n > 0:
		return fmt.Errorf("migrate: %w: %d of them: let relays deliver them, or force the removal", ErrUnsettled, n)
	}
	return nil
}

func (l layout) dropSchema(ctx context.Context, tx pgx.Tx) error {
	sql, err := l.render("schema_is_ours.sql", nil)
	if err != nil {
		return err
	}
	var ours bool
	if err := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&ours); err != nil {
		return fmt.Errorf("migrate: look at schema %q: %w", l.schema, err)
	}
	if !ours {
		return nil
	}
	if sql, err = l.render("drop_schema.sql", nil); err != nil {
		return err
	}
	return exec(ctx, tx, "drop the schema", sql)
}
