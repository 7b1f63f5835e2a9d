package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
)

// Writers keep the table when the counters have broken. They are named, others are not held up by the relay's waiting, and
// when they have ended delivery goes on by itself.
func TestCatchUpWaitsForWriters(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(map[string]string{"max_prepared_transactions": "4"}))
	pool := migrated(t, c)
	sink, book := &capture{}, &ledger{}
	book.write(t, pool, "a", 3)
	cfg, log := logged(t, sink)
	_, stop := start(t, pgtest.Connect(t, c.URL()), cfg)
	book.wait(t, sink)
	settled(t, pool)

	stop()
	mustExec(t, pool, "ALTER SEQUENCE outbox_events_seq RESTART WITH 1000")
	prepared := begin(t, pool)
	preparedRows := insertMany(t, prepared, "p", 2)
	if _, err := prepared.Exec(t.Context(), "PREPARE TRANSACTION 'forgotten'"); err != nil {
		t.Fatal(err)
	}
	writer := begin(t, pool)
	writerRows := insertMany(t, writer, "w", 2)
	pid := writer.Conn().PgConn().PID()
	r, stop := start(t, pgtest.Connect(t, c.URL()), cfg)
	log.waitFor("waiting for writers", fmt.Sprintf("session %d ", pid), "forgotten")

	// Others go on, with little patience.
	others := pgtest.Connect(t, c.URL()+"&options=-c%20lock_timeout%3D5s")
	for range 100 {
		book.write(t, others, "a", 1)
	}
	if n := len(sink.messages()); n != 3 {
		t.Errorf("%d events have arrived, want the 3 from before", n)
	}
	if h := r.Health(); h.Ready {
		t.Errorf("health is good while the relay waits for writers: %+v", h)
	}

	// It can be stopped while it waits.
	stop()
	_, _ = start(t, pgtest.Connect(t, c.URL()), cfg)
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	book.add(writerRows...)
	testwait.Until(t, "only the prepared transaction to be waited for", func() bool {
		said := log.find("waiting for writers", "forgotten")
		return len(said) > 0 && !strings.Contains(said[len(said)-1], fmt.Sprintf("session %d ", pid))
	})
	mustExec(t, pool, "COMMIT PREPARED 'forgotten'")
	book.add(preparedRows...)
	book.wait(t, sink)
	settled(t, pool)
	book.checkOnce(t, sink, pool)
	if n := len(log.find("PostgreSQL does not answer")); n > 0 {
		t.Errorf("the log says %d times that PostgreSQL does not answer: it does", n)
	}
}

// Three subscriptions catch up at once with as few connections as a relay may have.
func TestCatchUpWithFewConnections(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	small := pool.Config()
	small.MaxConns = 2
	few, err := pgxpool.NewWithConfig(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(few.Close)
	var sinks []*capture
	book := &ledger{}
	cfg, log := logged(t, &capture{})
	sub := cfg.Subscriptions[0]
	cfg.Subscriptions = nil
	for i := range 3 {
		sink := &capture{}
		sub.Name, sub.Sink = fmt.Sprint("s", i), sink
		cfg.Subscriptions = append(cfg.Subscriptions, sub)
		sinks = append(sinks, sink)
	}
	cfg.Lease = 20 * time.Second
	start(t, few, cfg)
	book.write(t, pool, "a", 5)
	for range 3 {
		for _, sink := range sinks {
			book.wait(t, sink)
		}
		settled(t, pool)
		mustExec(t, pool, fmt.Sprintf("ALTER SEQUENCE outbox_events_seq RESTART WITH %d", 1000*len(book.rows())))
		book.write(t, pool, "a", 5)
	}
	for _, sink := range sinks {
		book.wait(t, sink)
		book.checkOnce(t, sink, pool)
	}
	if lost := append(log.find("lane lost"), log.find("does not answer")...); len(lost) > 0 {
		t.Errorf("the relay got in its own way: %q", lost)
	}
}
