package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// The tutorials' poller, as it is: the oldest fifty pending events are read, published one by one and marked one by one, each second.
// It is not to be improved here, but for the tick.
var (
	pollerTicking = poller("poller", 500, time.Second)
	pollerNoTick  = poller("poller without tick", 20_000, 0)
)

func poller(name string, most int, tick time.Duration) rival {
	return rival{
		name: name, most: most,
		prepare: func(ctx context.Context, db *database, s shape, events int) error {
			return s.backlog(ctx, db, queueTable, events)
		},
		deliver: func(ctx context.Context, db *database, to *natsStream, all <-chan struct{}) error {
			for due := time.Now(); ; due = due.Add(tick) {
				if err := poll(ctx, db, to); err != nil {
					return err
				}
				timer := time.NewTimer(time.Until(due.Add(tick)))
				select {
				case <-all:
					timer.Stop()
					return nil
				case <-ctx.Done():
					timer.Stop()
					return context.Cause(ctx)
				case <-timer.C:
				}
			}
		},
	}
}

func poll(ctx context.Context, db *database, to *natsStream) error {
	rows, err := db.pool.Query(ctx, query("pending"))
	if err != nil {
		return fmt.Errorf("select: %w", err)
	}
	type pending struct {
		ID                               [16]byte
		AggregateType, AggregateID, Type string
		Payload                          []byte
		CreatedAt                        time.Time
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[pending])
	if err != nil {
		return fmt.Errorf("select: %w", err)
	}
	for _, e := range events {
		m := relay.Message{Topic: to.Topic(), CreatedAt: e.CreatedAt, Event: outbox.Event{
			ID: outbox.ID(e.ID), AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Payload: e.Payload,
		}}
		if _, err := to.js.PublishMsg(ctx, natsMessage(&m)); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		if _, err := db.pool.Exec(ctx, query("mark"), e.ID); err != nil {
			return fmt.Errorf("update: %w", err)
		}
	}
	return nil
}
