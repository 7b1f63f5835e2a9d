//go:build unix

package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
)

// manyVariable is how many events make a large backlog: `make million` tries it in full.
const manyVariable = "COMMITRELAY_TEST_EVENTS"

func manyEvents(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(manyVariable), "200000"), 10, 32)
	if err != nil || n < 100_000 {
		t.Fatalf("%s: want a number from 100000 up: %v", manyVariable, os.Getenv(manyVariable))
	}
	return n
}

// Three relays drain a large backlog. While others join and leave, no event arrives twice. One that is killed
// makes its successors repeat what it had published since it stored its positions, and nothing else.
func (b built) backlog(t *testing.T) {
	events := manyEvents(t) / 500 * 500
	s := newSite(t, b, pgtest.URL(t))
	// Several events a key, each with a subject of its own, which is its number.
	s.exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', (g %% 10000)::text, (500 * i + g)::text, '"x"' FROM generate_series(1, 500) AS g; COMMIT; END LOOP; END $$`, events/500))
	cfg := settings{topic: "events.{event_type}", batch: 100, lease: time.Hour, shutdown: time.Minute}

	// The broker is slow to answer, so that all of this happens in the midst of it.
	proxy := s.proxied()
	proxy.Delay(50 * time.Millisecond)
	cfg.nats = proxy.Addr()
	var relays []*process
	for range 3 {
		relays = append(relays, s.run(cfg))
	}
	goal := uint64(0)
	for range 8 {
		goal += events / 16
		s.broker.awaitMessages(t, goal)
		if i := rand.IntN(len(relays)); len(relays) > 2 {
			relays[i].stop(t)
			relays = slices.Delete(relays, i, i+1)
		} else {
			relays = append(relays, s.run(cfg))
		}
	}
	for _, r := range relays {
		r.awaitState(t, http.StatusOK, "delivering")
	}
	var arrived tally
	arrived.count(t, s.broker)
	if twice := arrived.repeated(); len(twice) > 0 {
		t.Errorf("%d events arrived more than once while relays joined and left, the first is %s", len(twice), twice[0])
	}

	killed := relays[0]
	testwait.Until(t, "it has lanes", func() bool { return s.number(lanesOf(killed)) > 0 })
	killed.kill(t)
	unsettled, lanes := s.unsettledOf(killed)
	if len(unsettled) == 0 {
		t.Error("the relay that was killed had nothing left to do, which shows nothing")
	}
	arrived.count(t, s.broker)
	published := maps.Clone(arrived.counts)
	s.leaseOver(killed)
	// What is left may go fast.
	proxy.Delay(0)
	testwait.Until(t, "all to arrive", func() bool { // awaitMessages counts what comes twice, too
		state, err := s.broker.state(t)
		return err == nil && state.NumSubjects == events
	})
	for _, r := range relays[1:] {
		r.awaitCaughtUp(t, s)
		r.stop(t)
	}

	arrived.count(t, s.broker)
	if n := uint64(len(arrived.counts)); n != events {
		t.Errorf("%d different events arrived, want %d", n, events)
	}
	again, atRisk := arrived.repeated(), 0
	for subject := range unsettled {
		if published[subject] > 0 {
			atRisk++
		}
	}
	for _, subject := range again {
		if arrived.counts[subject] != 2 || !unsettled[subject] || published[subject] == 0 {
			t.Errorf("event %s arrived %d times; when its relay was killed it was published: %v, and not stored as that: %v",
				subject, arrived.counts[subject], published[subject] > 0, unsettled[subject])
		}
	}
	t.Logf("kill -9 with %d lanes: %d events had been published since the last store, %d of them arrived twice", lanes, atRisk, len(again))
}

// lanesOf counts the lanes that the database says a process has.
func lanesOf(p *process) string {
	return fmt.Sprintf(`SELECT count(*) FROM commitrelay.lanes AS l JOIN commitrelay.relays AS r ON r.id = l.owner WHERE r.pid = %d`, p.cmd.Process.Pid)
}

// leaseOver lets the lease of a relay that is dead run out.
func (s *site) leaseOver(p *process) {
	s.t.Helper()
	for _, sql := range []string{
		"UPDATE commitrelay.lanes SET lease_until = now() - interval '1 s' FROM commitrelay.relays AS r WHERE r.id = owner AND r.pid = $1",
		"UPDATE commitrelay.relays SET heartbeat_at = now() - interval '2 h' WHERE pid = $1",
	} {
		if _, err := s.pool.Exec(s.t.Context(), sql, p.cmd.Process.Pid); err != nil {
			s.t.Fatal(err)
		}
	}
}

// unsettledOf are the subjects of the events that were not stored as published when a relay died, of its lanes; and how many
// lanes it had.
func (s *site) unsettledOf(p *process) (unsettled map[string]bool, lanes int) {
	s.t.Helper()
	ctx := s.t.Context()
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}) // one look for both
	if err != nil {
		s.t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if err := tx.QueryRow(ctx, lanesOf(p)).Scan(&lanes); err != nil {
		s.t.Fatal(err)
	}
	rows, err := tx.Query(ctx, `SELECT 'events.' || e.event_type
		FROM commitrelay.events AS e
		JOIN commitrelay.lanes AS l ON l.subscription = e.subscription AND l.lane = e.lane
		JOIN commitrelay.relays AS r ON r.id = l.owner
		WHERE e.status <> 'PUBLISHED' AND r.pid = $1`, p.cmd.Process.Pid)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	unsettled = map[string]bool{}
	for _, subject := range list {
		unsettled[subject] = true
	}
	return unsettled, lanes
}

// tally counts what is in a stream by its subject.
type tally struct {
	read     uint64
	counts   map[string]int
	consumer jetstream.Consumer
}

// count goes on to the stream's end.
func (c *tally) count(t *testing.T, br *broker) {
	t.Helper()
	if c.consumer == nil {
		var err error
		c.consumer, err = br.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, HeadersOnly: true, InactiveThreshold: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		c.counts = map[string]int{}
	}
	for last := br.messages(t); c.read < last; {
		batch, err := c.consumer.Fetch(int(min(last-c.read, 10_000)), jetstream.FetchMaxWait(testwait.Limit))
		if err != nil {
			t.Fatal(err)
		}
		before := c.read
		for m := range batch.Messages() {
			c.read++
			c.counts[m.Subject()]++
		}
		if err := batch.Error(); err != nil || c.read == before {
			t.Fatalf("read message %d of %d in the stream: %v", c.read+1, last, err)
		}
	}
}

// repeated are the subjects that have several messages.
func (c *tally) repeated() (subjects []string) {
	for subject, n := range c.counts {
		if n > 1 {
			subjects = append(subjects, subject)
		}
	}
	return subjects
}
