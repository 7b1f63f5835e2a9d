//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
)

// A large backlog waits, and as many events more come in one transaction, which commits while
// the relay runs. The process stays small, and may be stopped in the middle of either.
func (b built) memory(t *testing.T) {
	const limit = 64 // MiB
	events := manyEvents(t) / 100 * 100
	s := newSite(t, b, pgtest.URL(t))
	ctx := t.Context()

	began := time.Now()
	s.exec(fill(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP %%s; COMMIT; END LOOP; END $$`, events/100), "a' || i || '-", 100))
	t.Logf("a backlog of %d events written in %v", events, time.Since(began))
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	written := make(chan error, 1)
	go func() {
		_, err := tx.Exec(ctx, fill("%s", "b", events), pgx.QueryExecModeSimpleProtocol)
		written <- err
	}()

	// Each event has a subject of its own: the stream counts them, and with them the different events.
	cfg := settings{topic: "events.{aggregate_id}", batch: 1000, lease: 30 * time.Second}
	complete := func(what string) {
		t.Helper()
		state, err := s.broker.state(t)
		if err != nil {
			t.Fatal(err)
		}
		if state.Msgs != events || state.NumSubjects != events {
			t.Errorf("%s: %d messages of %d events arrived, want %d of as many", what, state.Msgs, state.NumSubjects, events)
		}
	}
	var peaks []float64
	halfway := func(p *process) *process {
		t.Helper()
		began := time.Now()
		s.broker.awaitMessages(t, 1)
		s.broker.awaitMessages(t, events*4/10)
		p.running(t)
		t.Logf("%.0f events/s", float64(events)*0.4/time.Since(began).Seconds())
		peaks = append(peaks, peakMemory(t, p))
		p.stop(t)
		return s.run(cfg)
	}

	p := halfway(s.run(cfg))
	s.broker.awaitMessages(t, events)
	p.awaitCaughtUp(t, s)
	complete("the backlog")
	if err := s.broker.stream.Purge(ctx); err != nil {
		t.Fatal(err)
	}

	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if n := s.broker.messages(t); n != 0 {
		t.Errorf("%d events arrived before their transaction was committed", n)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	p = halfway(p)
	s.broker.awaitMessages(t, events)
	p.awaitCaughtUp(t, s)
	peaks = append(peaks, peakMemory(t, p))
	p.stop(t)
	complete("the transaction")

	t.Logf("peak memory: %.1f MiB", peaks)
	for _, peak := range peaks {
		if peak > limit {
			t.Errorf("a relay used %.1f MiB, want less than %d", peak, limit)
		}
	}
}

// fill is a statement around one that inserts n events of 200 bytes, whose keys begin with prefix.
func fill(around, prefix string, n uint64) string {
	return fmt.Sprintf(around, fmt.Sprintf(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', '%s' || g, 'OrderPaid', '"%s"' FROM generate_series(1, %d) AS g`, prefix, strings.Repeat("x", 198), n))
}

// exec runs a script that commits in between, and does not wait for the disk.
func (s *site) exec(script string) {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(s.t.Context()))
	for _, sql := range []string{"SET synchronous_commit = off", script} {
		if _, err := conn.Exec(s.t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			s.t.Fatal(err)
		}
	}
}

// awaitCaughtUp waits until nothing that is committed waits for the relay.
func (p *process) awaitCaughtUp(t *testing.T, s *site) {
	t.Helper()
	testwait.Until(t, "no window is open", func() bool {
		p.running(t)
		return s.number("SELECT count(to_window) FROM commitrelay.lanes") == 0
	})
}
