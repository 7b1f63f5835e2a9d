package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

type xminResult struct {
	Rate       int     `json:"rate" is:"events per second, for the latencies"`
	Events     int     `json:"events" is:"backlog, for the drains"`
	Ratio      float64 `json:"ratio_with_snapshot" is:"drain rate while a snapshot is held to that without"`
	PerSecond  float64 `json:"events_per_second" is:"drain rate without"`
	P50        float64 `json:"p50_ms" is:"from commit to acknowledgement, without"`
	P99        float64 `json:"p99_ms" is:""`
	P50With    float64 `json:"p50_ms_with_snapshot" is:"the same while a snapshot is held"`
	P99With    float64 `json:"p99_ms_with_snapshot" is:""`
	QueueRatio float64 `json:"queue_ratio_with_snapshot" is:"the same figures for SKIP LOCKED and UPDATE in the tutorials' table"`
	QueueRate  float64 `json:"queue_events_per_second" is:""`
	QueueP50   float64 `json:"queue_p50_ms" is:""`
	QueueP99   float64 `json:"queue_p99_ms" is:""`
	QueueP50W  float64 `json:"queue_p50_ms_with_snapshot" is:""`
	QueueP99W  float64 `json:"queue_p99_ms_with_snapshot" is:""`
}

func xminCommand() *cobra.Command {
	var o options
	x := xmin{load: load{options: &o}}
	cmd := command(&o, "xmin", "What a long transaction does to delivery",
		`A transaction that has read and stays open (a report, a dump, someone's forgotten psql) keeps dead rows from being removed, and lies below
every new transaction. A backlog is drained into NATS by a relay, and a steady rate delivered, without one and with one that is open all the time;
and the same out of the tutorials' table.`,
		x.run)
	cmd.Flags().IntVar(&x.rate, "rate", 800, "events per second, for the latencies")
	cmd.Flags().DurationVar(&x.duration, "duration", 10*time.Second, "how long to write at that rate")
	cmd.Flags().IntVar(&x.events, "events", 100_000, "events in the backlog")
	cleanUp(cmd, func() error { return x.program.remove() })
	return cmd
}

type xmin struct {
	load
	events  int
	program program
}

func (x *xmin) run(ctx context.Context, s *server, n int) (r xminResult, err error) {
	b, err := brokerOf("nats")
	if err != nil {
		return r, err
	}
	if n == 0 {
		if x.program, err = buildProgram(ctx); err != nil {
			return r, err
		}
	}
	r.Rate, r.Events = x.rate, x.events
	ours, err := x.compare(ctx, s, logTable, func(during disturbance) (drained, error) {
		return x.drainLog(ctx, s, b, x.program, 1, x.events, during)
	})
	if err != nil {
		return r, err
	}
	theirs, err := x.compare(ctx, s, queueTable, func(during disturbance) (drained, error) {
		return x.drainQueue(ctx, s, b, 1, x.events, during)
	})
	r.Ratio, r.PerSecond = ours.ratio(), ours.rate[0]
	r.P50, r.P99, r.P50With, r.P99With = ours.p50[0], ours.p99[0], ours.p50[1], ours.p99[1]
	r.QueueRatio, r.QueueRate = theirs.ratio(), theirs.rate[0]
	r.QueueP50, r.QueueP99, r.QueueP50W, r.QueueP99W = theirs.p50[0], theirs.p99[0], theirs.p50[1], theirs.p99[1]
	return r, err
}

// pairs are figures without and with a snapshot.
type pairs struct{ rate, p50, p99 [2]float64 }

func (p pairs) ratio() float64 { return p.rate[1] / p.rate[0] }

func (x *xmin) compare(ctx context.Context, s *server, t outboxTable, drain func(disturbance) (drained, error)) (p pairs, err error) {
	for i, during := range []disturbance{undisturbed, snapshotHeld} {
		d, err := drain(during)
		if err != nil {
			return p, err
		}
		m, err := x.measure(ctx, s, t, during)
		if err != nil {
			return p, err
		}
		p.rate[i], p.p50[i], p.p99[i] = d.perSecond, m.percentile(50), m.percentile(99)
	}
	return p, nil
}

// snapshotHeld keeps a transaction open around work, in the same database, that has read and therefore has a snapshot.
func snapshotHeld(ctx context.Context, db *database, work func() error) error {
	conn, err := pgx.Connect(ctx, db.url)
	if err != nil {
		return fmt.Errorf("hold a snapshot: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("hold a snapshot: %w", err)
	}
	if _, err := tx.Exec(ctx, "SELECT count(*) FROM pg_class"); err != nil {
		return fmt.Errorf("hold a snapshot: %w", err)
	}
	err = work()
	return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
}
