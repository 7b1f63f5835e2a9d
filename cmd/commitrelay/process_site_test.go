//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
)

// site is what relays work between: a database with an outbox, and a broker with a stream.
type site struct {
	built
	t      *testing.T
	url    string // of the database
	pool   *pgxpool.Pool
	broker *broker
	relays int
}

func newSite(t *testing.T, b built, databaseURL string) *site {
	t.Helper()
	s := &site{built: b, t: t, url: databaseURL, pool: pgtest.Connect(t, databaseURL), broker: startBroker(t, b)}
	if err := migrate.Up(t.Context(), s.pool, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// settings are what the tests configure differently. The zero value of a field means its default.
type settings struct {
	nats     string        // the broker's address, if not the broker's own
	topic    string        // events.all
	lease    time.Duration // 2s
	shutdown time.Duration // 10s
	ack      time.Duration // the time that the broker has for an acknowledgement: 5s
	batch    int           // 200
	lanes    int           // 16
}

// run starts a relay.
func (s *site) run(c settings) *process {
	s.t.Helper()
	s.relays++
	name := fmt.Sprintf("relay %d", s.relays)
	return start(s.t, name, nil, s.commitrelay, "run", "--config", s.config(c))
}

func (s *site) config(c settings) string {
	s.t.Helper()
	text := fmt.Sprintf(`
database: {url: %q}
sinks:
  bus: {type: nats, url: "nats://%s", stream: EVENTS, ack_timeout: %v}
subscriptions:
  - {name: all, sink: bus, topic: %q, lanes: %d}
http: 127.0.0.1:0
lease: %v
shutdown_timeout: %v
batch: {events: %d}
log: {format: json}
`, s.url, cmp.Or(c.nats, s.broker.address), cmp.Or(c.ack, 5*time.Second), cmp.Or(c.topic, "events.all"), cmp.Or(c.lanes, 16),
		cmp.Or(c.lease, 2*time.Second), cmp.Or(c.shutdown, 10*time.Second), cmp.Or(c.batch, 200))
	file := filepath.Join(s.t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// number is the value of a query.
func (s *site) number(sql string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), sql).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// broker is a NATS server that can be stopped and started again at its address.
type broker struct {
	program, address, dir string
	process               *process
	nc                    *nats.Conn
	stream                jetstream.Stream
}

// startBroker starts a server with a stream that recognises repetitions for as short a time as it
// can, a tenth of a second: it hides none that matters.
func startBroker(t *testing.T, b built) *broker {
	t.Helper()
	br := &broker{program: b.nats, address: freeAddress(t), dir: t.TempDir()}
	br.start(t)
	closed := make(chan struct{})
	var err error
	testwait.UntilNil(t, "connect to the broker", func() error {
		br.process.running(t)
		br.nc, err = nats.Connect("nats://"+br.address, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
			nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
		return err
	})
	t.Cleanup(func() { br.nc.Close(); <-closed })
	js, err := jetstream.New(br.nc)
	if err != nil {
		t.Fatal(err)
	}
	br.stream, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "EVENTS", Subjects: []string{"events.>"}, Storage: jetstream.FileStorage, Duplicates: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	return br
}

func (br *broker) start(t *testing.T) {
	t.Helper()
	host, port, err := net.SplitHostPort(br.address)
	if err != nil {
		t.Fatal(err)
	}
	br.process = start(t, "the broker", nil, br.program, "-a", host, "-p", port, "-js", "-sd", br.dir)
}

func (br *broker) stop(t *testing.T) {
	t.Helper()
	br.process.signal(t, syscall.SIGTERM)
	br.process.wait(t)
}

// state is that of the stream.
func (br *broker) state(t *testing.T) (jetstream.StreamState, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	info, err := br.stream.Info(ctx)
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("ask for the stream's state: %w", err)
	}
	return info.State, nil
}

func (br *broker) messages(t *testing.T) uint64 {
	t.Helper()
	var state jetstream.StreamState
	testwait.UntilNil(t, "the broker tells the stream's state", func() (err error) {
		state, err = br.state(t)
		return err
	})
	return state.Msgs
}

// awaitMessages waits until the stream holds n messages, as long as it grows.
func (br *broker) awaitMessages(t *testing.T, n uint64) {
	t.Helper()
	for have := br.messages(t); have < n; {
		testwait.UntilNil(t, fmt.Sprintf("the stream grows on to %d messages", n), func() error {
			before := have
			if have = br.messages(t); have == before {
				return fmt.Errorf("it stays at %d", have)
			}
			return nil
		})
	}
}
