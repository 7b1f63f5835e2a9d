package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/config"
	"github.com/commitrelay/outbox/migrate"
)

func migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make, inspect or remove the tables",
		Args:  suggestCommand,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(migrateUp(), migrateStatus(), migratePrint(), migrateUninstall())
	return cmd
}

// layoutFlags are the options of the tables that only their making needs.
type layoutFlags struct {
	payload         string
	width           time.Duration
	slots           int
	writers, relays []string
}

func (f *layoutFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.payload, "payload", "", "`type` of the payload column: json, jsonb, bytea or text (default json)")
	cmd.Flags().DurationVar(&f.width, "slot-width", 0, "`duration` of a slot of the wheel (default 1h)")
	cmd.Flags().IntVar(&f.slots, "slots", 0, "`number` of slots of the wheel (default 8)")
	cmd.Flags().StringArrayVar(&f.writers, "writer", nil, "`role` that gets the rights to write events; may be repeated")
	cmd.Flags().StringArrayVar(&f.relays, "relay", nil, "`role` that gets the rights to run relays; may be repeated")
}

func (f *layoutFlags) options(db config.Database) migrate.Options {
	o := tables(db)
	o.Payload = outbox.PayloadType(f.payload)
	o.SlotWidth, o.Slots = f.width, f.slots
	o.Writers, o.Relays = f.writers, f.relays
	return o
}

// withDatabase runs fn on the database that the configuration names.
func withDatabase(cmd *cobra.Command, src *source, fn func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error) error {
	cfg, err := src.load(config.Source{})
	if err != nil {
		return err
	}
	ctx, stop := signals(cmd.Context(), nil)
	defer stop()
	pool, err := openPool(ctx, cfg.Database, true)
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(ctx, pool, cfg)
}

func migrateUp() *cobra.Command {
	var flags layoutFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make the tables, or complete them",
		Long: `Up makes the events table and commitrelay's own tables in one transaction, and
gives the named roles the least rights they need. Any number may do so at once;
what is there already is left alone.`,
		Example: "  commitrelay migrate up --database postgres://localhost/shop --writer shop --relay relay",
		Args:    noArguments,
	}
	src := bind(cmd, "database.")
	flags.bind(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withDatabase(cmd, src, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
			opts := flags.options(cfg.Database)
			if err := bringUp(ctx, pool, opts); err != nil {
				return err
			}
			s, err := migrate.ReadStatus(ctx, pool, migrate.Options{Table: opts.Table, Schema: opts.Schema})
			if err != nil {
				return err
			}
			s.Findings = nil // those of the role that migrates, which need not be the one that relays
			return printTables(cmd.OutOrStdout(), s, asJSON)
		})
	}
	return cmd
}

// bringUp makes the tables.
func bringUp(ctx context.Context, pool *pgxpool.Pool, opts migrate.Options) error {
	opts, err := asInstalled(ctx, pool, opts)
	if err != nil {
		return err
	}
	return migrate.Up(ctx, pool, opts)
}

// asInstalled fills in what opts leave open as it is where the tables exist already: only who asks for
// another payload type or wheel is told that they differ.
func asInstalled(ctx context.Context, pool *pgxpool.Pool, opts migrate.Options) (migrate.Options, error) {
	s, err := migrate.ReadStatus(ctx, pool, migrate.Options{Table: opts.Table, Schema: opts.Schema})
	if err != nil || !s.Installed {
		return opts, err
	}
	opts.Payload = cmp.Or(opts.Payload, s.Options.Payload)
	opts.SlotWidth = cmp.Or(opts.SlotWidth, s.Options.SlotWidth)
	opts.Slots = cmp.Or(opts.Slots, s.Options.Slots)
	return opts, nil
}

func migrateStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say what is installed and whether relays can work with it",
		Args:  noArguments,
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withDatabase(cmd, src, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
			s, err := migrate.ReadStatus(ctx, pool, tables(cfg.Database))
			if err != nil {
				return err
			}
			if err := printTables(cmd.OutOrStdout(), s, asJSON); err != nil {
				return err
			}
			if s.Findings.Err() != nil {
				return shownError{}
			}
			return nil
		})
	}
	return cmd
}

func migratePrint() *cobra.Command {
	var flags layoutFlags
	var plan bool
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the SQL that up runs, for whoever applies it",
		Long: `Print writes the SQL that up runs on a database without the tables, as a script
for psql. It does not connect. With --plan it connects and prints what up would
run there: nothing, if nothing is to do.`,
		Args: noArguments,
	}
	src := bind(cmd, "database.")
	flags.bind(cmd)
	cmd.Flags().BoolVar(&plan, "plan", false, "look at the database and print only what it lacks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if plan {
			return withDatabase(cmd, src, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
				opts, err := asInstalled(ctx, pool, flags.options(cfg.Database))
				if err != nil {
					return err
				}
				return printSQL(cmd.OutOrStdout())(migrate.Plan(ctx, pool, opts))
			})
		}
		cfg, err := src.load(config.Source{Offline: true})
		if err != nil {
			return err
		}
		return printSQL(cmd.OutOrStdout())(migrate.Print(flags.options(cfg.Database)))
	}
	return cmd
}

func printSQL(w io.Writer) func(sql string, err error) error {
	return func(sql string, err error) error {
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, sql)
		return err
	}
}

func migrateUninstall() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Drop the tables with all events in them",
		Long: `Uninstall drops the events table with all events in it and commitrelay's own
tables. It refuses while events are not settled or relays run, unless forced.`,
		Args: noArguments,
	}
	src := bind(cmd, "database.")
	cmd.Flags().BoolVar(&force, "force", false, "give up events that are not settled, and do not ask about live relays")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withDatabase(cmd, src, func(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
			t := tables(cfg.Database)
			err := migrate.Uninstall(ctx, pool, migrate.UninstallOptions{Table: t.Table, Schema: t.Schema, Force: force})
			if errors.Is(err, migrate.ErrUnsettled) || errors.Is(err, migrate.ErrRelaysLive) {
				return fmt.Errorf("%w\ntry `commitrelay status`, or --force", err)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s and schema %s\n", plainName(cfg.Database.Table), t.Schema)
			return err
		})
	}
	return cmd
}

// tablesView is migrate.Status for machines.
type tablesView struct {
	Installed   bool          `json:"installed"`
	Version     int           `json:"version,omitempty"`
	InstalledAt time.Time     `json:"installed_at,omitzero"`
	Table       string        `json:"table,omitempty"`
	Schema      string        `json:"schema,omitempty"`
	Payload     string        `json:"payload,omitempty"`
	Slots       int           `json:"slots,omitempty"`
	SlotSeconds int64         `json:"slot_seconds,omitempty"`
	Findings    []findingView `json:"findings"`
}

type findingView struct {
	Severity migrate.Severity `json:"severity"`
	Problem  string           `json:"problem"`
	Fix      string           `json:"fix,omitempty"`
}

func printTables(w io.Writer, s migrate.Status, asJSON bool) error {
	if asJSON {
		v := tablesView{
			Installed: s.Installed, Version: s.Version, InstalledAt: s.InstalledAt,
			Table: s.Options.Table, Schema: s.Options.Schema, Payload: string(s.Options.Payload),
			Slots: s.Options.Slots, SlotSeconds: int64(s.Options.SlotWidth / time.Second), Findings: []findingView{},
		}
		for _, f := range s.Findings {
			v.Findings = append(v.Findings, findingView{f.Severity, f.Problem, f.Fix})
		}
		return printJSON(w, v)
	}
	if s.Installed && s.Options.Table != "" {
		fmt.Fprintf(w, "events table %s: version %d, payload %s, %d slots of %v; all else in schema %s\n",
			s.Options.Table, s.Version, s.Options.Payload, s.Options.Slots, s.Options.SlotWidth, s.Options.Schema)
	}
	for _, f := range s.Findings {
		if _, err := fmt.Fprintln(w, f); err != nil {
			return err
		}
	}
	return nil
}
