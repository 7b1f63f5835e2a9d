package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/commitrelay/outbox/sink/rabbitsink"
)

// rabbitBroker is an exchange and a queue in RabbitMQ, both named alike.
type rabbitBroker struct {
	url     string
	name    string
	conn    *amqp.Connection
	channel *amqp.Channel // publishes, with confirms
}

// abandoned is how long RabbitMQ keeps the queue of a demo that was killed.
const abandoned = 10 * time.Minute

// connectRabbit makes the exchange and the queue: durable, as in earnest. If nobody comes to remove
// them, the queue expires, and the exchange with it.
func connectRabbit(_ context.Context, amqpURL, name string) (_ broker, err error) {
	b := &rabbitBroker{url: amqpURL, name: name}
	if _, err = b.Sink(); err != nil { // checks the URL
		return nil, err
	}
	for node := range strings.SplitSeq(amqpURL, ",") {
		b.conn, err = amqp.DialConfig(strings.TrimSpace(node), amqp.Config{Properties: amqp.Table{"connection_name": "commitrelay demo"}})
		if err == nil {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	defer func() {
		if err != nil {
			b.conn.Close()
		}
	}()
	if b.channel, err = b.conn.Channel(); err != nil {
		return nil, fmt.Errorf("open channel: %w", err)
	}
	if err = b.channel.Confirm(false); err != nil {
		return nil, fmt.Errorf("switch on confirms: %w", err)
	}
	if err = b.channel.ExchangeDeclare(name, amqp.ExchangeTopic, true, true, false, false, nil); err != nil {
		return nil, fmt.Errorf("declare exchange %s: %w", name, err)
	}
	if _, err = b.channel.QueueDeclare(name, true, false, false, false, amqp.Table{"x-expires": abandoned.Milliseconds()}); err != nil {
		return nil, fmt.Errorf("declare queue %s: %w", name, err)
	}
	if err = b.channel.QueueBind(name, "#", name, false, nil); err != nil {
		return nil, fmt.Errorf("bind queue %s: %w", name, err)
	}
	return b, nil
}

func (b *rabbitBroker) String() string {
	return fmt.Sprintf("RabbitMQ %v, as given, exchange and queue %s", b.conn.Properties["version"], b.name)
}

func (b *rabbitBroker) Sink() (closingSink, error) {
	return rabbitsink.New(rabbitsink.Config{URL: b.url, Exchange: b.name, Name: "commitrelay demo relay"})
}

func (b *rabbitBroker) Topic() string { return "{event_type}" }

func (b *rabbitBroker) Publish(ctx context.Context, eventType string, body []byte) error {
	confirm, err := b.channel.PublishWithDeferredConfirmWithContext(ctx, b.name, eventType, false, false, amqp.Publishing{
		ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: body,
	})
	if err != nil {
		return err
	}
	confirmed, err := confirm.WaitContext(ctx)
	if err == nil && !confirmed {
		err = errors.New("RabbitMQ refused the message")
	}
	return err
}

func (b *rabbitBroker) Consume(ctx context.Context, receive func(eventType string, body []byte) bool) error {
	channel, err := b.conn.Channel()
	if err != nil {
		return fmt.Errorf("consume from RabbitMQ: %w", err)
	}
	closed := channel.NotifyClose(make(chan *amqp.Error, 1))
	messages, err := channel.Consume(b.name, "", true, true, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume from RabbitMQ: %w", err)
	}
	defer func() {
		_ = channel.Close()  // its messages are acknowledged, whatever becomes of the channel
		for range messages { // those already here hold up the connection until someone takes them
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("consume from RabbitMQ: %w", context.Cause(ctx))
		case m, ok := <-messages:
			if !ok {
				return fmt.Errorf("consume from RabbitMQ: the channel was closed: %w", closeReason(closed))
			}
			if !receive(m.RoutingKey, m.Body) {
				return nil
			}
		}
	}
}

// closeReason is why a channel was closed, once it was.
func closeReason(closed <-chan *amqp.Error) error {
	if err, ok := <-closed; ok {
		return err
	}
	return amqp.ErrClosed
}

// Suppressed is 0: RabbitMQ's queues know no copies.
func (b *rabbitBroker) Suppressed(context.Context) (int, error) { return 0, nil }

func (b *rabbitBroker) Close(context.Context) error {
	defer b.conn.Close()
	// A channel that met an error is closed, so this wants a new one. The exchange goes with its last queue.
	channel, err := b.conn.Channel()
	if err == nil {
		_, err = channel.QueueDelete(b.name, false, false, false)
	}
	if err != nil {
		return fmt.Errorf("remove the demo's queue %s: %w; it expires by itself in %v", b.name, err, abandoned)
	}
	return nil
}
