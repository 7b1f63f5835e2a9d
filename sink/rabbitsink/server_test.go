package rabbitsink

import (
	"encoding/hex"
	"errors"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	amqp "github.com/rabbitmq/amqp091-go"
)

// brokerMax is the max_message_size that the broker for tests must have.
const brokerMax = 1 << 20

// serverURL is the broker that tests share.
func serverURL(t *testing.T) *url.URL {
	t.Helper()
	s := os.Getenv("COMMITRELAY_TEST_RABBITMQ")
	if s == "" {
		t.Fatal("COMMITRELAY_TEST_RABBITMQ is not set: run the tests with `make test`, or set it to the URL of a RabbitMQ with max_message_size = 1048576")
	}
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal("COMMITRELAY_TEST_RABBITMQ is not a valid URL")
	}
	return u
}

// broker is the test's own connection, and a name that no other test uses.
type broker struct {
	t    *testing.T
	name string
	conn *amqp.Connection
	ch   *amqp.Channel
	url  *url.URL
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	u := serverURL(t)
	conn, err := amqp.Dial(u.String())
	if err != nil {
		t.Fatalf("connect to COMMITRELAY_TEST_RABBITMQ: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	id := outbox.NewID()
	return &broker{t: t, name: "t" + hex.EncodeToString(id[8:]), conn: conn, ch: ch, url: u}
}

// exchange declares a topic exchange of the test's own and returns its name.
func (b *broker) exchange(suffix string) string {
	b.t.Helper()
	name := b.name + suffix
	if err := b.ch.ExchangeDeclare(name, "topic", true, false, false, false, nil); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := b.ch.ExchangeDelete(name, false, false); err != nil {
			b.t.Errorf("delete exchange: %v", err)
		}
	})
	return name
}

// queue declares a queue and binds it.
func (b *broker) queue(suffix, exchange, key string, args amqp.Table) string {
	b.t.Helper()
	name := b.name + suffix
	if _, err := b.ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if _, err := b.ch.QueueDelete(name, false, false, false); err != nil {
			b.t.Errorf("delete queue: %v", err)
		}
	})
	if err := b.ch.QueueBind(name, key, exchange, false, nil); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// fullQueue refuses all that is published to it: nacks, as a queue does that is full.
func (b *broker) fullQueue(suffix, exchange, key string) string {
	b.t.Helper()
	name := b.queue(suffix, exchange, key, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	confirm := make(chan amqp.Confirmation, 1)
	ch, err := b.conn.Channel()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		b.t.Fatal(err)
	}
	ch.NotifyPublish(confirm)
	if err := ch.Publish("", name, true, false, amqp.Publishing{}); err != nil {
		b.t.Fatal(err)
	}
	if c := <-confirm; !c.Ack {
		b.t.Fatal("the queue to be filled refuses its first message")
	}
	return name
}

// reader collects what arrives in a queue.
type reader struct {
	mu  sync.Mutex
	all []amqp.Delivery
}

func (b *broker) read(queue string) *reader {
	b.t.Helper()
	ch, err := b.conn.Channel()
	if err != nil {
		b.t.Fatal(err)
	}
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r := &reader{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range deliveries {
			r.mu.Lock()
			r.all = append(r.all, d)
			r.mu.Unlock()
		}
	}()
	b.t.Cleanup(func() { ch.Close(); <-done })
	return r
}

func (r *reader) deliveries() []amqp.Delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]amqp.Delivery(nil), r.all...)
}

func (r *reader) arrived() ([]sinktest.Arrival, error) {
	var all []sinktest.Arrival
	for _, d := range r.deliveries() {
		a := sinktest.Arrival{Body: d.Body, Headers: map[string]string{}}
		for name, value := range d.Headers {
			s, ok := value.(string)
			if !ok {
				return nil, errors.New("header " + name + " is no string")
			}
			a.Headers[name] = s
		}
		all = append(all, a)
	}
	return all, nil
}

// at is the broker's URL with another host:port.
func (b *broker) at(addr string) string {
	u := *b.url
	u.Host = addr
	return u.String()
}

func (b *broker) proxy() *tcpproxy.Proxy {
	b.t.Helper()
	p, err := tcpproxy.Listen(b.url.Host)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { p.Close() })
	return p
}

func open(t *testing.T, cfg Config) *Sink {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// message is one message to a topic.
func message(topic string) relay.Message {
	return relay.Message{
		Event:     outbox.Event{ID: outbox.NewID(), AggregateType: "order", AggregateID: outbox.NewID().String(), Type: "OrderPaid", Payload: []byte(`{"a":1}`)},
		Topic:     topic,
		CreatedAt: time.Date(2026, 3, 1, 12, 0, 0, 500000000, time.UTC),
	}
}

// publishAll expects outcomes, one word per message, and returns the errors.
func publishAll(t *testing.T, s *Sink, batch []relay.Message, want ...string) []error {
	t.Helper()
	return sinktest.Expect(t, batch, s.Publish(t.Context(), batch), want...)
}
