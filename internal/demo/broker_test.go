package demo

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// testBroker checks what the figures rest on: the consumer gets what the relays' sink and the naive
// publisher send, all of it, in that order, repetitions too, up to the last message.
func testBroker(t *testing.T, b broker) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var got []string
	var consuming sync.WaitGroup
	defer consuming.Wait()
	consuming.Go(func() {
		err := b.Consume(ctx, func(eventType string, body []byte) bool {
			if eventType == endType {
				return false
			}
			got = append(got, eventType+" "+string(body))
			return true
		})
		if err != nil {
			t.Errorf("consume: %v", err)
		}
	})

	var want []string
	publish := func(body string) {
		t.Helper()
		if err := b.Publish(ctx, userMoved, []byte(body)); err != nil {
			t.Fatalf("publish: %v", err)
		}
		want = append(want, userMoved+" "+body)
	}
	for i := range 300 {
		publish(strconv.Itoa(i))
	}
	publish("again")
	publish("again")

	s, err := b.Sink()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := relay.Message{Topic: topicOf(t, b, userCreated), Attempt: 1, Event: outbox.Event{
		ID: outbox.NewID(), AggregateType: "user", AggregateID: "1", Type: userCreated, Payload: []byte(`{"a":1}`),
	}}
	if err := s.Publish(ctx, []relay.Message{r}); err != nil {
		t.Fatalf("publish by the sink: %v", err)
	}
	want = append(want, userCreated+` {"a":1}`)

	if err := b.Publish(ctx, endType, nil); err != nil {
		t.Fatalf("publish the last message: %v", err)
	}
	consuming.Wait()
	if !slices.Equal(got, want) {
		t.Errorf("got %d messages %q\nwant %d %q", len(got), got, len(want), want)
	}
	if n, err := b.Suppressed(ctx); err != nil || n != 0 {
		t.Errorf("suppressed: got %d, error %v, want 0", n, err)
	}
}

// topicOf fills the event type into the broker's topic template.
func topicOf(t *testing.T, b broker, eventType string) string {
	t.Helper()
	switch b := b.(type) {
	case *natsBroker:
		return b.name + "." + eventType
	case *kafkaBroker:
		return b.name
	}
	return eventType
}

func TestNATS(t *testing.T) {
	ctx := t.Context()
	t.Setenv("TMPDIR", t.TempDir())
	ours, err := startNATS(ctx, "", newName())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ours.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	testBroker(t, ours)

	given, err := connectNATS(ctx, ours.(*natsBroker).url, newName())
	if err != nil {
		t.Fatal(err)
	}
	testBroker(t, given)
	if err := given.Close(ctx); err != nil {
		t.Error(err)
	}
	var streams []string
	for name := range ours.(*natsBroker).js.StreamNames(ctx).Name() {
		streams = append(streams, name)
	}
	if want := []string{ours.(*natsBroker).name}; !slices.Equal(streams, want) {
		t.Errorf("after closing the second one: got streams %v, want %v", streams, want)
	}
}

// rabbitURL is the RabbitMQ that tests share.
func rabbitURL(t *testing.T) string {
	t.Helper()
	url := os.Getenv("COMMITRELAY_TEST_RABBITMQ")
	if url == "" {
		t.Fatal("COMMITRELAY_TEST_RABBITMQ is not set: run the tests with `make test`, or set it to the URL of a RabbitMQ")
	}
	return url
}

func TestRabbitMQ(t *testing.T) {
	ctx := t.Context()
	name := newName()
	b, err := connectRabbit(ctx, rabbitURL(t), name)
	if err != nil {
		t.Fatal(err)
	}
	testBroker(t, b)
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}

	conn, err := amqp.Dial(rabbitURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for what, declare := range map[string]func(*amqp.Channel) error{
		"queue": func(c *amqp.Channel) error {
			_, err := c.QueueDeclarePassive(name, true, false, false, false, nil)
			return err
		},
		"exchange": func(c *amqp.Channel) error {
			return c.ExchangeDeclarePassive(name, "topic", true, true, false, false, nil)
		},
	} {
		c, err := conn.Channel()
		if err != nil {
			t.Fatal(err)
		}
		var fault *amqp.Error
		if err := declare(c); !errors.As(err, &fault) || fault.Code != amqp.NotFound {
			t.Errorf("the %s after closing: got error %v, want not found", what, err)
		}
	}
}

// kafkaURL is the Kafka that tests share.
func kafkaURL(t *testing.T) string {
	t.Helper()
	url := os.Getenv("COMMITRELAY_TEST_KAFKA")
	if url == "" {
		t.Fatal("COMMITRELAY_TEST_KAFKA is not set: run the tests with `make test`, or set it to the URL of a Kafka")
	}
	return url
}

func TestKafka(t *testing.T) {
	ctx := t.Context()
	b, err := connectKafka(ctx, kafkaURL(t), newName())
	if err != nil {
		t.Fatal(err)
	}
	testBroker(t, b)
	k := b.(*kafkaBroker)
	// Also with a login, and to the brokers of a list.
	given, err := connectKafka(ctx, os.Getenv("COMMITRELAY_TEST_KAFKA_SASL")+","+strings.TrimPrefix(os.Getenv("COMMITRELAY_TEST_KAFKA_SASL"), "kafka://"), newName())
	if err != nil {
		t.Fatal(err)
	}
	name := given.(*kafkaBroker).name
	if err := given.Close(ctx); err != nil {
		t.Error(err)
	}
	topics, err := k.admin.ListTopics(ctx)
	if err != nil || !topics.Has(k.name) || topics.Has(name) {
		t.Errorf("after closing the second one: the first one's topic is there: %v, the second one's: %v (%v)", topics.Has(k.name), topics.Has(name), err)
	}
	if err := b.Close(ctx); err != nil {
		t.Error(err)
	}
}

// What JetStream takes for a copy does not reach the consumer; it is counted all the same.
func TestNATSCountsWhatItSuppresses(t *testing.T) {
	ctx := t.Context()
	t.Setenv("TMPDIR", t.TempDir())
	opened, err := startNATS(ctx, "", newName())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := opened.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	b := opened.(*natsBroker)
	duplicates := 0
	for range 20 {
		// Two publishes need not fall into the window of 100 ms, so the stream says which did.
		ack, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: b.name + "." + userCreated}, jetstream.WithMsgID("one"))
		if err != nil {
			t.Fatal(err)
		}
		if ack.Duplicate {
			duplicates++
		}
	}
	if got, err := b.Suppressed(ctx); err != nil || got != duplicates {
		t.Errorf("got %d suppressed, error %v, want %d", got, err, duplicates)
	}
}
