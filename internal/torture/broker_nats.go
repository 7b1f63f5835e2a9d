//go:build unix

package torture

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/sink/natssink"
)

func openNATSSink(f relayFlags, j *journal) (closingSink, string, error) {
	s, err := natssink.New(natssink.Config{URL: f.url, Stream: f.name, Name: f.id, Repeated: j.repeated})
	return s, f.name + ".{event_type}", err
}

// natsBroker is a NATS server in a process of its own, with one stream.
type natsBroker struct {
	busy sync.Mutex // one restart at a time

	program, dir, name string

	addr     string
	server   *process
	conn     *nats.Conn
	stream   jetstream.Stream
	js       jetstream.JetStream
	consumer jetstream.Consumer
}

// NATSMain is the role of a NATS server. It runs until SIGTERM and returns its exit code.
func NATSMain(args []string, stderr io.Writer) int {
	set := flag.NewFlagSet("nats", flag.ContinueOnError)
	set.SetOutput(stderr)
	dir := set.String("dir", "", "folder for its files")
	port := set.Int("port", 0, "port to listen on")
	if err := set.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	s, err := server.NewServer(&server.Options{
		ServerName: "torture", Host: "127.0.0.1", Port: *port, JetStream: true, StoreDir: *dir, NoLog: true, NoSigs: true,
	})
	if err != nil {
		fmt.Fprintln(stderr, "nats:", err)
		return 1
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		fmt.Fprintln(stderr, "nats: not ready")
		s.Shutdown()
		return 1
	}
	<-ctx.Done()
	s.Shutdown()
	s.WaitForShutdown()
	return 0
}

func startNATS(ctx context.Context, program, dir, name string) (*natsBroker, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	b := &natsBroker{program: program, dir: dir, name: name, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.Close(ctx))
	}
	b.conn, err = nats.Connect(b.URL(b.addr), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err == nil {
		b.js, err = jetstream.New(b.conn)
	}
	if err == nil {
		// The smallest duplicate window there is: JetStream must not hide what is sent twice.
		b.stream, err = b.js.CreateStream(ctx, b.config(""))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare NATS: %w", err), b.Close(ctx))
	}
	return b, nil
}

// config is the stream's, without the subject of one event type.
func (b *natsBroker) config(without string) jetstream.StreamConfig {
	cfg := jetstream.StreamConfig{Name: b.name, Storage: jetstream.FileStorage, Duplicates: 100 * time.Millisecond}
	for i := range topics {
		if topicName(i) != without {
			cfg.Subjects = append(cfg.Subjects, b.name+"."+topicName(i))
		}
	}
	return cfg
}

// start starts the server and waits until it listens.
func (b *natsBroker) start(ctx context.Context) error {
	_, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		return err
	}
	if b.server, err = launch(filepath.Join(b.dir, "nats.log"), b.program, "nats", "-dir", filepath.Join(b.dir, "nats"), "-port", port); err != nil {
		return err
	}
	return b.ready(ctx)
}

func (b *natsBroker) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for b.server.running() {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", b.addr)
		if err == nil {
			return conn.Close()
		}
		if !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("wait for NATS: %w", err)
		}
	}
	return errors.New("the NATS server has ended by itself")
}

func (b *natsBroker) Addr() string { return b.addr }

func (b *natsBroker) URL(proxy string) string { return "nats://" + proxy }

func (b *natsBroker) Restart(ctx context.Context, down time.Duration, hard bool) error {
	b.busy.Lock()
	defer b.busy.Unlock()
	if hard {
		b.server.kill()
	} else if err := b.stop(); err != nil {
		return err
	}
	pause(ctx, down)
	ctx = context.WithoutCancel(ctx)
	if err := b.start(ctx); err != nil {
		return err
	}
	// It listens before its stream is back.
	for end := time.Now().Add(30 * time.Second); ; {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		_, err := b.stream.Info(attempt)
		cancel()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("wait for the stream: %w", err)
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// stop stops the server in good order.
func (b *natsBroker) stop() error {
	if err := b.server.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop NATS: %w", err)
	}
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-b.server.exited:
	case <-timer.C:
		b.server.kill()
	}
	return nil
}

func (b *natsBroker) RefuseTopic(ctx context.Context, name string, refuse bool) error {
	if !refuse {
		name = ""
	}
	// The server may be on its way back.
	for end := time.Now().Add(30 * time.Second); ; {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := b.js.UpdateStream(attempt, b.config(name))
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("change the stream: %w", err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

func (b *natsBroker) Read(ctx context.Context) ([]Arrival, error) {
	if b.consumer == nil {
		c, err := b.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Hour})
		if err != nil {
			return nil, fmt.Errorf("read the stream: %w", err)
		}
		b.consumer = c
	}
	var arrivals []Arrival
	for {
		batch, err := b.consumer.FetchNoWait(1000)
		if err != nil {
			return nil, fmt.Errorf("read the stream: %w", err)
		}
		n := 0
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return nil, fmt.Errorf("read the stream: %w", err)
			}
			a := arrival(m.Headers().Get, m.Data())
			a.At, a.Place = meta.Timestamp, fmt.Sprintf("stream sequence %d", meta.Sequence.Stream)
			arrivals = append(arrivals, a)
			n++
		}
		if err := batch.Error(); err != nil {
			return nil, fmt.Errorf("read the stream: %w", err)
		}
		if n == 0 {
			return arrivals, nil
		}
	}
}

func (b *natsBroker) Close(context.Context) error {
	if b.conn != nil {
		b.conn.Close()
	}
	if b.server != nil {
		b.server.kill()
	}
	return nil
}

// freePort is a port that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
