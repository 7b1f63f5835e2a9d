package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

type idleResult struct {
	Relays     int     `json:"relays" is:"processes"`
	Core       float64 `json:"pg_core_percent" is:"of one core, by all of PostgreSQL, while nothing happens"`
	Baseline   float64 `json:"pg_core_percent_without" is:"the same before there were relays"`
	Statements float64 `json:"statements_per_second" is:"transactions that the database counts; each statement of an idle relay is one"`
}

func idleCommand() *cobra.Command {
	var o options
	i := idle{options: &o}
	cmd := command(&o, "idle", "What relays cost while there is nothing to do",
		`Relays that are processes of the real binary share the lanes of an empty outbox. When each has its lanes, PostgreSQL's processor time and
transactions are counted for a while.`,
		i.run)
	cmd.Flags().IntVar(&i.relays, "relays", 3, "relays to run")
	cmd.Flags().DurationVar(&i.duration, "duration", 20*time.Second, "how long to count")
	cleanUp(cmd, func() error { return i.program.remove() })
	return cmd
}

type idle struct {
	*options
	relays   int
	duration time.Duration
	program  program
}

func (i *idle) run(ctx context.Context, s *server, n int) (r idleResult, err error) {
	b, err := brokerOf("nats")
	if err != nil {
		return r, err
	}
	if n == 0 {
		if i.program, err = buildProgram(ctx); err != nil {
			return r, err
		}
	}
	r.Relays = i.relays
	err = s.withDatabase(ctx, func(db *database) error {
		if err := logTable.create(ctx, db); err != nil {
			return err
		}
		db.pool.Reset() // no session of ours
		if r.Baseline, _, err = i.count(ctx, db); err != nil {
			return err
		}
		return b.with(ctx, func(d destination) error {
			f, err := i.program.start(db, b.url, d, i.relays)
			if err != nil {
				return err
			}
			err = f.while(ctx, func(ctx context.Context) error {
				if err := allOwn(ctx, db, i.relays); err != nil {
					return err
				}
				db.pool.Reset()
				r.Core, r.Statements, err = i.count(ctx, db)
				return err
			})
			return errors.Join(err, f.stop())
		})
	})
	return r, err
}

// count looks at the server before and after the time, and at nothing in between.
func (i *idle) count(ctx context.Context, db *database) (percent, statements float64, err error) {
	before, err := db.transactions(ctx)
	if err != nil {
		return 0, 0, err
	}
	start := time.Now()
	c, err := db.server.costOf(ctx, func() error { return sleepUntil(ctx, start.Add(i.duration)) })
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(start)
	after, err := db.transactions(ctx)
	if err != nil {
		return 0, 0, err
	}
	return 100 * c.cpu.Seconds() / took.Seconds(), float64(after-before) / took.Seconds(), nil
}

// transactions counts those that have ended in the database. It asks from another one. Sessions tell about theirs once a second, so that
// the figure is that of a second before or so.
func (d *database) transactions(ctx context.Context) (n int, err error) {
	if err := d.server.pool.QueryRow(ctx, query("transactions"), d.name).Scan(&n); err != nil {
		return 0, fmt.Errorf("count transactions: %w", err)
	}
	return n, nil
}

// allOwn waits until that many relays have lanes, which they get as soon as others hand them over.
func allOwn(ctx context.Context, db *database, relays int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%d relays do not share the lanes within %v", relays, patience))
	defer cancel()
	for {
		var owners, free int
		err := db.pool.QueryRow(ctx, query("owners")).Scan(&owners, &free)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("look for the lanes' owners: %w", err)
		case owners == relays && free == 0:
			return nil
		}
		if err := sleepUntil(ctx, time.Now().Add(10*lookEvery)); err != nil {
			return err
		}
	}
}
