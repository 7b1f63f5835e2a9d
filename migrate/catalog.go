package migrate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/ident"
)

// catalog is what can be known without any right on our schemas.
type catalog struct {
	version     int // of the server, as 150018
	versionName string
	standby     bool
	searchPath  string // its first schema that exists
	role        string
	schemas     []string // of those we use
	relations   map[ident.Table]relation
}

type relation struct {
	oid         uint32
	kind        string // pg_class.relkind
	persistence string // pg_class.relpersistence
}

// ownRelations are the names that we use in our schema.
var ownRelations = []string{"installation", "subscriptions", "windows", "lanes", "parked", "relays", "run", "events"}

// readCatalog also completes l with the schema of the events table.
func (l *layout) readCatalog(ctx context.Context, tx pgx.Tx) (c catalog, err error) {
	sql, err := l.render("server.sql", nil)
	if err != nil {
		return c, err
	}
	row := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, []string{l.schema, l.events.Schema})
	if err := row.Scan(&c.version, &c.versionName, &c.standby, &c.searchPath, &c.role, &c.schemas); err != nil {
		return c, fmt.Errorf("migrate: look at the server: %w", err)
	}
	if l.events.Schema == "" {
		l.events.Schema = c.searchPath
	}
	return c, l.readRelations(ctx, tx, &c)
}

// readRelations finds what has one of our names.
func (l layout) readRelations(ctx context.Context, tx pgx.Tx, c *catalog) error {
	sql, err := l.render("relations.sql", nil)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, sql, pgx.QueryExecModeExec, ownRelations, append(l.leaves(), l.events.Name, l.sequence().Name))
	if err != nil {
		return fmt.Errorf("migrate: look for our tables: %w", err)
	}
	c.relations = map[ident.Table]relation{}
	var t ident.Table
	var r relation
	_, err = pgx.ForEachRow(rows, []any{&t.Schema, &t.Name, &r.oid, &r.kind, &r.persistence}, func() error {
		c.relations[t] = r
		return nil
	})
	if err != nil {
		return fmt.Errorf("migrate: look for our tables: %w", err)
	}
	return nil
}

// server says whether our tables can live on the server.
func (c catalog) server() error {
	switch {
	case c.version < 140000:
		return fmt.Errorf("migrate: the server is PostgreSQL %s: commitrelay needs 14 or later", c.versionName)
	case c.standby:
		return errors.New("migrate: the server is a standby: connect to the primary")
	}
	return nil
}

// installed says whether our schema holds what looks like an installation.
func (c catalog) installed(l layout) bool {
	r, ok := c.relations[ident.Table{Schema: l.schema, Name: "installation"}]
	return ok && r.kind == "r"
}

// absent are the names of our tables that do not exist.
func (l layout) absent(c catalog) []string {
	var names []string
	for _, name := range ownRelations {
		if t := (ident.Table{Schema: l.schema, Name: name}); c.relations[t].oid == 0 {
			names = append(names, tableName(t))
		}
	}
	if c.relations[l.events].oid == 0 {
		names = append(names, tableName(l.events))
	}
	return names
}

// sequence is what stands behind seq.
type sequence struct {
	name        ident.Table
	oid         uint32
	cache, step int64
	cycles      bool
	persistence string
}

// readSequence finds the sequence of the events table; the zero sequence if it has none.
func (l layout) readSequence(ctx context.Context, tx pgx.Tx, table uint32) (s sequence, err error) {
	sql, err := l.render("sequence.sql", nil)
	if err != nil {
		return s, err
	}
	row := tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, table)
	err = row.Scan(&s.name.Schema, &s.name.Name, &s.oid, &s.cache, &s.step, &s.cycles, &s.persistence)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return s, fmt.Errorf("migrate: look at the sequence of %s: %w", tableName(l.events), err)
	}
	return s, nil
}
