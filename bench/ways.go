package main

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/commitrelay/outbox/relay"
)

// way is a way to publish: workers call the sinks with batches, one call at a time each.
type way struct{ sinks, workers, batch int }

// clientAlone leaves our sinks out: see destination.Blast.
var clientAlone = way{}

func (w way) String() string {
	if w == clientAlone {
		return "client alone"
	}
	return fmt.Sprintf("%d sinks, %d workers, batches of %d", w.sinks, w.workers, w.batch)
}

// ways are all that are tried.
func ways() []way {
	all := []way{clientAlone}
	for _, sinks := range []int{1, 2} {
		for _, workers := range []int{1, 2, 4, 8, 16} {
			for _, batch := range []int{100, 300, 1000} {
				if workers >= sinks {
					all = append(all, way{sinks, workers, batch})
				}
			}
		}
	}
	return all
}

// bestWay tries all with fewer events. The best one is measured again by those who use it: the highest of many
// figures is the luckiest, too.
func (o *options) bestWay(ctx context.Context, b broker, events int) (best way, err error) {
	const enough = 20_000
	most := 0.0
	// Not counted: brokers get faster with use, above all those on a virtual machine.
	if _, err := o.publish(ctx, b, ways()[1], min(events, enough)); err != nil {
		return best, err
	}
	for _, w := range ways() {
		rate, err := o.publish(ctx, b, w, min(events, enough))
		if err != nil {
			return best, err
		}
		fmt.Fprintf(o.log, "%s, %v: %.0f events/s\n", b.name, w, rate)
		if rate > most {
			best, most = w, rate
		}
	}
	return best, nil
}

// publish is the rate at which n events go out in that way.
func (o *options) publish(ctx context.Context, b broker, w way, n int) (rate float64, err error) {
	err = b.with(ctx, func(d destination) error {
		messages := o.messages(n, d.Topic())
		publish := w.publish
		if w == clientAlone {
			publish = blast
		}
		rate, err = publish(ctx, d, messages)
		if err != nil {
			return fmt.Errorf("%v: %w", w, err)
		}
		return exactly(ctx, d, n)
	})
	return rate, err
}

// blast is the rate of the client library. The first event makes it ready, outside the time.
func blast(ctx context.Context, d destination, messages []relay.Message) (rate float64, err error) {
	if err := d.Blast(ctx, messages[:1]); err != nil {
		return 0, err
	}
	start := time.Now()
	err = d.Blast(ctx, messages[1:])
	return float64(len(messages)-1) / time.Since(start).Seconds(), err
}

// publish is the rate of the sinks. Each worker has keys of its own, so that their order is kept, as a relay must.
func (w way) publish(ctx context.Context, d destination, messages []relay.Message) (rate float64, err error) {
	sinks := make([]closingSink, w.sinks)
	for i := range sinks {
		if sinks[i], err = d.Sink(); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, sinks[i].Close()) }()
	}
	seed := maphash.MakeSeed()
	shares := make([][]relay.Message, w.workers)
	for _, m := range messages {
		i := maphash.String(seed, m.Event.AggregateID) % uint64(w.workers)
		shares[i] = append(shares[i], m)
	}
	work := func(size int, shares [][]relay.Message) error {
		g, ctx := errgroup.WithContext(ctx)
		for i, share := range shares {
			g.Go(func() error {
				for batch := range slices.Chunk(share, size) {
					if err := sinks[i%w.sinks].Publish(ctx, batch); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return g.Wait()
	}
	// The first event of each share connects, outside the time.
	first, rest := make([][]relay.Message, w.workers), make([][]relay.Message, w.workers)
	timed := 0
	for i, share := range shares {
		first[i], rest[i] = share[:min(1, len(share))], share[min(1, len(share)):]
		timed += len(rest[i])
	}
	if err := work(1, first); err != nil {
		return 0, err
	}
	start := time.Now()
	err = work(w.batch, rest)
	return float64(timed) / time.Since(start).Seconds(), err
}
