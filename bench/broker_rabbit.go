package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/rabbitsink"
)

// rabbitQueue is a durable classic queue behind the default exchange. Messages are persistent.
type rabbitQueue struct {
	url, name string
	conn      *amqp.Connection
	channel   *amqp.Channel // to make, look at and remove the queue
}

func openRabbit(_ context.Context, url, name string) (destination, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	q := &rabbitQueue{url: url, name: name, conn: conn}
	if q.channel, err = conn.Channel(); err == nil {
		_, err = q.channel.QueueDeclare(name, true, false, false, false, nil)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("declare queue %s: %w", name, err)
	}
	return q, nil
}

func (q *rabbitQueue) Topic() string { return q.name }

func (q *rabbitQueue) Sink() (closingSink, error) {
	return rabbitsink.New(rabbitsink.Config{URL: q.url})
}

func (q *rabbitQueue) Config() string { return "type: rabbitmq" }

func (q *rabbitQueue) Count(context.Context) (int, error) {
	state, err := q.channel.QueueDeclarePassive(q.name, true, false, false, false, nil)
	return state.Messages, err
}

func (q *rabbitQueue) Blast(ctx context.Context, messages []relay.Message) error {
	channel, err := q.conn.Channel()
	if err != nil {
		return fmt.Errorf("open channel: %w", err)
	}
	defer channel.Close()
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("switch on confirms: %w", err)
	}
	confirms := make([]*amqp.DeferredConfirmation, len(messages))
	for i := range messages {
		m := &messages[i]
		p := amqp.Publishing{
			Headers: amqp.Table{}, ContentType: "application/json", DeliveryMode: amqp.Persistent,
			MessageId: m.Event.ID.String(), Type: m.Event.Type, Timestamp: m.CreatedAt.Truncate(time.Second), Body: m.Event.Payload,
		}
		for _, h := range wire.Own(m) {
			p.Headers[h.Name] = h.Value
		}
		// Mandatory, as the sink's: a message that no queue takes comes back.
		if confirms[i], err = channel.PublishWithDeferredConfirmWithContext(ctx, "", m.Topic, true, false, p); err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	for _, c := range confirms {
		ok, err := c.WaitContext(ctx)
		if err == nil && !ok {
			err = errors.New("the broker refuses it")
		}
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
	}
	return nil
}

func (q *rabbitQueue) Close(context.Context) error {
	defer q.conn.Close()
	_, err := q.channel.QueueDelete(q.name, false, false, false)
	return err
}
