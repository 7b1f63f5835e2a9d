package demo

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/commitrelay/outbox/sink/kafkasink"
)

// kafkaBroker is a topic in Kafka. It has one partition: so the last message sent is the last one
// received.
type kafkaBroker struct {
	url     string
	name    string // of the topic
	client  *kgo.Client
	admin   *kadm.Client
	version string
}

// typeHeader is where consumers find the event type.
const typeHeader = "outbox-type"

func connectKafka(ctx context.Context, kafkaURL, name string) (_ broker, err error) {
	b := &kafkaBroker{url: kafkaURL, name: name}
	if _, err = b.Sink(); err != nil { // checks the URL
		return nil, err
	}
	if b.client, err = b.connect(kgo.ProducerLinger(0)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.client.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err = b.client.Ping(ctx); err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	b.admin = kadm.NewClient(b.client)
	if versions, err := b.admin.ApiVersions(ctx); err == nil {
		versions.Each(func(v kadm.BrokerApiVersions) { b.version = v.VersionGuess() })
	}
	if _, err = b.admin.CreateTopic(ctx, 1, -1, nil, name); err != nil {
		return nil, fmt.Errorf("create topic %s: %w", name, err)
	}
	if err = b.awaitTopic(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("create topic %s: %w", name, err), b.remove(context.WithoutCancel(ctx)))
	}
	return b, nil
}

// connect makes a client of the demo's own.
func (b *kafkaBroker) connect(more ...kgo.Opt) (*kgo.Client, error) {
	var seeds []string
	var first *url.URL
	for node := range strings.SplitSeq(b.url, ",") {
		if node = strings.TrimSpace(node); !strings.Contains(node, "://") {
			node = "kafka://" + node
		}
		u, err := url.Parse(node)
		if err != nil {
			return nil, errors.New("connect to Kafka: not a valid URL")
		}
		if first == nil {
			first = u
		}
		port := u.Port()
		if port == "" {
			port = "9092"
		}
		seeds = append(seeds, net.JoinHostPort(u.Hostname(), port))
	}
	opts := append(more, kgo.SeedBrokers(seeds...), kgo.ClientID("commitrelay demo"), kgo.DisableClientMetrics())
	if first.Scheme == "kafka+ssl" {
		opts = append(opts, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	if first.User != nil {
		password, _ := first.User.Password()
		opts = append(opts, kgo.SASL(plain.Auth{User: first.User.Username(), Pass: password}.AsMechanism()))
	}
	c, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to Kafka: %w", err)
	}
	return c, nil
}

// awaitTopic waits until the new topic answers.
func (b *kafkaBroker) awaitTopic(ctx context.Context) error {
	for {
		offsets, err := b.admin.ListEndOffsets(ctx, b.name)
		if err == nil {
			err = offsets.Error()
		}
		if err == nil || !pause(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

func (b *kafkaBroker) String() string {
	return fmt.Sprintf("Kafka %s, as given, topic %s", b.version, b.name)
}

func (b *kafkaBroker) Sink() (closingSink, error) {
	return kafkasink.New(kafkasink.Config{URL: b.url, Name: "commitrelay demo relay"})
}

func (b *kafkaBroker) Topic() string { return b.name }

func (b *kafkaBroker) Publish(ctx context.Context, eventType string, body []byte) error {
	r := &kgo.Record{Topic: b.name, Value: body, Headers: []kgo.RecordHeader{{Key: typeHeader, Value: []byte(eventType)}}}
	return b.client.ProduceSync(ctx, r).FirstErr()
}

func (b *kafkaBroker) Consume(ctx context.Context, receive func(eventType string, body []byte) bool) error {
	c, err := b.connect(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.name: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil && !kerr.IsRetriable(err) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("consume from Kafka: %w", err)
		}
		for records := fetches.RecordIter(); !records.Done(); {
			r := records.Next()
			eventType := ""
			for _, h := range r.Headers {
				if h.Key == typeHeader {
					eventType = string(h.Value)
				}
			}
			if !receive(eventType, r.Value) {
				return nil
			}
		}
	}
}

// Suppressed is 0: what Kafka recognises as a copy is one of the producer's own repetitions.
func (b *kafkaBroker) Suppressed(context.Context) (int, error) { return 0, nil }

func (b *kafkaBroker) Close(ctx context.Context) error {
	defer b.client.Close()
	return b.remove(ctx)
}

func (b *kafkaBroker) remove(ctx context.Context) error {
	if _, err := b.admin.DeleteTopic(ctx, b.name); err != nil {
		return fmt.Errorf("remove the demo's topic: %w; it can be removed with: kafka-topics.sh --delete --topic %s", err, b.name)
	}
	return nil
}
