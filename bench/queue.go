package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// queue delivers from the tutorials' table the way that pollers are improved to: it takes a batch of pending rows with
// SKIP LOCKED, publishes the whole batch by our sink, marks it with one UPDATE, and commits. Batches and pauses are those of our
// relay. It keeps no order between two workers.
type queue struct {
	db    *database
	sink  relay.Sink
	topic string
}

const (
	batchSize = 1000
	pauseMin  = 2 * time.Millisecond
	pauseMax  = 100 * time.Millisecond
)

// run delivers until ctx ends. The pause between two looks doubles while there is nothing to do.
func (q queue) run(ctx context.Context) error {
	pause := pauseMin
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		n, err := q.step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case n > 0:
			pause = pauseMin
		default:
			pause = min(2*pause, pauseMax)
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// drain delivers what is pending, with several workers.
func (q queue) drain(ctx context.Context, workers int) error {
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			for {
				if n, err := q.step(ctx); err != nil || n == 0 {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// step delivers one batch in one transaction, and returns its size.
func (q queue) step(ctx context.Context) (n int, err error) {
	err = pgx.BeginFunc(ctx, q.db.pool, func(tx pgx.Tx) error {
		batch, ids, err := q.take(ctx, tx)
		if err != nil || len(batch) == 0 {
			return err
		}
		n = len(batch)
		if err := q.sink.Publish(ctx, batch); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		if _, err := tx.Exec(ctx, query("queue_mark"), ids); err != nil {
			return fmt.Errorf("mark: %w", err)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("queue: %w", err)
	}
	return n, nil
}

func (q queue) take(ctx context.Context, tx pgx.Tx) (batch []relay.Message, ids [][16]byte, err error) {
	rows, err := tx.Query(ctx, query("queue_take"), batchSize)
	if err != nil {
		return nil, nil, fmt.Errorf("take: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		m := relay.Message{Topic: q.topic, Attempt: 1}
		var id [16]byte
		err := rows.Scan(&id, &m.Event.AggregateType, &m.Event.AggregateID, &m.Event.Type, &m.Event.Payload, &m.CreatedAt)
		if err != nil {
			return nil, nil, fmt.Errorf("take: %w", err)
		}
		m.Event.ID = outbox.ID(id)
		batch, ids = append(batch, m), append(ids, id)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, fmt.Errorf("take: %w", err)
	}
	return batch, ids, nil
}
