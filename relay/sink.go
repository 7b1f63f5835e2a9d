package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox"
)

// Message is one event on its way to a sink.
type Message struct {
	Event outbox.Event

	// Topic is where inside the sink the event goes: a NATS subject, a Kafka topic, a Redis key,
	// a RabbitMQ routing key. It is the subscription's topic template, filled in.
	Topic string

	// Seq is the event's number in the outbox: it orders events of one transaction.
	Seq int64

	// Attempt counts the deliveries of this event that the sink answered with Retry or
	// RetryAfter, plus one: 1 at the first delivery.
	Attempt int

	// CreatedAt is the row's created_at: the start of the writer's transaction unless the writer
	// set it. PostgreSQL's infinities are clamped to the ends of its timestamp range.
	CreatedAt time.Time

	// Replayed is true for an event that a replay delivers again.
	Replayed bool
}

// A Sink delivers messages to one destination. It is to a Relay what an http.Handler is to an
// http.Server: whatever implements Publish can be the end of a subscription.
//
// Publish delivers the batch in order and returns nil once the destination holds all of it.
// It is called concurrently for different lanes, one call at a time per lane, and must not
// keep the batch or the byte slices in it after it has returned. ctx ends when the lane's lease
// or the time for shutdown is over; Publish then stops, and still reports what was confirmed.
//
// A *BatchError answers for each message by itself. Its entry is
//
//   - nil: published, and never sent again;
//   - Permanent, Retry, RetryAfter or Unavailable: refused by the destination;
//   - any other error: not sent, or not known whether it arrived. The lane pauses and repeats
//     just those; no attempt is counted.
//
// Any error that is not a *BatchError says "not known" of the whole batch, or, if it is marked
// with Permanent, Retry, RetryAfter or Unavailable, says that of every message in it.
//
// Order per key holds inside a batch too: a sink that refuses a message, or does not know its
// outcome, must not have delivered a later message of the same key (same aggregate type and id).
// The messages it held back for that get an unmarked error. Package sink/sinktest checks this
// contract.
type Sink interface {
	Publish(ctx context.Context, batch []Message) error
}

// SinkFunc makes a Sink of a function that delivers batches.
type SinkFunc func(ctx context.Context, batch []Message) error

// Publish calls f.
func (f SinkFunc) Publish(ctx context.Context, batch []Message) error { return f(ctx, batch) }
