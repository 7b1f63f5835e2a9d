package migrate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/ident"
)

// checkRights names each right that the current role lacks.
func (c *checker) checkRights(ctx context.Context) error {
	missing, err := c.l.missing(ctx, c.tx, c.c.role, c.l.relayRights(c.sequence.name))
	if err != nil {
		return err
	}
	for _, r := range missing {
		if r.later != "" {
			c.found(Warning, r.grant(c.c.role), "role %q lacks %s, which relays need %s", c.c.role, r, r.later)
			continue
		}
		c.found(Error, r.grant(c.c.role), "role %q lacks %s", c.c.role, r)
	}
	return nil
}

// checkSequence: numbers that sessions draw ahead of use come out of order, and those of a
// sequence that a crash resets are handed out twice.
func (c *checker) checkSequence(ctx context.Context) (err error) {
	if c.sequence, err = c.l.readSequence(ctx, c.tx, c.c.relations[c.l.events].oid); err != nil {
		return err
	}
	s, table := c.sequence, c.l.events
	name := s.name
	if s.oid == 0 {
		c.found(Error, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN seq ADD GENERATED ALWAYS AS IDENTITY;", table),
			"column seq of %s has no sequence of its own", tableName(table))
		return nil
	}
	if s.cache != 1 {
		c.found(Error, fmt.Sprintf("ALTER SEQUENCE %s CACHE 1;", name),
			"sequence %s has CACHE %d: events would come out of order and be lost", tableName(name), s.cache)
	}
	if s.step < 1 {
		c.found(Error, fmt.Sprintf("ALTER SEQUENCE %s INCREMENT 1;", name),
			"sequence %s counts by %d: events would come out of order and be lost", tableName(name), s.step)
	}
	if s.cycles {
		c.found(Error, fmt.Sprintf("ALTER SEQUENCE %s NO CYCLE;", name), "sequence %s starts over at its end", tableName(name))
	}
	if s.persistence != "p" {
		c.found(Error, fmt.Sprintf("ALTER SEQUENCE %s SET LOGGED;", name), "sequence %s is not logged: a crash resets it", tableName(name))
	}
	return nil
}

// column is how a column of the events table should be.
type column struct{ name, kind string }

func (l layout) columns() []column {
	return []column{
		{"xid", "xid8"},
		{"seq", "bigint"},
		{"created_at", "timestamp with time zone"},
		{"slot", "smallint"},
		{"id", "uuid"},
		{"aggregate_type", "text"},
		{"aggregate_id", "text"},
		{"event_type", "text"},
		{"payload", string(l.payload)},
		{"headers", "jsonb"},
	}
}

// checkColumns: xid has to be the transaction's id, assigned before seq is drawn. Defaults are
// computed in column order; ALWAYS keeps it so whatever an INSERT says.
func (c *checker) checkColumns(ctx context.Context) error {
	sql, err := c.l.render("columns.sql", nil)
	if err != nil {
		return err
	}
	rows, err := c.tx.Query(ctx, sql, pgx.QueryExecModeExec, c.c.relations[c.l.events].oid)
	if err != nil {
		return fmt.Errorf("migrate: look at the columns of %s: %w", tableName(c.l.events), err)
	}
	type found struct {
		kind, identity, def string
		notNull             bool
		place               int
	}
	has := map[string]found{}
	var name string
	var f found
	if _, err := pgx.ForEachRow(rows, []any{&name, &f.kind, &f.notNull, &f.identity, &f.def}, func() error {
		f.place = len(has)
		has[name] = f
		return nil
	}); err != nil {
		return fmt.Errorf("migrate: look at the columns of %s: %w", tableName(c.l.events), err)
	}

	table := tableName(c.l.events)
	alter := func(what string) string { return fmt.Sprintf("ALTER TABLE %s %s;", c.l.events, what) }
	for _, want := range c.l.columns() {
		f, ok := has[want.name]
		switch {
		case !ok:
			c.found(Error, "restore the table", "column %s of %s is missing", want.name, table)
		case f.kind != want.kind:
			c.found(Error, alter(fmt.Sprintf("ALTER COLUMN %s TYPE %s", want.name, want.kind)), "column %s of %s is %s, not %s", want.name, table, f.kind, want.kind)
		case !f.notNull && want.name != "payload" && want.name != "headers":
			c.found(Error, alter(fmt.Sprintf("ALTER COLUMN %s SET NOT NULL", want.name)), "column %s of %s may be NULL: such an event would reach nobody", want.name, table)
		}
	}
	xid, seq := has["xid"], has["seq"]
	if xid.kind != "" && seq.kind != "" && xid.place > seq.place {
		c.found(Error, "move the events to a table made by `commitrelay migrate up`", "column xid of %s stands behind seq: events would be lost", table)
	}
	if xid.kind != "" && xid.def != "pg_current_xact_id()" {
		c.found(Error, alter("ALTER COLUMN xid SET DEFAULT pg_current_xact_id()"), "column xid of %s has the default %q: events would be lost", table, xid.def)
	}
	if seq.kind != "" && seq.identity == "d" {
		c.found(Error, alter("ALTER COLUMN seq SET GENERATED ALWAYS"), "column seq of %s is not GENERATED ALWAYS: an INSERT may draw a number before the transaction has an id, or give one of its own", table)
	}
	return nil
}

var slotOf = regexp.MustCompile(`[0-9]+`)

// checkLeaves: each slot has its leaf, each leaf has its index, and none loses its rows in a crash.
func (c *checker) checkLeaves(ctx context.Context) error {
	events := c.c.relations[c.l.events]
	if events.kind != "p" {
		c.found(Error, "restore the table", "table %s is not partitioned", tableName(c.l.events))
		return nil
	}
	sql, err := c.l.render("leaves.sql", nil)
	if err != nil {
		return err
	}
	rows, err := c.tx.Query(ctx, sql, pgx.QueryExecModeExec, events.oid)
	if err != nil {
		return fmt.Errorf("migrate: look at the leaves of %s: %w", tableName(c.l.events), err)
	}
	slots := map[int]bool{}
	var leaf ident.Table
	var bound, persistence string
	var indexed bool
	if _, err := pgx.ForEachRow(rows, []any{&leaf.Schema, &leaf.Name, &bound, &persistence, &indexed}, func() error {
		for _, s := range slotOf.FindAllString(bound, -1) {
			slot, _ := strconv.Atoi(s)
			slots[slot] = true
		}
		if persistence != "p" {
			c.found(Error, fmt.Sprintf("ALTER TABLE %s SET LOGGED;", leaf), "table %s is unlogged: a crash would lose its events", tableName(leaf))
		}
		if !indexed {
			c.found(Error, fmt.Sprintf("CREATE INDEX CONCURRENTLY ON %s (seq);", leaf), "table %s has no valid index on seq: each poll would read all of it", tableName(leaf))
		}
		return nil
	}); err != nil {
		return fmt.Errorf("migrate: look at the leaves of %s: %w", tableName(c.l.events), err)
	}
	for slot, name := range c.l.leaves() {
		if !slots[slot] {
			create, err := c.l.render("leaf.sql", map[string]string{"leaf": name, "slot": strconv.Itoa(slot)})
			if err != nil {
				return err
			}
			c.found(Error, strings.TrimSpace(withoutComment(create)), "table %s has no leaf for slot %d: inserts will fail when its time comes", tableName(c.l.events), slot)
		}
	}
	return nil
}

// checkRowSecurity: a policy hides rows without an error, so an outbox full of events looks empty.
func (c *checker) checkRowSecurity(ctx context.Context) error {
	sql, err := c.l.render("row_security.sql", nil)
	if err != nil {
		return err
	}
	oids := []uint32{c.c.relations[c.l.events].oid}
	for _, name := range ownRelations {
		oids = append(oids, c.c.relations[ident.Table{Schema: c.l.schema, Name: name}].oid)
	}
	rows, err := c.tx.Query(ctx, sql, pgx.QueryExecModeExec, oids)
	if err != nil {
		return fmt.Errorf("migrate: look at row level security: %w", err)
	}
	var t ident.Table
	var hides string
	if _, err := pgx.ForEachRow(rows, []any{&t.Schema, &t.Name, &hides}, func() error {
		fix := fmt.Sprintf("CREATE POLICY commitrelay ON %s FOR SELECT TO %s USING (true);", t, ident.Quote(c.c.role))
		if t.Schema == c.l.schema && t != c.l.events {
			fix = fmt.Sprintf("ALTER TABLE %s DISABLE ROW LEVEL SECURITY;", t)
		}
		if hides == "all" {
			c.found(Error, fix, "row level security hides every row of %s from role %q", tableName(t), c.c.role)
		} else {
			c.found(Warning, fix, "row level security may hide rows of %s from role %q: those are never delivered", tableName(t), c.c.role)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("migrate: look at row level security: %w", err)
	}
	return nil
}

// trigger is a trigger or rule that may change an event on its way into the table.
type trigger struct {
	kind     string // "trigger" or "rule"
	table    ident.Table
	name     string
	rewrites bool // its text assigns xid or seq
}

// checkTriggers lists what may rewrite xid or seq; probeTriggers finds out.
func (c *checker) checkTriggers(ctx context.Context) error {
	sql, err := c.l.render("triggers.sql", nil)
	if err != nil {
		return err
	}
	rows, err := c.tx.Query(ctx, sql, pgx.QueryExecModeExec, c.c.relations[c.l.events].oid)
	if err != nil {
		return fmt.Errorf("migrate: look at triggers: %w", err)
	}
	var t trigger
	if _, err := pgx.ForEachRow(rows, []any{&t.kind, &t.table.Schema, &t.table.Name, &t.name, &t.rewrites}, func() error {
		if t.kind == "rule" {
			c.found(Error, t.drop(), "rule %q on %s rewrites inserts", t.name, tableName(t.table))
			return nil
		}
		c.triggers = append(c.triggers, t)
		return nil
	}); err != nil {
		return fmt.Errorf("migrate: look at triggers: %w", err)
	}
	c.probe = len(c.triggers) > 0
	return nil
}

// drop is the statement that removes the trigger or rule.
func (t trigger) drop() string {
	return fmt.Sprintf("DROP %s %s ON %s;", strings.ToUpper(t.kind), ident.Quote(t.name), t.table)
}

// probeTriggers inserts an event to see what the triggers leave of it, and rolls back.
func (c *checker) probeTriggers(ctx context.Context, db DB) error {
	sql, err := c.l.render("probe.sql", nil)
	if err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, readWrite)
	if err != nil {
		return fmt.Errorf("migrate: begin: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	var xid, seq bool
	err = tx.QueryRow(ctx, sql, pgx.QueryExecModeExec, c.sequence.oid).Scan(&xid, &seq)
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		c.triggersFound(Error, "drops events before they are written")
	case errors.As(err, &pg) && pg.Code == "42501":
		for _, t := range c.triggers {
			if t.rewrites {
				c.triggerFound(t, Error, "assigns xid or seq: events would be lost")
			} else {
				c.triggerFound(t, Warning, "may rewrite xid or seq, and this role may not insert to find out: run `commitrelay migrate status` as the table's owner")
			}
		}
	case errors.As(err, &pg):
		c.triggersFound(Warning, fmt.Sprintf("may rewrite xid or seq, and a test failed with %q", pg.Message))
	case err != nil:
		return fmt.Errorf("migrate: try the triggers: %w", err)
	case !xid || !seq:
		c.triggersFound(Error, "rewrites xid or seq: events would be lost")
	default:
		for _, t := range c.triggers {
			if t.rewrites || t.table != c.l.events { // the probe went to one leaf, with one kind of event
				c.triggerFound(t, Warning, "may rewrite xid or seq of other events than the one that was tried")
			}
		}
	}
	return nil
}

func (c *checker) triggersFound(s Severity, what string) {
	for _, t := range c.triggers {
		c.triggerFound(t, s, what)
	}
}

func (c *checker) triggerFound(t trigger, s Severity, what string) {
	c.found(s, t.drop(), "trigger %q on %s %s", t.name, tableName(t.table), what)
}
