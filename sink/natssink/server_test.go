package natssink

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// serverURL is the real server that tests share.
func serverURL(t *testing.T) string {
	t.Helper()
	s := os.Getenv("COMMITRELAY_TEST_NATS")
	if s == "" {
		t.Fatal("COMMITRELAY_TEST_NATS is not set: run the tests with `make test`, or set it to the URL of a NATS server with JetStream")
	}
	return s
}

// embedded starts a server with JetStream. edit, if not nil, changes its options.
func embedded(t *testing.T, edit func(*server.Options)) *server.Server {
	t.Helper()
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()}
	if edit != nil {
		edit(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the embedded NATS server does not start")
	}
	return s
}

// connect opens a connection of the test's own.
func connect(t *testing.T, url string, opts ...nats.Option) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(url, append(opts, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	if err != nil {
		t.Fatalf("connect to %s: %v", url, err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func stream(t *testing.T, js jetstream.JetStream, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	cfg.Storage = jetstream.MemoryStorage
	s, err := js.CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatalf("create stream %s: %v", cfg.Name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := js.DeleteStream(ctx, cfg.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			t.Errorf("delete stream %s: %v", cfg.Name, err)
		}
	})
	return s
}

// reader collects what is in a stream, in its order.
type reader struct {
	mu       sync.Mutex
	consumer jetstream.Consumer
	all      []sinktest.Arrival
}

func read(t *testing.T, s jetstream.Stream) *reader {
	t.Helper()
	c, err := s.CreateConsumer(t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	if err != nil {
		t.Fatal(err)
	}
	return &reader{consumer: c}
}

func (r *reader) arrived() ([]sinktest.Arrival, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		batch, err := r.consumer.FetchNoWait(1000)
		if err != nil {
			return nil, err
		}
		n := 0
		for m := range batch.Messages() {
			n++
			a := sinktest.Arrival{Body: m.Data(), Headers: map[string]string{}}
			for name, values := range m.Headers() {
				if !strings.HasPrefix(name, "Nats-") {
					a.Headers[name] = strings.Join(values, "|")
				}
			}
			r.all = append(r.all, a)
		}
		if err := batch.Error(); err != nil {
			return nil, err
		}
		if n == 0 {
			return r.all, nil
		}
	}
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

func proxy(t *testing.T, target string) *tcpproxy.Proxy {
	t.Helper()
	p, err := tcpproxy.Listen(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func hostOf(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// message is one message to subject.
func message(subject string) relay.Message {
	return relay.Message{
		Event: outbox.Event{ID: outbox.NewID(), AggregateType: "order", AggregateID: outbox.NewID().String(), Type: "OrderPaid", Payload: []byte(`{"a":1}`)},
		Topic: subject,
	}
}
