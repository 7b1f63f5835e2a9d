package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

type rivalsResult struct {
	Events         int     `json:"events" is:"our backlog; each rival has as many as it drains in some seconds"`
	PerSecond      float64 `json:"events_per_second" is:"commitrelay, one process"`
	Watermill      float64 `json:"ratio_to_watermill" is:"watermill-sql as it comes: offsets, batches of 100, one message after the other"`
	WatermillTuned float64 `json:"ratio_to_watermill_tuned" is:"batches of 1000, acked before JetStream confirms, offsets or queue, whichever is faster"`
	River          float64 `json:"ratio_to_river" is:"River as it comes, with 100 workers"`
	RiverTuned     float64 `json:"ratio_to_river_tuned" is:"1000 workers, fetching each millisecond"`
	Poller         float64 `json:"ratio_to_poller" is:"the tutorials' poller: 50 each second, published and marked one by one"`
	PollerNoTick   float64 `json:"ratio_to_poller_without_tick" is:"the same without waiting for the second"`

	WatermillRate      float64 `json:"watermill_events_per_second" is:""`
	WatermillTunedRate float64 `json:"watermill_tuned_events_per_second" is:""`
	RiverRate          float64 `json:"river_events_per_second" is:""`
	RiverTunedRate     float64 `json:"river_tuned_events_per_second" is:""`
	PollerRate         float64 `json:"poller_events_per_second" is:""`
	PollerNoTickRate   float64 `json:"poller_without_tick_events_per_second" is:""`
}

func rivalsCommand() *cobra.Command {
	var o options
	r := rivals{options: &o}
	cmd := command(&o, "rivals", "The same drain by what people use instead",
		`A backlog is drained into NATS JetStream by one relay, a process of the real binary, and by others in this process: Watermill's SQL
subscriber, River with one job per event, and the poller of the tutorials. Headers and payload are the same. Events differ in number, for
some would take an hour; only rates are compared.`,
		r.run)
	cmd.Flags().IntVar(&r.events, "events", 200_000, "events in our backlog; no rival gets more")
	cleanUp(cmd, func() error { return r.program.remove() })
	return cmd
}

type rivals struct {
	*options
	events  int
	program program
}

// rival is something that moves events out of a database.
type rival struct {
	name string
	most int // events: what it takes about ten seconds for on a small machine

	// prepare makes its tables and puts events into them.
	prepare func(ctx context.Context, db *database, s shape, events int) error

	// deliver moves them into the stream until all is closed.
	deliver func(ctx context.Context, db *database, to *natsStream, all <-chan struct{}) error
}

func (o *rivals) run(ctx context.Context, s *server, n int) (r rivalsResult, err error) {
	b, err := brokerOf("nats")
	if err != nil {
		return r, err
	}
	if n == 0 {
		if o.program, err = buildProgram(ctx); err != nil {
			return r, err
		}
	}
	ours, err := o.drainLog(ctx, s, b, o.program, 1, o.events, undisturbed)
	if err != nil {
		return r, err
	}
	rates := map[string]float64{}
	for _, rival := range []rival{watermillOffsets, watermillOffsetsTuned, watermillQueueTuned, riverDefault, riverTuned, pollerTicking, pollerNoTick} {
		if rates[rival.name], err = o.drain(ctx, s, b, rival); err != nil {
			return r, fmt.Errorf("%s: %w", rival.name, err)
		}
		fmt.Fprintf(o.log, "%s: %.0f events/s\n", rival.name, rates[rival.name])
	}
	r = rivalsResult{
		Events: o.events, PerSecond: ours.perSecond,
		WatermillRate:      rates[watermillOffsets.name],
		WatermillTunedRate: max(rates[watermillOffsetsTuned.name], rates[watermillQueueTuned.name]),
		RiverRate:          rates[riverDefault.name],
		RiverTunedRate:     rates[riverTuned.name],
		PollerRate:         rates[pollerTicking.name],
		PollerNoTickRate:   rates[pollerNoTick.name],
	}
	r.Watermill, r.WatermillTuned = ours.perSecond/r.WatermillRate, ours.perSecond/r.WatermillTunedRate
	r.River, r.RiverTuned = ours.perSecond/r.RiverRate, ours.perSecond/r.RiverTunedRate
	r.Poller, r.PollerNoTick = ours.perSecond/r.PollerRate, ours.perSecond/r.PollerNoTickRate
	return r, nil
}

// drain is the rate at which a rival drains its backlog.
func (o *rivals) drain(ctx context.Context, s *server, b broker, r rival) (rate float64, err error) {
	n := min(o.events, r.most)
	err = s.withDatabase(ctx, func(db *database) error {
		if err := r.prepare(ctx, db, o.shape, n); err != nil {
			return err
		}
		if err := db.run(ctx, "analyze"); err != nil {
			return err
		}
		return b.with(ctx, func(d destination) error {
			rate, err = timed(ctx, d, n, func(ctx context.Context, all <-chan struct{}) error {
				return r.deliver(ctx, db, d.(*natsStream), all)
			})
			if err != nil {
				return err
			}
			return exactly(ctx, d, n)
		})
	})
	return rate, err
}
