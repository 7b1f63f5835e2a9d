package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/ident"
)

// What stands in the way of a migration; errors.Is tells them apart.
var (
	// ErrNotInstalled: the schema holds no installation. Run `commitrelay migrate up`.
	ErrNotInstalled = errors.New("commitrelay is not installed")

	// ErrOlder: the tables are older than this binary. Run `commitrelay migrate up` of this version.
	ErrOlder = errors.New("the tables are older than this version of commitrelay")

	// ErrNewer: the tables are newer than this binary. Use the version that made them, or a later one.
	ErrNewer = errors.New("the tables are newer than this version of commitrelay")

	// ErrDifferent: the tables were made with other options.
	ErrDifferent = errors.New("installed with other options")

	// ErrOccupied: a name that is needed belongs to something else.
	ErrOccupied = errors.New("a name is taken")
)

// ownRelations are the names that we use in our schema.
var ownRelations = []string{"installation", "subscriptions", "windows", "lanes", "parked", "relays", "run", "events"}

// installation is what was installed, and by which version.
type installation struct {
	layout
	version int
	at      time.Time
}

// server is what the catalog says before anything of ours is read.
type server struct {
	version       int
	versionName   string
	standby       bool
	currentSchema string
	schemas       []string
}

func (l layout) readServer(ctx context.Context, tx pgx.Tx) (s server, err error) {
	sql, err := l.render("server.sql", nil)
	if err != nil {
		return s, err
	}
	row := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, []string{l.schema, l.events.Schema})
	if err := row.Scan(&s.version, &s.versionName, &s.standby, &s.currentSchema, &s.schemas); err != nil {
		return s, explain("look at the server", err)
	}
	return s, nil
}

// readRelations are the relations that hold one of the names we use, as "schema.name" with their kinds.
func (l layout) readRelations(ctx context.Context, tx pgx.Tx) (map[ident.Table]string, error) {
	sql, err := l.render("relations.sql", nil)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, sql, pgx.QueryExecModeExec, ownRelations, append(l.leaves(), l.events.Name))
	if err != nil {
		return nil, explain("look for our tables", err)
	}
	found := map[ident.Table]string{}
	var t ident.Table
	var kind string
	if _, err := pgx.ForEachRow(rows, []any{&t.Schema, &t.Name, &kind}, func() error {
		found[t] = kind
		return nil
	}); err != nil {
		return nil, explain("look for our tables", err)
	}
	return found, nil
}

// readInstallation reads our one row. The version comes first: a newer one may have other columns.
func (l layout) readInstallation(ctx context.Context, tx pgx.Tx) (i installation, err error) {
	sql, err := l.render("version.sql", nil)
	if err != nil {
		return i, err
	}
	err = tx.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&i.version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return i, fmt.Errorf("migrate: schema %q: %w: its table installation is empty", l.schema, ErrNotInstalled)
	case err != nil:
		return i, explain("read the version", err)
	case i.version > Version:
		return i, fmt.Errorf("migrate: schema %q: %w: they have version %d, this binary knows %d: use the newer binary", l.schema, ErrNewer, i.version, Version)
	case i.version < Version:
		return i, fmt.Errorf("migrate: schema %q: %w: they have version %d, this binary needs %d: run `commitrelay migrate up`", l.schema, ErrOlder, i.version, Version)
	}
	if sql, err = l.render("installed.sql", nil); err != nil {
		return i, err
	}
	var payload string
	var seconds int64
	if err := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(
		&i.version, &i.events.Schema, &i.events.Name, &payload, &i.slots, &seconds, &i.at); err != nil {
		return i, explain("read the installation", err)
	}
	i.schema, i.payload, i.width = l.schema, outbox.PayloadType(payload), time.Duration(seconds)*time.Second
	return i, nil
}

// differences compares what is wanted with what is there and names both values.
func (l layout) differences(i installation) error {
	var diffs []string
	differ := func(what string, want, have any) {
		if want != have {
			diffs = append(diffs, fmt.Sprintf("%s is %v, not %v", what, have, want))
		}
	}
	if l.events.Schema == "" { // whatever the search_path was then
		differ("the events table", tableName(l.events), tableName(ident.Table{Name: i.events.Name}))
	} else {
		differ("the events table", tableName(l.events), tableName(i.events))
	}
	differ("the payload type", l.payload, i.payload)
	differ("the number of slots", l.slots, i.slots)
	differ("the slot width", l.width, i.width)
	if len(diffs) == 0 {
		return nil
	}
	return fmt.Errorf("migrate: schema %q: %w: %s: give the options it was made with, or another schema and table for a second outbox",
		l.schema, ErrDifferent, strings.Join(diffs, "; "))
}

// plan is the SQL that makes the database what l says; empty if it is so already.
func (l layout) plan(ctx context.Context, tx pgx.Tx) (string, error) {
	s, err := l.readServer(ctx, tx)
	if err != nil {
		return "", err
	}
	if err := s.check(); err != nil {
		return "", err
	}
	if l.events.Schema == "" && s.currentSchema == "" {
		return "", fmt.Errorf("migrate: table %q: no schema in the search_path exists: write schema.table", l.events.Name)
	}
	resolved := l
	if l.events.Schema == "" {
		resolved.events.Schema = s.currentSchema
	}
	found, err := resolved.readRelations(ctx, tx)
	if err != nil {
		return "", err
	}
	if _, ok := found[ident.Table{Schema: l.schema, Name: "installation"}]; ok {
		i, err := l.readInstallation(ctx, tx)
		if err != nil {
			return "", err
		}
		return "", l.differences(i)
	}
	if err := resolved.free(found); err != nil {
		return "", err
	}
	if l.events.Schema != "" && !slices.Contains(s.schemas, l.events.Schema) && l.events.Schema != l.schema {
		return "", fmt.Errorf("migrate: schema %q of the events table does not exist: create it, or name another", l.events.Schema)
	}
	path, err := resolved.render("search_path.sql", nil)
	if err != nil {
		return "", err
	}
	sql, err := resolved.create(!slices.Contains(s.schemas, l.schema))
	return path + "\n" + sql, err
}

// check says whether our tables can live on the server.
func (s server) check() error {
	switch {
	case s.version < 140000:
		return fmt.Errorf("migrate: the server is PostgreSQL %s: commitrelay needs 14 or later", s.versionName)
	case s.standby:
		return errors.New("migrate: the server is a standby: connect to the primary")
	}
	return nil
}

// free says whether all the names we need are.
func (l layout) free(found map[ident.Table]string) error {
	var errs []error
	if _, ok := found[l.events]; ok {
		errs = append(errs, fmt.Errorf("migrate: table %s exists and is not commitrelay's: %w: choose another name; to go on with that table it would have to be adopted, and `migrate adopt` is not in this version",
			tableName(l.events), ErrOccupied))
	}
	for t := range found {
		if t != l.events {
			errs = append(errs, fmt.Errorf("migrate: %s exists and is not commitrelay's: %w: rename it, or choose another schema or table", tableName(t), ErrOccupied))
		}
	}
	return errors.Join(errs...)
}
