package rabbitsink

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	amqp "github.com/rabbitmq/amqp091-go"
)

// maxShort is the length of AMQP's short strings: exchanges, routing keys, names of headers.
const maxShort = 255

// target is where a message goes inside the broker.
type target struct{ exchange, key string }

func (t target) String() string {
	if t.exchange == "" {
		return fmt.Sprintf("queue %q (default exchange)", t.key)
	}
	return fmt.Sprintf("exchange %q, routing key %q", t.exchange, t.key)
}

// target reads a message's topic. Its error is marked Permanent.
func (s *Sink) target(m *relay.Message) (target, error) {
	t := target{exchange: s.cfg.Exchange, key: m.Topic}
	if s.cfg.ExchangeInTopic {
		var ok bool
		if t.exchange, t.key, ok = strings.Cut(m.Topic, "/"); !ok {
			return t, relay.Permanent(fmt.Errorf("topic %.300q names no exchange: want EXCHANGE/ROUTING-KEY", m.Topic))
		}
	}
	for what, name := range map[string]string{"exchange": t.exchange, "routing key": t.key} {
		if len(name) > maxShort {
			return t, relay.Permanent(fmt.Errorf("%s has %d bytes, AMQP allows %d: %.100q...", what, len(name), maxShort, name))
		}
	}
	return t, nil
}

// encode makes an AMQP message of m. frame is the connection's frame size. The error is marked
// Permanent: the event cannot be an AMQP message of this broker.
func (s *Sink) encode(m *relay.Message, frame, maxBytes int) (amqp.Publishing, error) {
	e := &m.Event
	if maxBytes > 0 && len(e.Payload) > maxBytes {
		return amqp.Publishing{}, relay.Permanent(fmt.Errorf("payload of %d bytes is larger than max message size %d", len(e.Payload), maxBytes))
	}
	p := amqp.Publishing{
		Headers:      make(amqp.Table, 5+len(e.Headers)),
		DeliveryMode: amqp.Persistent,
		MessageId:    e.ID.String(),
		Body:         e.Payload,
	}
	// What a property cannot hold is in the headers all the same.
	if len(e.Type) <= maxShort {
		p.Type = e.Type
	}
	if year := m.CreatedAt.Year(); year >= 1970 && year <= 9999 {
		p.Timestamp = m.CreatedAt.Truncate(time.Second)
	}
	if e.Payload != nil {
		p.ContentType = s.cfg.ContentType
	}
	size := 0
	for _, h := range wire.Own(m) {
		p.Headers[h.Name] = h.Value
		size += tableSize(h.Name, h.Value)
	}
	for name, value := range e.Headers {
		if wire.IsOwn(name) {
			continue
		}
		if err := headerFault(name); err != nil {
			return p, relay.Permanent(err)
		}
		p.Headers[name] = value
		size += tableSize(name, value)
		if strings.EqualFold(name, "content-type") && len(value) <= maxShort {
			p.ContentType = value
		}
	}
	// All headers travel in one frame. A larger one costs the whole connection.
	if size += maxProperties; frame > 0 && size > frame {
		return p, relay.Permanent(fmt.Errorf("headers of %d bytes do not fit into one frame of %d bytes (the broker's frame_max)", size, frame))
	}
	return p, nil
}

// maxProperties is more than what a header frame needs beside the table of headers.
const maxProperties = 2048

func tableSize(name, value string) int { return 1 + len(name) + 1 + 4 + len(value) }

func headerFault(name string) error {
	switch {
	case name == "":
		return errors.New("a header of the event has an empty name")
	case len(name) > maxShort:
		return fmt.Errorf("header %.50q... has a name of %d bytes, AMQP allows %d", name, len(name), maxShort)
	case name == "CC" || name == "BCC":
		return fmt.Errorf("header %q is an order to RabbitMQ to route the message elsewhere, too, which an event must not give", name)
	}
	return nil
}
