package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
)

// Watermill's SQL subscriber hands over one message at a time and waits until it is acked; a batch is what it reads at once.
var (
	// As it comes: each message is acked when JetStream has confirmed it.
	watermillOffsets = watermillRival("watermill", 20_000, watermillMode{
		schema: sql.DefaultPostgreSQLSchema{}, offsets: sql.DefaultPostgreSQLOffsetsAdapter{},
	})

	// As fast as it can be made: messages are acked as soon as they are sent, so that JetStream confirms them meanwhile. A crash may
	// lose those that it has not confirmed, which nobody should do in earnest; waiting is what costs the time.
	watermillOffsetsTuned = watermillRival("watermill offsets tuned", 200_000, watermillMode{
		schema: sql.DefaultPostgreSQLSchema{SubscribeBatchSize: batchSize}, offsets: sql.DefaultPostgreSQLOffsetsAdapter{},
		poll: time.Millisecond, async: true,
	})
	watermillQueueTuned = watermillRival("watermill queue tuned", 200_000, watermillMode{
		schema: sql.PostgreSQLQueueSchema{SubscribeBatchSize: batchSize}, offsets: sql.PostgreSQLQueueOffsetsAdapter{},
		poll: time.Millisecond, async: true,
	})
)

type watermillMode struct {
	schema  sql.SchemaAdapter
	offsets sql.OffsetsAdapter
	poll    time.Duration // 0: Watermill's default
	async   bool
}

const watermillTopic = "events"

func watermillRival(name string, most int, mode watermillMode) rival {
	return rival{name: name, most: most, prepare: mode.prepare, deliver: mode.deliver}
}

func (w watermillMode) prepare(ctx context.Context, db *database, s shape, events int) (err error) {
	subscriber, err := w.subscriber(db)
	if err != nil {
		return err
	}
	if err := subscriber.SubscribeInitialize(watermillTopic); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	publisher, err := sql.NewPublisher(sql.BeginnerFromPgx(db.pool), sql.PublisherConfig{SchemaAdapter: w.schema}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, publisher.Close()) }()
	for first := 0; first < events; first += copySize {
		var batch []*message.Message
		for i := first; i < min(first+copySize, events); i++ {
			e := s.event(i)
			m := message.NewMessage(e.ID.String(), e.Payload)
			for _, h := range wire.Own(&relay.Message{Event: *e, CreatedAt: time.Now()}) {
				m.Metadata.Set(h.Name, h.Value)
			}
			m.SetContext(ctx)
			batch = append(batch, m)
		}
		if err := publisher.Publish(watermillTopic, batch...); err != nil {
			return fmt.Errorf("insert messages: %w", err)
		}
	}
	return nil
}

func (w watermillMode) subscriber(db *database) (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromPgx(db.pool), sql.SubscriberConfig{
		SchemaAdapter: w.schema, OffsetsAdapter: w.offsets, PollInterval: w.poll,
	}, watermill.NopLogger{})
}

func (w watermillMode) deliver(ctx context.Context, db *database, to *natsStream, all <-chan struct{}) (err error) {
	subscriber, err := w.subscriber(db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, subscriber.Close()) }()
	messages, err := subscriber.Subscribe(ctx, watermillTopic)
	if err != nil {
		return err
	}
	var acks []jetstream.PubAckFuture
	for {
		select {
		case <-all:
			return confirmed(ctx, to.js, acks)
		case <-ctx.Done():
			return context.Cause(ctx)
		case m, ok := <-messages:
			if !ok {
				return errors.New("the subscriber has ended")
			}
			ack, err := w.forward(ctx, to, m)
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
			if ack != nil {
				acks = append(acks, ack)
			}
			m.Ack()
		}
	}
}

// forward publishes a message, and waits for its confirmation unless the mode is async.
func (w watermillMode) forward(ctx context.Context, to *natsStream, m *message.Message) (jetstream.PubAckFuture, error) {
	msg := &nats.Msg{Subject: to.Topic(), Data: m.Payload, Header: nats.Header{}}
	for name, value := range m.Metadata {
		msg.Header[name] = []string{value}
	}
	msg.Header[jetstream.MsgIDHeader] = []string{m.UUID}
	if w.async {
		return to.js.PublishMsgAsync(msg, waitForRoom)
	}
	_, err := to.js.PublishMsg(ctx, msg)
	return nil, err
}
