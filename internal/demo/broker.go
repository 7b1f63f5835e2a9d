package demo

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/commitrelay/outbox/relay"
)

// broker is a place of the demo's own inside NATS, RabbitMQ or Kafka, removed by Close.
type broker interface {
	// String names the broker and its version.
	fmt.Stringer

	// Topic is the template of the topics that Consume reads.
	Topic() string

	// Sink makes a sink for one relay. Its errors show no password.
	Sink() (closingSink, error)

	// Publish sends one message without an id and waits for the broker's confirmation.
	Publish(ctx context.Context, eventType string, body []byte) error

	// Consume gives receive each message, in the broker's order, from the first one on. It returns
	// after receive did with false, or with an error, ctx's too.
	Consume(ctx context.Context, receive func(eventType string, body []byte) bool) error

	// Suppressed counts the messages that the broker confirmed and did not store, as copies. To be
	// asked after Consume has returned.
	Suppressed(ctx context.Context) (int, error)

	// Close removes what the demo made there.
	Close(ctx context.Context) error
}

// closingSink is a sink that holds connections.
type closingSink interface {
	relay.Sink
	io.Closer
}

// opener makes a demo's place in a broker.
type opener func(ctx context.Context, url, name string) (broker, error)

// brokerOf is the opener for a sink's URL, nil if there is none. Without a URL it is a NATS in this
// process.
func brokerOf(sinkURL string) opener {
	scheme, _, _ := strings.Cut(sinkURL, "://")
	switch scheme {
	case "":
		return startNATS
	case "nats", "tls", "ws", "wss":
		return connectNATS
	case "amqp", "amqps":
		return connectRabbit
	case "kafka", "kafka+ssl":
		return connectKafka
	}
	return nil
}
