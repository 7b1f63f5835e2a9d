package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// outboxTable is a kind of outbox: how its table is made and written to, and who delivers from it.
type outboxTable struct {
	name   string
	create func(ctx context.Context, db *database) error
	write  func(ctx context.Context, tx pgx.Tx, events ...*outbox.Event) error

	// deliver moves events to the topic of a sink until ctx ends.
	deliver func(ctx context.Context, db *database, sink relay.Sink, topic string) error
}

// logTable is ours, delivered by our relay, with all settings at their defaults.
var logTable = outboxTable{
	name: "outbox_events",
	create: func(ctx context.Context, db *database) error {
		return migrate.Up(ctx, db.pool, migrate.Options{})
	},
	write: func(ctx context.Context, tx pgx.Tx, events ...*outbox.Event) error {
		return new(outbox.Writer).Write(ctx, tx, events...)
	},
	deliver: func(ctx context.Context, db *database, sink relay.Sink, topic string) error {
		r, err := newRelay(db, sink, topic)
		if err != nil {
			return err
		}
		return r.Run(ctx)
	},
}

// queueTable is the tutorials' table with the one index that its reader needs, delivered by a reader that is as good as
// one that marks rows can be; see queue.
var queueTable = outboxTable{
	name: "queue",
	create: func(ctx context.Context, db *database) error {
		if err := db.run(ctx, "queue", "table", "queue"); err != nil {
			return err
		}
		return db.run(ctx, "queue_index", "table", "queue")
	},
	write: func(ctx context.Context, tx pgx.Tx, events ...*outbox.Event) error {
		for _, e := range events {
			_, err := tx.Exec(ctx, query("queue_insert"), [16]byte(e.ID), e.AggregateType, e.AggregateID, e.Type, string(e.Payload))
			if err != nil {
				return fmt.Errorf("insert: %w", err)
			}
		}
		return nil
	},
	deliver: func(ctx context.Context, db *database, sink relay.Sink, topic string) error {
		return queue{db: db, sink: sink, topic: topic}.run(ctx)
	},
}

// newRelay makes a relay in this process.
func newRelay(db *database, sink relay.Sink, topic string) (*relay.Relay, error) {
	return relay.New(db.pool, relay.Config{Subscriptions: []relay.Subscription{{Name: "bench", Sink: sink, Topic: topic}}})
}

// backlog makes the table with n events in it. The queue's gets the statistics that autovacuum would give it in time:
// with none its plans are worse. Ours has none in production either.
func (s shape) backlog(ctx context.Context, db *database, t outboxTable, n int) error {
	if err := t.create(ctx, db); err != nil {
		return err
	}
	if err := s.fill(ctx, db, t.name, n); err != nil {
		return err
	}
	if t.name != queueTable.name {
		return nil
	}
	return db.run(ctx, "analyze")
}
