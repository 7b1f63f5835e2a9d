package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// River is a job queue: one job is one event, and its worker publishes it and waits for the confirmation. Jobs of one key run
// concurrently, so it keeps no order.
var (
	// As in its documentation's first example.
	riverDefault = riverRival("river", 10_000, river.Config{Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}})

	// The shortest pauses that it allows.
	riverTuned = riverRival("river tuned", 50_000, river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}},
		FetchCooldown:     river.FetchCooldownMin,
		FetchPollInterval: river.FetchPollIntervalMin,
	})
)

func riverRival(name string, most int, cfg river.Config) rival {
	cfg.Logger = slog.New(slog.DiscardHandler)
	return rival{
		name: name, most: most,
		prepare: func(ctx context.Context, db *database, s shape, events int) error {
			return prepareRiver(ctx, db, s, events, cfg.Logger)
		},
		deliver: func(ctx context.Context, db *database, to *natsStream, all <-chan struct{}) error {
			cfg.Workers = river.NewWorkers()
			river.AddWorker(cfg.Workers, &eventWorker{to: to})
			client, err := river.NewClient(riverpgxv5.New(db.pool), &cfg)
			if err != nil {
				return err
			}
			if err := client.Start(ctx); err != nil {
				return err
			}
			select {
			case <-all:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			return errors.Join(err, client.Stop(context.WithoutCancel(ctx)))
		},
	}
}

func prepareRiver(ctx context.Context, db *database, s shape, events int, logger *slog.Logger) error {
	driver := riverpgxv5.New(db.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: logger})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	client, err := river.NewClient(driver, &river.Config{Logger: logger})
	if err != nil {
		return err
	}
	return insertJobs(ctx, client, s, events)
}

func insertJobs(ctx context.Context, client *river.Client[pgx.Tx], s shape, events int) error {
	for first := 0; first < events; first += copySize {
		var jobs []river.InsertManyParams
		for i := first; i < min(first+copySize, events); i++ {
			e := s.event(i)
			jobs = append(jobs, river.InsertManyParams{Args: eventArgs{
				ID: e.ID, AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Payload: e.Payload, CreatedAt: time.Now(),
			}})
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return fmt.Errorf("insert jobs: %w", err)
		}
	}
	return nil
}

// eventArgs are an event as a job.
type eventArgs struct {
	ID            outbox.ID       `json:"id"`
	AggregateType string          `json:"aggregate_type"`
	AggregateID   string          `json:"aggregate_id"`
	Type          string          `json:"type"`
	Payload       json.RawMessage `json:"payload"`
	CreatedAt     time.Time       `json:"created_at"`
}

// Kind implements river.JobArgs.
func (eventArgs) Kind() string { return "event" }

type eventWorker struct {
	river.WorkerDefaults[eventArgs]
	to *natsStream
}

// Work implements river.Worker.
func (w *eventWorker) Work(ctx context.Context, job *river.Job[eventArgs]) error {
	a := job.Args
	m := relay.Message{Topic: w.to.Topic(), CreatedAt: a.CreatedAt, Event: outbox.Event{
		ID: a.ID, AggregateType: a.AggregateType, AggregateID: a.AggregateID, Type: a.Type, Payload: a.Payload,
	}}
	_, err := w.to.js.PublishMsg(ctx, natsMessage(&m))
	return err
}
