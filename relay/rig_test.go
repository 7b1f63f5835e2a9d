package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// capture is a sink that remembers what arrived, and answers as it is told.
type capture struct {
	mu     sync.Mutex
	got    []relay.Message
	calls  int
	answer func(batch []relay.Message) error // nil: takes everything
}

func (c *capture) Publish(_ context.Context, batch []relay.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	var err error
	if c.answer != nil {
		err = c.answer(batch)
	}
	be, _ := errors.AsType[*relay.BatchError](err)
	for i, m := range batch {
		if err == nil || be != nil && be.Errs[i] == nil {
			m.Event.Payload = append([]byte(nil), m.Event.Payload...)
			c.got = append(c.got, m)
		}
	}
	return err
}

func (c *capture) setAnswer(fn func(batch []relay.Message) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = fn
}

func (c *capture) callCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func (c *capture) messages() []relay.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]relay.Message(nil), c.got...)
}

func (c *capture) payloads() []string {
	var list []string
	for _, m := range c.messages() {
		list = append(list, string(m.Event.Payload))
	}
	return list
}

func (c *capture) waitFor(t testing.TB, n int) []relay.Message {
	t.Helper()
	testwait.UntilNil(t, fmt.Sprintf("%d messages", n), func() error {
		if got := len(c.messages()); got < n {
			return fmt.Errorf("have %d", got)
		}
		return nil
	})
	return c.messages()
}

// outbox is a new database with the tables in it.
func newOutbox(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	if err := migrate.Up(t.Context(), pool, migrate.Options{}); err != nil {
		t.Fatalf("migrate up: %v", err)
	}
	return pool
}

func mustExec(t testing.TB, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// insert writes one event in a transaction of its own.
func insert(t testing.TB, pool *pgxpool.Pool, key, payload string) {
	t.Helper()
	mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('user', $1, 'UserCreated', $2)`, key, payload)
}

func config(sink relay.Sink) relay.Config {
	return relay.Config{
		Lease:         2 * time.Second,
		Subscriptions: []relay.Subscription{{Name: "all", Sink: sink, Lanes: 1, Backoff: 50 * time.Millisecond}},
	}
}

// start runs a relay until the test ends or the returned function is called.
func start(t testing.TB, pool *pgxpool.Pool, cfg relay.Config) (r *relay.Relay, stop func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	r, err := relay.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	stop = func() {
		t.Helper()
		once.Do(func() {
			cancel()
			if err := testwait.Recv(t, "Run to end", done); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return r, stop
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b[:len(b)-1])
	return len(b), nil
}
