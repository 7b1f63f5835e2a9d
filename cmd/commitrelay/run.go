package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/internal/config"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

type runFlags struct {
	migrate bool
	once    bool
}

func runCommand() *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Deliver events until stopped",
		Long: `Run delivers the events of the outbox to the configured sinks. Any number may run
with the same configuration: they share the lanes of each subscription.

At the start it checks everything and reports all faults at once. A database that
cannot be used then is a fault; a sink that cannot be reached is not: its events
wait, and /readyz says so. SIGTERM finishes what is in flight, gives the lanes
back and exits with 0; a second one ends at once.`,
		Example: `  commitrelay run --config relay.yaml
  commitrelay run --database postgres://localhost/shop --sink nats://localhost:4222 --topic "{event_type}"`,
		Args: noArguments,
	}
	src := bind(cmd)
	cmd.Flags().BoolVar(&flags.migrate, "migrate", false, "make the tables first, if they are not there")
	cmd.Flags().BoolVar(&flags.once, "once", false, "deliver what is due now, then exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := src.load(config.Source{Delivery: true})
		if err != nil {
			return fmt.Errorf("%w\ntry `commitrelay check` until it says ok; docs/configuration.md lists every key", err)
		}
		log := cfg.Log.Logger(cmd.ErrOrStderr())
		ctx, stop := signals(cmd.Context(), log)
		defer stop()
		return run(ctx, cfg, flags, cmd.OutOrStdout(), log)
	}
	return cmd
}

// run prepares everything, so that all that is wrong is reported at once, and delivers.
func run(ctx context.Context, cfg config.Config, flags runFlags, stdout io.Writer, log *slog.Logger) error {
	var faults []error
	sinks, err := openSinks(cfg, stdout)
	if err != nil {
		faults = append(faults, err)
	}
	defer sinks.close()
	var listener net.Listener
	if cfg.HTTP != "" {
		if listener, err = listen(cfg.HTTP); err != nil {
			faults = append(faults, err)
		}
	}
	pool, err := openPool(ctx, cfg.Database, false)
	if err != nil {
		faults = append(faults, err)
	} else {
		defer pool.Close()
		if err := prepare(ctx, pool, cfg, flags.migrate, log); err != nil {
			faults = append(faults, err)
		}
	}
	if ctx.Err() != nil || len(faults) > 0 {
		if listener != nil {
			_ = listener.Close()
		}
		if ctx.Err() != nil {
			return nil // told to stop before it began
		}
		return errors.Join(faults...)
	}
	r, err := relay.New(pool, relayConfig(cfg, sinks, log))
	if err != nil {
		if listener != nil {
			_ = listener.Close()
		}
		return err
	}
	if listener != nil {
		defer serveHealth(listener, r.Health, log).close()
	}
	if !flags.once {
		return r.Run(ctx)
	}
	n, err := r.Drain(ctx)
	log.Info("delivered what was due", "events", n)
	if errors.Is(err, relay.ErrLanesHeld) {
		return fmt.Errorf("%w\nthat relay delivers them; see `commitrelay status`", err)
	}
	return err
}

// prepare makes the tables, if that is wanted, and looks for what would keep a relay from working.
func prepare(ctx context.Context, pool *pgxpool.Pool, cfg config.Config, up bool, log *slog.Logger) error {
	if err := writable(ctx, pool); err != nil {
		return err
	}
	if up {
		if err := migrateFirst(ctx, pool, cfg); err != nil {
			return err
		}
	}
	findings, err := migrate.Check(ctx, pool, tables(cfg.Database))
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Severity == migrate.Warning {
			log.Warn(f.Problem, "fix", f.Fix)
		}
	}
	return findings.Err()
}

// migrateFirst goes around a pooler where a way is configured.
func migrateFirst(ctx context.Context, pool *pgxpool.Pool, cfg config.Config) error {
	if cfg.Database.DirectURL != "" {
		direct, err := openPool(ctx, cfg.Database, true)
		if err != nil {
			return err
		}
		defer direct.Close()
		pool = direct
	}
	return bringUp(ctx, pool, tables(cfg.Database))
}

func relayConfig(cfg config.Config, sinks sinks, log *slog.Logger) relay.Config {
	rc := relay.Config{
		Table:           cfg.Database.Table.String(),
		Schema:          cfg.Database.Schema,
		Retention:       cfg.Database.Retention,
		Lease:           cfg.Lease,
		ShutdownTimeout: cfg.ShutdownTimeout,
		PollMin:         cfg.PollMin,
		PollMax:         cfg.PollMax,
		BatchEvents:     cfg.BatchEvents,
		BatchBytes:      cfg.BatchBytes,
		Version:         readBuild().Version,
		Logger:          log,
	}
	for _, s := range cfg.Subscriptions {
		rc.Subscriptions = append(rc.Subscriptions, relay.Subscription{
			Name:        s.Name,
			Sink:        sinks.byName[s.Sink],
			SinkName:    s.Sink,
			Topic:       s.Topic,
			Filter:      relay.Filter{AggregateTypes: s.AggregateTypes, EventTypes: s.EventTypes},
			Lanes:       s.Lanes,
			Start:       relay.Start(s.Start),
			OnDead:      relay.OnDead(s.OnDead),
			MaxAttempts: s.Attempts,
			Backoff:     s.Backoff,
			MaxBackoff:  s.MaxBackoff,
		})
	}
	return rc
}
