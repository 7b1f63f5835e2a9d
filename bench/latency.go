package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

type latencyResult struct {
	Rate   int     `json:"rate" is:"events per second that were to be committed"`
	Events int     `json:"events" is:"measured"`
	Actual float64 `json:"events_per_second" is:"events per second that were committed"`
	P50    float64 `json:"p50_ms" is:"from COMMIT returning to the writer to the broker's acknowledgement"`
	P99    float64 `json:"p99_ms" is:""`
	P999   float64 `json:"p999_ms" is:""`
}

func latencyCommand() *cobra.Command {
	var o options
	var l load
	var noDoorbell bool
	cmd := command(&o, "latency", "From commit to acknowledgement",
		`Writers commit events at a fixed rate, whatever becomes of them, while a relay delivers to NATS. Both are in this process, so that one
clock stamps the moment when COMMIT returned and the moment when the sink's Publish returned for that event.`,
		func(ctx context.Context, s *server, _ int) (r latencyResult, err error) {
			if noDoorbell {
				return r, errors.New("--no-doorbell: the engine has no doorbell yet, all it does is poll")
			}
			m, err := l.measure(ctx, s, logTable, undisturbed)
			if err != nil {
				return r, err
			}
			return latencyResult{
				Rate: l.rate, Events: len(m.latencies), Actual: m.rate,
				P50: m.percentile(50), P99: m.percentile(99), P999: m.percentile(99.9),
			}, nil
		})
	l.options = &o
	cmd.Flags().IntVar(&l.rate, "rate", 800, "events per second")
	cmd.Flags().DurationVar(&l.duration, "duration", 10*time.Second, "how long to write")
	cmd.Flags().BoolVar(&noDoorbell, "no-doorbell", false, "let the relay poll alone")
	return cmd
}

// load is a number of events committed at a steady rate.
type load struct {
	*options
	rate     int
	duration time.Duration
}

// writers are enough to keep the rate while one of them waits for the disk.
const writers = 8

// warming is the number of events, those of a second, that are committed before the ones that count: connections are
// made meanwhile, and statements planned.
func (l load) warming() int { return l.rate }

// measured is how long each event took, sorted, in milliseconds.
type measured struct {
	latencies []float64
	rate      float64 // that was reached
}

func (m measured) percentile(p float64) float64 { return percentile(m.latencies, p) }

// measure runs the load against a table and its deliverer, both at their defaults.
func (l load) measure(ctx context.Context, s *server, t outboxTable, during disturbance) (m measured, err error) {
	b, err := brokerOf("nats")
	if err != nil {
		return m, err
	}
	err = s.withDatabase(ctx, func(db *database) error {
		if err := t.create(ctx, db); err != nil {
			return err
		}
		return b.with(ctx, func(d destination) (err error) {
			sink, err := d.Sink()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, sink.Close()) }()
			return during(ctx, db, func() error {
				m, err = l.run(ctx, db, t, sink, d.Topic())
				return err
			})
		})
	})
	return m, err
}

func (l load) run(ctx context.Context, db *database, t outboxTable, sink relay.Sink, topic string) (m measured, err error) {
	st := l.newStamps()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	delivering, stop := context.WithCancel(ctx)
	delivered := make(chan error, 1)
	go func() {
		err := t.deliver(delivering, db, st.wrap(sink), topic)
		if err != nil {
			cancel(err)
		}
		delivered <- err
	}()
	defer func() {
		stop()
		err = errors.Join(err, <-delivered)
	}()
	// A first event shows that the deliverer is there.
	if err := l.commit(ctx, db, t, st.probe); err != nil {
		return m, err
	}
	if err := await(ctx, st.probed); err != nil {
		return m, err
	}
	start := time.Now()
	if err := l.write(ctx, db, t, st, start); err != nil {
		return m, err
	}
	took := time.Since(start)
	if err := await(ctx, st.all); err != nil {
		return m, err
	}
	return measured{latencies: st.latencies(l.warming()), rate: float64(len(st.events)) / took.Seconds()}, nil
}

// write commits all events, each transaction when its time has come.
func (l load) write(ctx context.Context, db *database, t outboxTable, st *stamps, start time.Time) error {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range writers {
		g.Go(func() error {
			for {
				first := int(next.Add(int64(l.perKey))) - l.perKey
				if first >= len(st.events) {
					return nil
				}
				due := start.Add(time.Duration(float64(first) / float64(l.rate) * float64(time.Second)))
				if err := sleepUntil(ctx, due); err != nil {
					return err
				}
				last := min(first+l.perKey, len(st.events))
				if err := l.commit(ctx, db, t, st.events[first:last]...); err != nil {
					return err
				}
				st.committed(first, last)
			}
		})
	}
	return g.Wait()
}

func (l load) commit(ctx context.Context, db *database, t outboxTable, events ...*outbox.Event) error {
	err := pgx.BeginFunc(ctx, db.pool, func(tx pgx.Tx) error { return t.write(ctx, tx, events...) })
	if err != nil {
		return fmt.Errorf("commit an event: %w", err)
	}
	return nil
}

func sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await waits until acknowledgements have closed a channel.
func await(ctx context.Context, acknowledged <-chan struct{}) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-acknowledged:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timeout.C:
		return fmt.Errorf("events that were committed are not acknowledged after %v", patience)
	}
}
