package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/sink/natssink"
)

// natsBroker is a stream in NATS JetStream, with subjects of its own.
type natsBroker struct {
	url    string
	name   string // of the stream, and the first word of its subjects
	conn   *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
	raw    *nats.Subscription // sees what is published, before JetStream leaves out copies
	stop   func() error       // ends the server; nil if it is not ours
}

// startNATS starts a NATS server in this process. It listens on a free port of the loopback
// interface, keeps its files in a temporary directory, and wants a password that nobody else knows.
func startNATS(ctx context.Context, _, name string) (broker, error) {
	dir, err := os.MkdirTemp("", "commitrelay-demo-nats-")
	if err != nil {
		return nil, fmt.Errorf("start NATS: %w", err)
	}
	remove := func() error { return os.RemoveAll(dir) }
	password := rand.Text()
	s, err := server.NewServer(&server.Options{
		ServerName: name,
		Host:       "127.0.0.1",
		Port:       server.RANDOM_PORT,
		Username:   "demo",
		Password:   password,
		JetStream:  true,
		StoreDir:   dir,
		NoLog:      true,
		NoSigs:     true,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start NATS: %w", err), remove())
	}
	stop := func() error {
		s.Shutdown()
		s.WaitForShutdown()
		return remove()
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return nil, errors.Join(errors.New("start NATS: not ready within 10 s"), stop())
	}
	u := url.URL{Scheme: "nats", User: url.UserPassword("demo", password), Host: s.Addr().String()}
	b, err := newNATS(ctx, u.String(), name)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	b.stop = stop
	return b, nil
}

func connectNATS(ctx context.Context, natsURL, name string) (broker, error) {
	b, err := newNATS(ctx, natsURL, name)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// newNATS makes a stream. Its duplicate window is the smallest there is, so that JetStream does
// not hide what a relay publishes twice.
func newNATS(ctx context.Context, natsURL, name string) (b *natsBroker, err error) {
	b = &natsBroker{url: natsURL, name: name}
	if _, err = b.Sink(); err != nil { // checks the URL
		return nil, err
	}
	b.conn, err = nats.Connect(natsURL, nats.Name("commitrelay demo"), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	defer func() {
		if err != nil {
			b.conn.Close()
		}
	}()
	if b.js, err = jetstream.New(b.conn); err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	if b.raw, err = b.conn.Subscribe(name+".>", func(*nats.Msg) {}); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if err = b.raw.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	b.stream, err = b.js.CreateStream(ctx, jetstream.StreamConfig{
		Name:       name,
		Subjects:   []string{name + ".>"},
		Storage:    jetstream.FileStorage,
		Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		return nil, fmt.Errorf("create stream %s: %w", name, err)
	}
	return b, nil
}

func (b *natsBroker) String() string {
	where := "as given"
	if b.stop != nil {
		where = "in this process"
	}
	return fmt.Sprintf("NATS %s, %s, stream %s", b.conn.ConnectedServerVersion(), where, b.name)
}

func (b *natsBroker) Sink() (closingSink, error) {
	return natssink.New(natssink.Config{URL: b.url, Stream: b.name, Name: "commitrelay demo relay"})
}

func (b *natsBroker) Topic() string { return b.name + ".{event_type}" }

func (b *natsBroker) Publish(ctx context.Context, eventType string, body []byte) error {
	_, err := b.js.Publish(ctx, b.name+"."+eventType, body)
	return err
}

func (b *natsBroker) Consume(ctx context.Context, receive func(eventType string, body []byte) bool) error {
	c, err := b.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return fmt.Errorf("consume from NATS: %w", err)
	}
	messages, err := c.Messages()
	if err != nil {
		return fmt.Errorf("consume from NATS: %w", err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("consume from NATS: %w", err)
		}
		if !receive(strings.TrimPrefix(m.Subject(), b.name+"."), m.Data()) {
			return nil
		}
	}
}

func (b *natsBroker) Suppressed(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	info, err := b.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", b.name, err)
	}
	// What was published before this flush has reached the subscription after it.
	if err := b.conn.FlushWithContext(ctx); err != nil {
		return 0, fmt.Errorf("flush NATS: %w", err)
	}
	handled, err := b.raw.Delivered()
	if err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	waiting, _, err := b.raw.Pending()
	if err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	return max(0, int(handled)+waiting-int(info.State.LastSeq)), nil
}

func (b *natsBroker) Close(ctx context.Context) error {
	err := b.js.DeleteStream(ctx, b.name)
	if err != nil {
		err = fmt.Errorf("remove the demo's stream: %w; it can be removed with: nats stream rm %s", err, b.name)
	}
	b.conn.Close()
	if b.stop != nil {
		err = errors.Join(err, b.stop())
	}
	return err
}
