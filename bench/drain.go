package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

type drainResult struct {
	Sink         string  `json:"sink" is:"broker"`
	Relays       int     `json:"relays" is:"processes"`
	Events       int     `json:"events" is:"backlog"`
	PerSecond    float64 `json:"events_per_second" is:"from the first event's arrival at the broker to the last one's"`
	Limit        float64 `json:"limit_per_second" is:"the best publish-only rate, without a database"`
	RatioToLimit float64 `json:"ratio_to_limit" is:"of the two"`
	CPU          float64 `json:"pg_cpu_us_per_event" is:"processor time of PostgreSQL, from the relays' start to their end"`
	QueueCPU     float64 `json:"queue_pg_cpu_us_per_event" is:"the same for SELECT ... FOR UPDATE SKIP LOCKED, publish, UPDATE"`
	WAL          float64 `json:"wal_bytes_per_event" is:"PostgreSQL's log"`
	Dead         int     `json:"dead_tuples" is:"left in the events table"`
	RSS          float64 `json:"rss_mb" is:"most memory that a relay held, MiB"`
}

func drainCommand() *cobra.Command {
	var o options
	d := drain{options: &o}
	cmd := command(&o, "drain", "Empty a backlog into a broker",
		`A backlog of events is emptied by relays that are processes of the real binary; in the same run the same events are published
without a database, and drained out of the tutorials' table. The time runs from the last look at the broker that saw none of
the events to the first that saw all; PostgreSQL's costs are those from the relays' start to their end.`,
		d.run)
	sinkFlag(cmd, &d.sink)
	cmd.Flags().IntVar(&d.relays, "relays", 1, "relays to run")
	cmd.Flags().IntVar(&d.events, "events", 200_000, "events in the backlog")
	cleanUp(cmd, func() error { return d.program.remove() })
	return cmd
}

// cleanUp calls remove after the command, also when that has failed.
func cleanUp(cmd *cobra.Command, remove func() error) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, remove()) }()
		return run(cmd, args)
	}
}

type drain struct {
	*options
	sink           string
	relays, events int

	program program
	best    way
}

func (d *drain) run(ctx context.Context, s *server, n int) (r drainResult, err error) {
	b, err := brokerOf(d.sink)
	if err != nil {
		return r, err
	}
	if n == 0 {
		if d.program, err = buildProgram(ctx); err != nil {
			return r, err
		}
		if d.best, err = d.bestWay(ctx, b, d.events); err != nil {
			return r, err
		}
	}
	r = drainResult{Sink: d.sink, Relays: d.relays, Events: d.events}
	if r.Limit, err = d.publish(ctx, b, d.best, d.events); err != nil {
		return r, err
	}
	ours, err := d.drainLog(ctx, s, b, d.program, d.relays, d.events, undisturbed)
	if err != nil {
		return r, err
	}
	theirs, err := d.drainQueue(ctx, s, b, d.relays, d.events, undisturbed)
	if err != nil {
		return r, err
	}
	r.PerSecond, r.RatioToLimit = ours.perSecond, ours.perSecond/r.Limit
	r.CPU, r.QueueCPU, r.WAL = ours.cpuPer(d.events), theirs.cpuPer(d.events), ours.walPer(d.events)
	r.Dead, r.RSS = ours.dead, ours.rss
	return r, nil
}

// drained is what emptying one backlog was like.
type drained struct {
	cost
	perSecond float64
	dead      int     // tuples, of the relays' table
	rss       float64 // of a relay
}

// undisturbed is nothing that goes on in the database during a drain.
func undisturbed(_ context.Context, _ *database, work func() error) error { return work() }

// disturbance does something to the database around work.
type disturbance func(ctx context.Context, db *database, work func() error) error

// drainLog empties a backlog of our table by relays.
func (o *options) drainLog(ctx context.Context, s *server, b broker, p program, relays, events int, during disturbance) (r drained, err error) {
	err = o.withBacklog(ctx, s, b, logTable, events, func(db *database, d destination) error {
		err := during(ctx, db, func() error {
			r.cost, err = s.costOf(ctx, func() error {
				f, err := p.start(db, b.url, d, relays)
				if err != nil {
					return err
				}
				err = f.while(ctx, func(ctx context.Context) error {
					arrived, err := watch(ctx, d, events)
					if err != nil {
						return err
					}
					r.perSecond = arrived.perSecond()
					r.rss, err = f.peakMemory()
					return err
				})
				return errors.Join(err, f.stop())
			})
			return err
		})
		if err != nil {
			return fmt.Errorf("drain by %d relays: %w", relays, err)
		}
		r.dead, err = db.deadTuples(ctx, logTable.name)
		return errors.Join(err, exactly(ctx, d, events))
	})
	return r, err
}

// drainQueue empties a backlog of the tutorials' table, by as many workers in this process.
func (o *options) drainQueue(ctx context.Context, s *server, b broker, workers, events int, during disturbance) (r drained, err error) {
	err = o.withBacklog(ctx, s, b, queueTable, events, func(db *database, d destination) (err error) {
		sink, err := d.Sink()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sink.Close()) }()
		err = during(ctx, db, func() error {
			r.cost, err = s.costOf(ctx, func() error {
				r.perSecond, err = timed(ctx, d, events, func(ctx context.Context, _ <-chan struct{}) error {
					return queue{db: db, sink: sink, topic: d.Topic()}.drain(ctx, workers)
				})
				return err
			})
			return err
		})
		if err != nil {
			return err
		}
		return exactly(ctx, d, events)
	})
	return r, err
}

// withBacklog calls use with a table full of events and an empty place to bring them to.
func (o *options) withBacklog(ctx context.Context, s *server, b broker, t outboxTable, events int, use func(*database, destination) error) error {
	return s.withDatabase(ctx, func(db *database) error {
		if err := o.backlog(ctx, db, t, events); err != nil {
			return err
		}
		return b.with(ctx, func(d destination) error { return use(db, d) })
	})
}

// timed is the rate at which work, in this process, fills a destination. work ends when it has done everything, or soon after
// all has been closed, which says that all events are there.
func timed(ctx context.Context, d destination, events int, work func(ctx context.Context, all <-chan struct{}) error) (rate float64, err error) {
	all := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return work(ctx, all) })
	g.Go(func() error {
		arrived, err := watch(ctx, d, events)
		if err == nil {
			rate = arrived.perSecond()
			close(all)
		}
		return err
	})
	return rate, g.Wait()
}
