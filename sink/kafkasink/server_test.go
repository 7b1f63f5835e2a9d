package kafkasink

import (
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// variable is the environment's, which scripts/services sets.
func variable(t testing.TB, name string) string {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		t.Fatalf("%s is not set: run the tests with `make test`, or see `scripts/services env kafka`", name)
	}
	return s
}

// brokerURL is the broker that tests share.
func brokerURL(t testing.TB) string { return variable(t, "COMMITRELAY_TEST_KAFKA") }

func addressOf(url string) string { return strings.TrimPrefix(url, "kafka://") }

// broker is the test's own connection, and a name that no other test uses.
type broker struct {
	t     testing.TB
	name  string
	addr  string
	kgo   *kgo.Client
	admin *kadm.Client
}

func newBroker(t testing.TB, url string) *broker {
	t.Helper()
	b := &broker{t: t, addr: addressOf(url)}
	id := outbox.NewID()
	b.name = "t" + hex.EncodeToString(id[8:])
	var err error
	if b.kgo, err = kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.DisableClientMetrics(), kgo.MetadataMinAge(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kgo.Close)
	b.admin = kadm.NewClient(b.kgo)
	return b
}

// topic creates a topic of the test's own, with settings as "name=value", and returns its name.
func (b *broker) topic(suffix string, partitions int32, settings ...string) string {
	b.t.Helper()
	name := b.name + suffix
	b.create(name, partitions, settings...)
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, _ = b.admin.DeleteTopic(ctx, name) // some tests have deleted it
	})
	return name
}

func (b *broker) create(name string, partitions int32, settings ...string) {
	b.t.Helper()
	configs := map[string]*string{}
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		configs[key] = &value
	}
	if _, err := b.admin.CreateTopic(b.t.Context(), partitions, 1, configs, name); err != nil {
		b.t.Fatalf("create topic %s: %v", name, err)
	}
	testwait.UntilNil(b.t, "all partitions answer", func() error {
		offsets, err := b.admin.ListEndOffsets(b.t.Context(), name)
		if err == nil {
			err = offsets.Error()
		}
		if err == nil && len(offsets[name]) != int(partitions) {
			err = errors.New("not all partitions")
		}
		return err
	})
}

func (b *broker) delete(name string) {
	b.t.Helper()
	if _, err := b.admin.DeleteTopic(b.t.Context(), name); err != nil {
		b.t.Fatal(err)
	}
	testwait.Until(b.t, "the topic is gone", func() bool {
		topics, err := b.admin.ListTopics(b.t.Context(), name)
		return err == nil && !topics.Has(name)
	})
}

// reader collects what arrives in a topic. Partitions keep their order, between them there is none.
type reader struct {
	mu  sync.Mutex
	all []*kgo.Record
}

func (b *broker) read(topics ...string) *reader {
	b.t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumeTopics(topics...), kgo.DisableClientMetrics(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			fetches := c.PollFetches(ctx)
			r.mu.Lock()
			fetches.EachRecord(func(rec *kgo.Record) { r.all = append(r.all, rec) })
			r.mu.Unlock()
		}
	}()
	b.t.Cleanup(func() { cancel(); <-done; c.Close() })
	return r
}

func (r *reader) records() []*kgo.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*kgo.Record(nil), r.all...)
}

// ids are the event ids that have arrived, in their order.
func (r *reader) ids() []string {
	var ids []string
	for _, rec := range r.records() {
		ids = append(ids, headersOf(rec)["outbox-id"])
	}
	return ids
}

func headersOf(rec *kgo.Record) map[string]string {
	headers := map[string]string{}
	for _, h := range rec.Headers {
		headers[h.Key] = string(h.Value)
	}
	return headers
}

func (r *reader) arrived() ([]sinktest.Arrival, error) {
	var all []sinktest.Arrival
	for _, rec := range r.records() {
		all = append(all, sinktest.Arrival{Body: rec.Value, Headers: maps.Clone(headersOf(rec))})
	}
	return all, nil
}

func open(t testing.TB, cfg Config) *Sink {
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

// through makes s connect to the proxy, whatever address a broker names.
func through(s *Sink, px *tcpproxy.Proxy) {
	s.connectTCP = func() func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, px.Addr())
		}
	}
}

func newProxy(t testing.TB, target string) *tcpproxy.Proxy {
	t.Helper()
	px, err := tcpproxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { px.Close() })
	return px
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
