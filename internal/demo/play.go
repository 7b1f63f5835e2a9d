package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// play runs the application, the relays and the consumer, and counts.
func (d *demo) play(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The first failure ends all the others.
	check := func(err error) {
		if err != nil {
			cancel(err)
		}
	}

	mails := consumer{ledger: d.ledger, mails: map[int64]int{}}
	var consuming sync.WaitGroup
	consuming.Go(func() { check(d.broker.Consume(ctx, mails.receive)) })
	took := d.deliver(ctx, check)
	if ctx.Err() == nil {
		// Nobody publishes any more: this is the last message. What arrives before it is all there is.
		check(d.broker.Publish(ctx, endType, nil))
		late := time.AfterFunc(d.Wait, func() { cancel(fmt.Errorf("the last message has not arrived within %v", d.Wait)) })
		defer late.Stop()
	}
	consuming.Wait()
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}

	r := d.ledger.Check()
	r.Mode, r.Relays, r.LoadSeconds = modeRelay, d.Relays, took.Seconds()
	if d.Naive {
		r.Mode = modeNaive
	}
	mails.report(&r)
	suppressed, err := d.broker.Suppressed(ctx)
	r.Suppressed = suppressed
	return r, err
}

// deliver runs the relays beside the load, and returns when both have ended. It returns how long
// the writers wrote.
func (d *demo) deliver(ctx context.Context, check func(error)) time.Duration {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()

	if d.Naive {
		check(d.startPollers(ctx, &wg))
	} else {
		check(d.startRelays(ctx, &wg, check))
	}
	wg.Go(func() { d.progress.Watch(ctx, d.ledger) })
	took, err := d.load(ctx)
	check(err)
	return took
}

// startRelays runs relays until ctx ends, and returns when all of them are ready.
func (d *demo) startRelays(ctx context.Context, wg *sync.WaitGroup, check func(error)) error {
	var relays []*relay.Relay
	for range d.Relays {
		r, err := d.newRelay(ctx)
		if err != nil {
			return err
		}
		relays = append(relays, r)
	}
	for _, r := range relays {
		wg.Go(func() {
			if err := r.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				check(fmt.Errorf("relay: %w", err))
			}
		})
	}
	// Events that wait for a relay's start would say nothing of its speed.
	for _, r := range relays {
		for until := time.Now().Add(d.Wait); !r.Health().Ready; {
			if !pause(ctx, 5*time.Millisecond) {
				return context.Cause(ctx)
			}
			if time.Now().After(until) {
				return fmt.Errorf("a relay is not ready after %v: %+v", d.Wait, r.Health())
			}
		}
	}
	return nil
}

// newRelay is a relay with a pool and a sink of its own, as if it were another process.
func (d *demo) newRelay(ctx context.Context) (*relay.Relay, error) {
	pool, err := d.openPool(ctx, 4)
	if err != nil {
		return nil, err
	}
	sink, err := d.broker.Sink()
	if err != nil {
		return nil, err
	}
	d.onExit(func(context.Context) error { return sink.Close() })
	return relay.New(pool, relay.Config{
		Table:         d.database.table(),
		Schema:        d.database.state,
		Subscriptions: []relay.Subscription{{Name: "demo", Sink: sink, Topic: d.broker.Topic()}},
		Retention:     6 * time.Hour, // the ledger asks the table what became of a COMMIT that got no answer
		Version:       d.Version,
		Logger:        d.logger,
	})
}

// startPollers runs copies of the naive poller until ctx ends.
func (d *demo) startPollers(ctx context.Context, wg *sync.WaitGroup) error {
	if backlog := time.Duration(d.Rate) * d.Duration / pollLimit; backlog > d.Duration {
		d.progress.Say("each poller takes the same %d events per second: this load takes them about %v", pollLimit, backlog.Round(time.Second))
	}
	now := time.Now()
	for range d.Relays {
		pool, err := d.openPool(ctx, 1)
		if err != nil {
			return err
		}
		n := naive{pool: pool, db: d.database, publish: d.broker.Publish, logger: d.logger}
		wg.Go(func() { n.run(ctx, now) })
	}
	return nil
}

// load runs the writers, then waits for what they committed to arrive. It returns how long they wrote.
func (d *demo) load(ctx context.Context) (time.Duration, error) {
	l := load{pool: d.pool, db: d.database, ledger: d.ledger, rate: d.Rate}
	if d.Naive {
		l.write = writeNaive(d.database)
	} else {
		w := &outbox.Writer{Table: d.database.table()}
		l.write = func(ctx context.Context, tx pgx.Tx, e *outbox.Event) error { return w.Write(ctx, tx, e) }
	}
	d.ledger.Start()
	if err := l.run(ctx, d.Writers, d.Duration); err != nil {
		return 0, err
	}
	took := time.Since(l.start)
	err := d.ledger.Resolve(func(ids []outbox.ID) (map[outbox.ID]bool, error) {
		return d.database.exist(ctx, d.pool, ids)
	})
	if err != nil {
		return 0, err
	}
	return took, d.ledger.AwaitArrivals(ctx, d.Wait)
}
