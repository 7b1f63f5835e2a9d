package demo

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
)

// tick is the tutorial's @Scheduled(fixedRate = 1000).
const tick = time.Second

// pollLimit is the LIMIT in pending.sql.
const pollLimit = 50

// naive is the tutorial's relay, as it is: each second the oldest fifty pending events are read,
// published one by one and marked one by one. It is not to be improved here.
type naive struct {
	pool    *pgxpool.Pool
	db      database
	publish func(ctx context.Context, eventType string, body []byte) error
	logger  *slog.Logger
}

// run polls at start, start + 1 s, and so on until ctx ends. Copies with one start poll at the same
// moments, as the pods of one deployment do.
func (n naive) run(ctx context.Context, start time.Time) {
	for k := time.Duration(0); pause(ctx, time.Until(start.Add(k*tick))); k++ {
		if err := n.poll(ctx); err != nil && ctx.Err() == nil {
			n.logger.Warn("naive poll failed, the next tick tries again", "error", err)
		}
		// A poll that took longer than a tick is followed by the next one at once, once.
		k = max(k, time.Since(start)/tick-1)
	}
}

func (n naive) poll(ctx context.Context) error {
	rows, err := n.pool.Query(ctx, n.db.sql("pending"))
	if err != nil {
		return fmt.Errorf("select: %w", err)
	}
	type pending struct {
		ID        outbox.ID
		EventType string
		Payload   []byte
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pending])
	if err != nil {
		return fmt.Errorf("select: %w", err)
	}
	for _, e := range events {
		if err := n.publish(ctx, e.EventType, e.Payload); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		if _, err := n.pool.Exec(ctx, n.db.sql("mark"), e.ID); err != nil {
			return fmt.Errorf("update: %w", err)
		}
	}
	return nil
}

// writeNaive inserts an event into the tutorial's table.
func writeNaive(db database) func(ctx context.Context, tx pgx.Tx, e *outbox.Event) error {
	return func(ctx context.Context, tx pgx.Tx, e *outbox.Event) error {
		_, err := tx.Exec(ctx, db.sql("insert_event"), e.ID, e.AggregateType, e.AggregateID, e.Type, string(e.Payload))
		return err
	}
}
