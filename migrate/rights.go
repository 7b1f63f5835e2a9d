package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/ident"
)

// right is something a role may do with an object.
type right struct {
	kind       string        // SCHEMA, TABLE or SEQUENCE
	object     ident.Table   // a schema has only the Schema
	more       []ident.Table // tables of which the same is true
	privileges []string
	columns    []string // of a table; none: the whole table
	later      string   // delivery does without it, but this will fail: "after a restore of the database"
}

// writerRights is all that an application needs to insert events. Without xid, seq, slot and
// created_at: those are PostgreSQL's. (An identity column needs no right on its sequence.)
func (l layout) writerRights() []right {
	return []right{
		{kind: "SCHEMA", object: ident.Table{Schema: l.events.Schema}, privileges: []string{"USAGE"}},
		{
			kind: "TABLE", object: l.events, privileges: []string{"INSERT"},
			columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers"},
		},
	}
}

// relayRights is all that a relay needs.
func (l layout) relayRights(sequence ident.Table) []right {
	own := func(name string, privileges ...string) right {
		return right{kind: "TABLE", object: ident.Table{Schema: l.schema, Name: name}, privileges: privileges}
	}
	rights := []right{
		{kind: "SCHEMA", object: ident.Table{Schema: l.events.Schema}, privileges: []string{"USAGE"}},
		{kind: "SCHEMA", object: ident.Table{Schema: l.schema}, privileges: []string{"USAGE"}},
		{kind: "TABLE", object: l.events, privileges: []string{"SELECT"}},
		// To keep writers away for an instant after a restore.
		{kind: "TABLE", object: l.events, privileges: []string{"TRUNCATE"}, later: "after a restore of the database"},
		{kind: "SEQUENCE", object: sequence, privileges: []string{"SELECT"}},
		own("installation", "SELECT"),
		own("run", "SELECT", "INSERT"),
		own("subscriptions", "SELECT", "INSERT", "UPDATE", "DELETE"),
		own("windows", "SELECT", "INSERT", "UPDATE", "DELETE"),
		own("lanes", "SELECT", "INSERT", "UPDATE", "DELETE"),
		own("parked", "SELECT", "INSERT", "UPDATE", "DELETE"),
		own("relays", "SELECT", "INSERT", "UPDATE", "DELETE"),
		own("events", "SELECT"), // the view, for `commitrelay status`
	}
	// A TRUNCATE of a leaf asks for the right to that very table.
	slots := right{kind: "TABLE", privileges: []string{"TRUNCATE"}, later: "to give space back"}
	for _, leaf := range l.leaves() {
		slots.add(ident.Table{Schema: l.events.Schema, Name: leaf})
	}
	return append(rights, slots)
}

// add adds a table to those that the right is about.
func (r *right) add(t ident.Table) {
	switch {
	case r.object == ident.Table{}:
		r.object = t
	case r.object != t && !slices.Contains(r.more, t):
		r.more = append(r.more, t)
	}
}

func (r right) objects() []ident.Table { return append([]ident.Table{r.object}, r.more...) }

// String is what a right is called in messages: "SELECT on table public.outbox_events".
func (r right) String() string {
	what := strings.Join(r.privileges, ", ") + " on " + strings.ToLower(r.kind) + " " + r.objectName(tableName)
	if len(r.columns) > 0 {
		what += " (" + strings.Join(r.columns, ", ") + ")"
	}
	return what
}

func (r right) objectName(table func(ident.Table) string) string {
	if r.kind == "SCHEMA" {
		return ident.Quote(r.object.Schema)
	}
	var names []string
	for _, t := range r.objects() {
		names = append(names, table(t))
	}
	return strings.Join(names, ", ")
}

// grant is the statement that gives the right.
func (r right) grant(role string) string {
	columns := ""
	if len(r.columns) > 0 {
		columns = " (" + strings.Join(r.columns, ", ") + ")"
	}
	return fmt.Sprintf("GRANT %s%s ON %s %s TO %s;", strings.Join(r.privileges, ", "), columns,
		r.kind, r.objectName(ident.Table.String), ident.Quote(role))
}

// missing are the parts of rights that the role lacks.
func (l layout) missing(ctx context.Context, tx pgx.Tx, role string, rights []right) ([]right, error) {
	var kinds, schemas, names, columns, privileges []string
	var owner []int // the place in rights
	for i, r := range rights {
		cols := r.columns
		if len(cols) == 0 {
			cols = []string{""}
		}
		for _, object := range r.objects() {
			for _, p := range r.privileges {
				for _, c := range cols {
					kinds, schemas, names = append(kinds, r.kind), append(schemas, object.Schema), append(names, object.Name)
					columns, privileges, owner = append(columns, c), append(privileges, p), append(owner, i)
				}
			}
		}
	}
	sql, err := l.render("missing_rights.sql", nil)
	if err != nil {
		return nil, err
	}
	doing := fmt.Sprintf("look at the rights of role %q", role)
	rows, err := tx.Query(ctx, sql, pgx.QueryExecModeExec, role, kinds, schemas, names, columns, privileges)
	if err != nil {
		return nil, fmt.Errorf("migrate: %s: %w", doing, err)
	}
	places, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, fmt.Errorf("migrate: %s: %w", doing, err)
	}
	var lacks []right
	last := -1
	for _, place := range places {
		i := owner[place-1]
		if i != last {
			r := rights[i]
			r.object, r.more, r.privileges, r.columns = ident.Table{}, nil, nil, nil
			lacks = append(lacks, r)
			last = i
		}
		r := &lacks[len(lacks)-1]
		r.add(ident.Table{Schema: schemas[place-1], Name: names[place-1]})
		if p := privileges[place-1]; !slices.Contains(r.privileges, p) {
			r.privileges = append(r.privileges, p)
		}
		if c := columns[place-1]; c != "" && !slices.Contains(r.columns, c) {
			r.columns = append(r.columns, c)
		}
	}
	return lacks, nil
}

// grants is the SQL that gives all rights to the roles of l.
func (l layout) grants(sequence ident.Table) string {
	var out strings.Builder
	for _, role := range l.writers {
		fmt.Fprintf(&out, "\n-- Write events: the columns that are the application's, and nothing else.\n")
		writeGrants(&out, role, l.writerRights())
	}
	for _, role := range l.relays {
		fmt.Fprintf(&out, "\n-- Relay events.\n")
		writeGrants(&out, role, l.relayRights(sequence))
	}
	return out.String()
}

// missingGrants is the SQL that gives the roles of l what they lack.
func (l layout) missingGrants(ctx context.Context, tx pgx.Tx, sequence ident.Table) (string, error) {
	var out strings.Builder
	add := func(roles []string, rights []right) error {
		for _, role := range roles {
			lacks, err := l.missing(ctx, tx, role, rights)
			if err != nil {
				return err
			}
			writeGrants(&out, role, lacks)
		}
		return nil
	}
	if err := add(l.writers, l.writerRights()); err != nil {
		return "", err
	}
	if err := add(l.relays, l.relayRights(sequence)); err != nil {
		return "", err
	}
	return out.String(), nil
}

func writeGrants(out *strings.Builder, role string, rights []right) {
	for _, r := range rights {
		out.WriteString(r.grant(role) + "\n")
	}
}
