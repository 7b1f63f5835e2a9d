package main

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

type insertResult struct {
	Connections   int     `json:"connections" is:"sessions that insert single rows, each in its own transaction"`
	Rate          float64 `json:"inserts_per_second" is:"into our table"`
	Tutorial      float64 `json:"ratio_to_tutorial" is:"of that rate to the tutorials' table, without an index for its reader"`
	Indexed       float64 `json:"ratio_to_tutorial_indexed" is:"to the same with a partial index on created_at"`
	Notify        float64 `json:"ratio_notify" is:"of the tutorials' table with a trigger that always notifies to the same without"`
	CPU           float64 `json:"pg_cpu_us_per_insert" is:"processor time of PostgreSQL: our table"`
	TutorialCPU   float64 `json:"tutorial_pg_cpu_us_per_insert" is:"the tutorials' table"`
	IndexedCPU    float64 `json:"tutorial_indexed_pg_cpu_us_per_insert" is:"with the index"`
	NotifyCPU     float64 `json:"notify_pg_cpu_us_per_insert" is:"with the trigger"`
	SlicesSeconds float64 `json:"slice_seconds" is:"how long each table was written to before the next one's turn"`
}

// A target is a table that rows are inserted into. Targets that are compared stand side by side.
//
// What rings a doorbell later becomes another target, next to the one it is compared with.
type target struct {
	table  string
	create func(ctx context.Context, db *database) error
}

var targets = []target{
	{"notified", func(ctx context.Context, db *database) error {
		if err := db.run(ctx, "queue", "table", "notified"); err != nil {
			return err
		}
		return db.run(ctx, "notify", "table", "notified")
	}},
	{"tutorial", func(ctx context.Context, db *database) error { return db.run(ctx, "queue", "table", "tutorial") }},
	{logTable.name, logTable.create},
	{"indexed", func(ctx context.Context, db *database) error {
		if err := db.run(ctx, "queue", "table", "indexed"); err != nil {
			return err
		}
		return db.run(ctx, "queue_index", "table", "indexed")
	}},
}

func insertCommand() *cobra.Command {
	var o options
	var i inserts
	cmd := command(&o, "insert", "What an event costs its writer",
		`Sessions insert single rows by the same statement, into one table after the other, in turns and there and back, so that what else the
machine does meets all alike. Rates are compared within one round. --runs is the number of rounds.`,
		i.run)
	i.options = &o
	cmd.Flags().IntVar(&i.connections, "connections", 8, "sessions that insert")
	cmd.Flags().DurationVar(&i.slice, "slice", 2*time.Second, "how long to write to one table before the next one's turn")
	return cmd
}

type inserts struct {
	*options
	connections int
	slice       time.Duration
}

// run is a round: it fills all tables, in an order that alternates.
func (o *inserts) run(ctx context.Context, s *server, n int) (r insertResult, err error) {
	if o.connections < 1 || o.connections >= maxConns {
		return r, fmt.Errorf("--connections %d: want 1 to %d", o.connections, maxConns-1)
	}
	order := slices.Clone(targets)
	if n%2 == 1 {
		slices.Reverse(order)
	}
	rate, cpu := map[string]float64{}, map[string]float64{}
	err = s.withDatabase(ctx, func(db *database) error {
		ctx, stop, err := listen(ctx, db)
		if err != nil {
			return err
		}
		defer stop()
		sessions, release, err := o.sessions(ctx, db)
		if err != nil {
			return err
		}
		defer release()
		for _, t := range order {
			if err := t.create(ctx, db); err != nil {
				return err
			}
			if _, err := o.fill(ctx, sessions, t.table, 0); err != nil { // the statement is prepared outside the time
				return fmt.Errorf("insert into %s: %w", t.table, err)
			}
		}
		for _, t := range order {
			var inserted int
			start := time.Now()
			c, err := s.costOf(ctx, func() error {
				inserted, err = o.fill(ctx, sessions, t.table, o.slice)
				return err
			})
			if err != nil {
				return fmt.Errorf("insert into %s: %w", t.table, err)
			}
			rate[t.table] = float64(inserted) / time.Since(start).Seconds()
			cpu[t.table] = c.cpuPer(inserted)
		}
		return nil
	})
	return insertResult{
		Connections: o.connections, SlicesSeconds: o.slice.Seconds(), Rate: rate[logTable.name],
		Tutorial: rate[logTable.name] / rate["tutorial"], Indexed: rate[logTable.name] / rate["indexed"], Notify: rate["notified"] / rate["tutorial"],
		CPU: cpu[logTable.name], TutorialCPU: cpu["tutorial"], IndexedCPU: cpu["indexed"], NotifyCPU: cpu["notified"],
	}, err
}

// sessions are as many as there are to be, connected.
func (o *inserts) sessions(ctx context.Context, db *database) (all []*pgxpool.Conn, release func(), err error) {
	release = func() {
		for _, c := range all {
			c.Release()
		}
	}
	for range o.connections {
		c, err := db.pool.Acquire(ctx)
		if err != nil {
			release()
			return nil, nil, fmt.Errorf("connect: %w", err)
		}
		all = append(all, c)
	}
	return all, release, nil
}

// fill inserts for that long, at least one row in each session, and returns how many rows came in.
func (o *inserts) fill(ctx context.Context, sessions []*pgxpool.Conn, table string, slice time.Duration) (int, error) {
	sql := query("insert", "table", table)
	var n atomic.Int64
	end := time.Now().Add(slice)
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range sessions {
		g.Go(func() error {
			for {
				e := o.event(int(n.Add(1)))
				if _, err := c.Exec(ctx, sql, e.AggregateType, e.AggregateID, e.Type, string(e.Payload)); err != nil {
					return err
				}
				if !time.Now().Before(end) {
					return nil
				}
			}
		})
	}
	err := g.Wait()
	return int(n.Load()), err
}

// listen makes a session that waits for notifications, as the one for whom a trigger notifies. The context ends if it fails.
func listen(ctx context.Context, db *database) (_ context.Context, stop func(), err error) {
	conn, err := pgx.Connect(ctx, db.url)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	if _, err := conn.Exec(ctx, "LISTEN outbox"); err != nil {
		conn.Close(ctx)
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				cancel(fmt.Errorf("listen: %w", err))
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		conn.Close(context.WithoutCancel(ctx))
	}, nil
}
