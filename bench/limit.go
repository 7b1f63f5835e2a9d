package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/commitrelay/outbox/relay"
)

type limitResult struct {
	Sink    string  `json:"sink" is:"broker"`
	Events  int     `json:"events" is:"per measurement"`
	Limit   float64 `json:"limit_per_second" is:"events published per second, by the best of all ways tried; no database"`
	Client  float64 `json:"client_per_second" is:"by the client library alone, without regard to the order of keys"`
	Read    float64 `json:"read_per_second" is:"events read per second, by a relay with a sink that takes all at once; no broker"`
	Batch   int     `json:"batch" is:"events per call of Publish in the best way; 0 is the client alone"`
	Workers int     `json:"workers" is:"concurrent calls"`
	Sinks   int     `json:"sinks" is:"sinks with connections of their own"`
}

func limitCommand() *cobra.Command {
	var o options
	var sink string
	var events int
	var best way
	cmd := command(&o, "limit", "The broker without a database, and the log without a broker",
		`What a relay could reach at best: publishing events that are in memory already, by the same client with the same
payload and headers, over batch sizes and concurrency; and reading the log into a sink that takes all at once.`,
		func(ctx context.Context, s *server, n int) (r limitResult, err error) {
			b, err := brokerOf(sink)
			if err != nil {
				return r, err
			}
			if n == 0 {
				if best, err = o.bestWay(ctx, b, events); err != nil {
					return r, err
				}
			}
			r = limitResult{Sink: sink, Events: events, Batch: best.batch, Workers: best.workers, Sinks: best.sinks}
			if r.Limit, err = o.publish(ctx, b, best, events); err != nil {
				return r, err
			}
			if r.Client, err = o.publish(ctx, b, clientAlone, events); err != nil {
				return r, err
			}
			r.Read, err = o.read(ctx, s, events)
			return r, err
		})
	sinkFlag(cmd, &sink)
	cmd.Flags().IntVar(&events, "events", 100_000, "events per measurement")
	return cmd
}

func sinkFlag(cmd *cobra.Command, sink *string) {
	cmd.Flags().StringVar(sink, "sink", "nats", "broker: nats, rabbitmq or kafka")
}

// read is the rate at which a relay reads a backlog of n events, from its first batch to its last.
func (o *options) read(ctx context.Context, s *server, n int) (rate float64, err error) {
	err = s.withDatabase(ctx, func(db *database) error {
		if err := logTable.create(ctx, db); err != nil {
			return err
		}
		if err := o.fill(ctx, db, logTable.name, n); err != nil {
			return err
		}
		var first atomic.Pointer[time.Time]
		r, err := newRelay(db, relay.SinkFunc(func(context.Context, []relay.Message) error {
			if first.Load() == nil {
				now := time.Now()
				first.CompareAndSwap(nil, &now)
			}
			return nil
		}), "none")
		if err != nil {
			return err
		}
		got, err := r.Drain(ctx)
		if err == nil && got != n {
			err = errors.New("it says that it is done")
		}
		if err != nil {
			return fmt.Errorf("read: got %d of %d events: %w", got, n, err)
		}
		rate = float64(n) / time.Since(*first.Load()).Seconds()
		return nil
	})
	return rate, err
}
