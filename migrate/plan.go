package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/ident"
)

// plan is the SQL that makes the database what l says; empty if it is so already.
func (l layout) plan(ctx context.Context, tx pgx.Tx) (string, error) {
	resolved := l
	c, err := resolved.readCatalog(ctx, tx)
	if err != nil {
		return "", err
	}
	if err := c.server(); err != nil {
		return "", err
	}
	if c.installed(l) {
		i, _, err := l.readInstallation(ctx, tx)
		if err != nil {
			return "", err
		}
		if err := l.differences(i); err != nil {
			return "", err
		}
		l.events = i.events
		if err := l.readRelations(ctx, tx, &c); err != nil {
			return "", err
		}
		if missing := l.absent(c); len(missing) > 0 {
			return "", fmt.Errorf("migrate: %w: %s: restore them from a backup, or start over with `commitrelay migrate uninstall --force`",
				ErrIncomplete, strings.Join(missing, ", "))
		}
		sequence, err := l.readSequence(ctx, tx, c.relations[l.events].oid)
		if err != nil {
			return "", err
		}
		return l.missingGrants(ctx, tx, sequence.name)
	}
	if err := resolved.free(c); err != nil {
		return "", err
	}
	return resolved.create(!slices.Contains(c.schemas, l.schema))
}

// free says whether the schema of the events table is there, and all the names we need are not.
func (l layout) free(c catalog) error {
	if l.events.Schema == "" {
		return fmt.Errorf("migrate: table %q: no schema of the search_path exists: write schema.table", l.events.Name)
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("migrate: "+format, args...)) }
	if l.events.Schema != l.schema && !slices.Contains(c.schemas, l.events.Schema) && l.events.Schema != c.searchPath {
		fault("schema %q of the events table does not exist: create it, or name another", l.events.Schema)
	}
	if l.events.Schema == l.schema && slices.Contains(ownRelations, l.events.Name) {
		fault("table %s: %w: commitrelay has a table or view of that name: choose another", tableName(l.events), ErrOccupied)
	}
	taken := make([]ident.Table, 0, len(c.relations))
	for t := range c.relations {
		taken = append(taken, t)
	}
	slices.SortFunc(taken, func(a, b ident.Table) int {
		return slices.Compare([]string{a.Schema, a.Name}, []string{b.Schema, b.Name})
	})
	for _, t := range taken {
		if t == l.events {
			fault("table %s exists, and schema %q knows nothing of it: %w: choose another name; to go on with that table it has to be adopted, and `migrate adopt` is not in this version",
				tableName(t), l.schema, ErrOccupied)
			continue
		}
		fault("%s exists and is not commitrelay's: %w: rename it, or choose another table or schema", tableName(t), ErrOccupied)
	}
	return errors.Join(errs...)
}
