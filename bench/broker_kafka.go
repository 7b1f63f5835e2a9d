package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/kafkasink"
)

// partitions of the topic: a few, as in earnest.
const partitions = 4

// kafkaTopic is a topic of one replica, whose records need the acknowledgement of all (that one).
type kafkaTopic struct {
	url, name string
	client    *kgo.Client
	admin     *kadm.Client
}

func openKafka(ctx context.Context, url, name string) (destination, error) {
	// The defaults of the library are an idempotent producer that asks all replicas, as the sink's is.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.TrimPrefix(url, "kafka://")), kgo.ClientID(name), kgo.DefaultProduceTopic(name),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	t := &kafkaTopic{url: url, name: name, client: client, admin: kadm.NewClient(client)}
	if _, err := t.admin.CreateTopic(ctx, partitions, 1, nil, name); err != nil {
		client.Close()
		return nil, fmt.Errorf("create topic %s: %w", name, err)
	}
	if err := t.ready(ctx); err != nil {
		_ = t.Close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("create topic %s: %w", name, err)
	}
	return t, nil
}

// ready waits until each partition of the new topic answers.
func (t *kafkaTopic) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := t.Count(ctx)
		if err == nil || sleepUntil(ctx, time.Now().Add(lookEvery)) != nil {
			return err
		}
	}
}

func (t *kafkaTopic) Topic() string { return t.name }

func (t *kafkaTopic) Sink() (closingSink, error) { return kafkasink.New(kafkasink.Config{URL: t.url}) }

func (t *kafkaTopic) Config() string { return "type: kafka" }

// Count adds up the ends of the partitions: each record takes one offset, as there are no transactions.
func (t *kafkaTopic) Count(ctx context.Context) (n int, err error) {
	offsets, err := t.admin.ListEndOffsets(ctx, t.name)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return 0, err
	}
	offsets.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n, nil
}

func (t *kafkaTopic) Blast(ctx context.Context, messages []relay.Message) error {
	records := make([]*kgo.Record, len(messages))
	for i := range messages {
		m := &messages[i]
		records[i] = &kgo.Record{Topic: m.Topic, Key: []byte(m.Event.AggregateID), Value: m.Event.Payload}
		for _, h := range wire.Own(m) {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
		}
	}
	return t.client.ProduceSync(ctx, records...).FirstErr()
}

func (t *kafkaTopic) Close(ctx context.Context) error {
	defer t.client.Close()
	_, err := t.admin.DeleteTopic(ctx, t.name)
	return err
}
