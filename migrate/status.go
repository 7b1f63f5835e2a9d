package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/ident"
)

// Status is what there is in a database.
type Status struct {
	Installed   bool
	Version     int // of the tables
	InstalledAt time.Time

	// Options are those of the installation; without its roles, which nobody wrote down.
	Options Options

	// Findings are those of Check.
	Findings Findings
}

// Severity says how bad a Finding is.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // events would be lost, or relays cannot work
	Warning Severity = "warning" // works now; the finding says what will not
)

// Finding is something that should not be so.
type Finding struct {
	Severity Severity
	Problem  string
	Fix      string // the statement or command that mends it, or what to do

	cause error // what errors.Is may ask for
}

// String is the finding in one line.
func (f Finding) String() string {
	if f.Fix == "" {
		return fmt.Sprintf("%s: %s", f.Severity, f.Problem)
	}
	return fmt.Sprintf("%s: %s: %s", f.Severity, f.Problem, f.Fix)
}

// Findings are all that Check found; empty if all is well.
type Findings []Finding

// Err joins the findings that are errors; nil if none is.
func (fs Findings) Err() error {
	var errs []error
	for _, f := range fs {
		switch {
		case f.Severity != Error:
		case f.Fix == "":
			errs = append(errs, findingError{f.Problem, f.cause})
		default:
			errs = append(errs, findingError{f.Problem + ": " + f.Fix, f.cause})
		}
	}
	return errors.Join(errs...)
}

type findingError struct {
	text  string
	cause error
}

func (e findingError) Error() string { return e.text }
func (e findingError) Unwrap() error { return e.cause }

// Check looks for what would keep relays from working, or let them lose events, as the role that
// db connects as: the server, the version of the tables, the role's rights, the column order, the
// sequence, the indexes, triggers and row level security. It reports all findings at once; the
// error says that it could not look. Of opts, what is set is compared with the installation.
//
// Check changes nothing. Where a trigger might rewrite events it inserts one and rolls back, if
// the role may: that leaves a gap in the sequence.
func Check(ctx context.Context, db DB, opts Options) (Findings, error) {
	s, err := ReadStatus(ctx, db, opts)
	return s.Findings, err
}

// ReadStatus says what is installed, and what is wrong with it. See Check.
func ReadStatus(ctx context.Context, db DB, opts Options) (Status, error) {
	l, err := opts.parse()
	if err != nil {
		return Status{}, err
	}
	var c *checker
	err = inTx(ctx, db, readOnly, func(tx pgx.Tx) error {
		c = &checker{tx: tx, l: l, wanted: opts}
		return c.look(ctx)
	})
	if err != nil {
		return Status{}, err
	}
	if c.probe {
		if err := c.probeTriggers(ctx, db); err != nil {
			return Status{}, err
		}
	}
	return c.status, nil
}

// checker collects what it finds.
type checker struct {
	tx     pgx.Tx
	l      layout
	wanted Options

	c        catalog
	sequence sequence
	triggers []trigger
	probe    bool // a trigger has to be tried
	status   Status
}

func (c *checker) found(s Severity, fix, problem string, args ...any) {
	c.status.Findings = append(c.status.Findings, Finding{Severity: s, Problem: fmt.Sprintf(problem, args...), Fix: fix})
}

func (c *checker) foundErr(err error) {
	c.status.Findings = append(c.status.Findings, Finding{
		Severity: Error, Problem: strings.TrimPrefix(err.Error(), "migrate: "), cause: err,
	})
}

// look goes on as far as what it found so far allows.
func (c *checker) look(ctx context.Context) (err error) {
	if c.c, err = c.l.readCatalog(ctx, c.tx); err != nil {
		return err
	}
	if err := c.c.server(); err != nil {
		c.foundErr(err)
		if c.c.version < 140000 {
			return nil
		}
	}
	if !c.c.installed(c.l) {
		c.status.Findings = append(c.status.Findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("schema %q: %v", c.l.schema, ErrNotInstalled),
			Fix: "run `commitrelay migrate up`, or configure the schema it is in", cause: ErrNotInstalled,
		})
		return nil
	}
	c.status.Installed = true
	readable, err := c.mayReadInstallation(ctx)
	if err != nil {
		return err
	}
	if !readable { // go by the configured table as far as that goes
		if c.sequence, err = c.l.readSequence(ctx, c.tx, c.c.relations[c.l.events].oid); err != nil {
			return err
		}
		return c.checkRights(ctx)
	}
	ok, err := c.readInstallation(ctx)
	if err != nil || !ok {
		return err
	}
	if names := c.l.absent(c.c); len(names) > 0 {
		c.status.Findings = append(c.status.Findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("%v: %s", ErrIncomplete, strings.Join(names, ", ")),
			Fix: "restore them from a backup, or start over with `commitrelay migrate uninstall --force`", cause: ErrIncomplete,
		})
		return nil
	}
	for _, check := range []func(context.Context) error{
		c.checkSequence, c.checkRights, c.checkColumns, c.checkLeaves, c.checkTriggers, c.checkRowSecurity,
	} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// mayReadInstallation asks before it reads: an error would end the transaction.
func (c *checker) mayReadInstallation(ctx context.Context) (bool, error) {
	missing, err := c.l.missing(ctx, c.tx, c.c.role, []right{
		{kind: "SCHEMA", object: ident.Table{Schema: c.l.schema}, privileges: []string{"USAGE"}},
		{kind: "TABLE", object: ident.Table{Schema: c.l.schema, Name: "installation"}, privileges: []string{"SELECT"}},
	})
	return len(missing) == 0, err
}

// readInstallation goes on with the installation's options; false if its version does not fit.
func (c *checker) readInstallation(ctx context.Context) (bool, error) {
	i, version, err := c.l.readInstallation(ctx, c.tx)
	c.status.Version = version
	switch {
	case errors.Is(err, ErrNotInstalled):
		c.status.Installed = false
		c.foundErr(err)
		return false, nil
	case errors.Is(err, ErrOlder), errors.Is(err, ErrNewer):
		c.foundErr(err)
		return false, nil
	case err != nil:
		return false, err
	}
	wanted, err := c.wanted.or(i.layout).parse()
	if err != nil {
		return false, err
	}
	if err := wanted.differences(i); err != nil {
		c.foundErr(err)
	}
	c.l = i.layout
	c.status.Options, c.status.InstalledAt = i.options(), i.at
	return true, c.l.readRelations(ctx, c.tx, &c.c)
}

// or completes what o leaves to the defaults with what was installed. The table is compared in any case: its
// default is what writers and relays use without being told.
func (o Options) or(l layout) Options {
	o.Payload = orDefault(o.Payload, l.payload)
	o.SlotWidth = orDefault(o.SlotWidth, l.width)
	o.Slots = orDefault(o.Slots, l.slots)
	return o
}
