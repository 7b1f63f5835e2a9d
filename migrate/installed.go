package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
)

// What stands in the way of a migration or of a relay; errors.Is tells them apart.
var (
	// ErrNotInstalled: the schema holds no installation. Run `commitrelay migrate up`.
	ErrNotInstalled = errors.New("commitrelay is not installed")

	// ErrOlder: the tables are older than this binary.
	ErrOlder = errors.New("the tables are older than this version of commitrelay")

	// ErrNewer: the tables are newer than this binary. Use the version that made them, or a later one.
	ErrNewer = errors.New("the tables are newer than this version of commitrelay")

	// ErrDifferent: the tables were made with other options.
	ErrDifferent = errors.New("installed with other options")

	// ErrIncomplete: an installation is there, but some of its tables are gone.
	ErrIncomplete = errors.New("tables of commitrelay are missing")

	// ErrOccupied: a name that is needed belongs to something else.
	ErrOccupied = errors.New("a name is taken")
)

// installation is what was installed, and when.
type installation struct {
	layout
	at time.Time
}

// readInstallation reads our one row. The version comes first: a newer one may have other columns.
func (l layout) readInstallation(ctx context.Context, tx pgx.Tx) (i installation, version int, err error) {
	sql, err := l.render("version.sql", nil)
	if err != nil {
		return i, 0, err
	}
	err = tx.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return i, 0, fmt.Errorf("migrate: schema %q: %w: its table installation is empty", l.schema, ErrNotInstalled)
	case err != nil:
		return i, 0, fmt.Errorf("migrate: read the version: %w", err)
	case version > Version:
		return i, version, fmt.Errorf("migrate: schema %q: %w: they have version %d, this binary knows %d: use the newer binary",
			l.schema, ErrNewer, version, Version)
	case version < Version:
		return i, version, fmt.Errorf("migrate: schema %q: %w: they have version %d, this binary needs %d and knows no way from there: use the binary that made them",
			l.schema, ErrOlder, version, Version)
	}
	if sql, err = l.render("installed.sql", nil); err != nil {
		return i, version, err
	}
	var payload string
	var seconds int64
	row := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec)
	if err := row.Scan(&i.events.Schema, &i.events.Name, &payload, &i.slots, &seconds, &i.at); err != nil {
		return i, version, fmt.Errorf("migrate: read the installation: %w", err)
	}
	i.schema, i.payload, i.width = l.schema, outbox.PayloadType(payload), time.Duration(seconds)*time.Second
	return i, version, nil
}

// differences compares what is wanted with what is there and names both values.
func (l layout) differences(i installation) error {
	want := l.events
	if want.Schema == "" { // whatever the search_path was when the tables were made
		want.Schema = i.events.Schema
	}
	var diffs []string
	differ := func(what string, want, have any) {
		if want != have {
			diffs = append(diffs, fmt.Sprintf("the %s is %v, not %v", what, have, want))
		}
	}
	differ("events table", tableName(want), tableName(i.events))
	differ("payload type", l.payload, i.payload)
	differ("number of slots", l.slots, i.slots)
	differ("slot width", l.width, i.width)
	if len(diffs) == 0 {
		return nil
	}
	return fmt.Errorf("migrate: schema %q: %w: %s: give the options it was made with, or another schema and table for a second outbox",
		l.schema, ErrDifferent, strings.Join(diffs, "; "))
}
