//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/wire"
)

// arrival is a message in the stream.
type arrival struct {
	id, key string
	n       int
	seq     uint64    // its place
	at      time.Time // when the broker stored it
}

// tape is what the stream holds. It does not outlive a restart of the broker.
type tape struct {
	all      []arrival
	seen     map[string]bool // ids
	consumer jetstream.Consumer
}

// read winds on to the stream's end.
func (tp *tape) read(t *testing.T, br *broker) {
	t.Helper()
	if tp.consumer == nil {
		var err error
		tp.consumer, err = br.stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{
			AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		tp.seen = map[string]bool{}
	}
	for last := br.messages(t); uint64(len(tp.all)) < last; {
		batch, err := tp.consumer.Fetch(int(min(last-uint64(len(tp.all)), 1000)), jetstream.FetchMaxWait(testwait.Limit))
		if err != nil {
			t.Fatal(err)
		}
		before := len(tp.all)
		for m := range batch.Messages() {
			tp.add(t, m)
		}
		if err := batch.Error(); err != nil || len(tp.all) == before {
			t.Fatalf("read message %d of %d in the stream: %v", len(tp.all)+1, last, err)
		}
	}
}

func (tp *tape) add(t *testing.T, m jetstream.Msg) {
	t.Helper()
	meta, err := m.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	var body struct{ N int }
	if err := json.Unmarshal(m.Data(), &body); err != nil {
		t.Fatalf("payload %q: %v", m.Data(), err)
	}
	a := arrival{
		id: m.Headers().Get(nats.MsgIdHdr), key: m.Headers().Get(wire.AggregateID), n: body.N,
		seq: meta.Sequence.Stream, at: meta.Timestamp,
	}
	tp.all = append(tp.all, a)
	tp.seen[a.id] = true
}

// drain waits until as many different events have arrived as the table holds.
func (s *site) drain(tp *tape) {
	s.t.Helper()
	want := s.number("SELECT count(*) FROM outbox_events")
	for tp.read(s.t, s.broker); len(tp.seen) < want; tp.read(s.t, s.broker) {
		testwait.UntilNil(s.t, "all events of the table arrive", func() error {
			if s.broker.messages(s.t) > uint64(len(tp.all)) {
				return nil
			}
			return fmt.Errorf("%d of %d have arrived, and no more come", len(tp.seen), want)
		})
	}
}

// incident is something sudden that has befallen the owner of the lane.
type incident struct {
	at      time.Time
	last    uint64          // message in the stream
	settled map[string]bool // ids of the events that were stored as delivered
}

// befall does something to the owner, whose epoch must not end within a few milliseconds, and notes
// what was settled then.
func (s *site) befall(what func()) incident {
	s.t.Helper()
	epoch := s.number("SELECT epoch FROM commitrelay.lanes")
	in := incident{at: time.Now(), settled: map[string]bool{}}
	what()
	rows, err := s.pool.Query(s.t.Context(), `SELECT id::text, (SELECT epoch FROM commitrelay.lanes)
		FROM commitrelay.events WHERE status = 'PUBLISHED'`)
	if err != nil {
		s.t.Fatal(err)
	}
	var id string
	var now int
	if _, err := pgx.ForEachRow(rows, []any{&id, &now}, func() error { in.settled[id] = true; return nil }); err != nil {
		s.t.Fatal(err)
	}
	if len(in.settled) == 0 {
		s.t.Fatal("nothing is stored as delivered")
	}
	if now != epoch {
		s.t.Fatalf("the lane had a new owner (epoch %d after %d) before what was settled had been read", now, epoch)
	}
	in.last = s.broker.messages(s.t)
	return in
}

// verify compares the table with the stream: nothing lost, nothing invented, first arrivals of each key
// in order. It returns the arrivals of events that had arrived before.
func (s *site) verify(tp *tape) (repeated []arrival) {
	s.t.Helper()
	tp.read(s.t, s.broker)
	rows, err := s.pool.Query(s.t.Context(), "SELECT id::text, aggregate_id, (payload ->> 'n')::int FROM outbox_events")
	if err != nil {
		s.t.Fatal(err)
	}
	committed := map[string]arrival{}
	var a arrival
	if _, err := pgx.ForEachRow(rows, []any{&a.id, &a.key, &a.n}, func() error { committed[a.id] = a; return nil }); err != nil {
		s.t.Fatal(err)
	}
	var lost, invented, inversions []arrival
	arrived := map[string]bool{}
	newest := map[string]int{}
	for _, a := range tp.all {
		want, ok := committed[a.id]
		switch {
		case !ok || want.key != a.key || want.n != a.n:
			invented = append(invented, a)
			continue
		case arrived[a.id]:
			repeated = append(repeated, a)
			continue
		case a.n != newest[a.key]:
			inversions = append(inversions, a)
		}
		arrived[a.id] = true
		newest[a.key] = max(newest[a.key], a.n+1)
	}
	for id, a := range committed {
		if !arrived[id] {
			lost = append(lost, a)
		}
	}
	s.t.Logf("%d committed, %d arrived, %d repeated", len(committed), len(arrived), len(repeated))
	for what, list := range map[string][]arrival{"lost": lost, "invented": invented, "out of order": inversions} {
		if len(list) > 0 {
			s.t.Errorf("%d events %s, among them %+v", len(list), what, list[:min(5, len(list))])
		}
	}
	return repeated
}

// verifyRepeated makes sure that after each incident only what had not been settled was repeated. An
// event that the relay in trouble had not sent may be repeated, too, if that relay lives on: no more
// of them than it had in its hands, a batch.
func (s *site) verifyRepeated(tp *tape, repeated []arrival, batch int, incidents ...incident) {
	s.t.Helper()
	first := map[string]arrival{}
	for _, a := range tp.all {
		if _, ok := first[a.id]; !ok {
			first[a.id] = a
		}
	}
	for i, in := range incidents {
		end := uint64(1<<64 - 1)
		if i+1 < len(incidents) {
			end = incidents[i+1].last
		}
		var again, late int
		var since time.Duration // the position was stored, if the oldest came just after that
		for _, a := range repeated {
			switch {
			case a.seq <= in.last || a.seq > end:
				continue
			case in.settled[a.id]:
				s.t.Errorf("event %s of key %s was stored as delivered, and sent again", a.id, a.key)
			case first[a.id].seq > in.last:
				late++
			default:
				since = max(since, in.at.Sub(first[a.id].at))
			}
			again++
		}
		s.t.Logf("incident %d: %d events sent again, the oldest from %v before it, %d from after it", i+1, again, since, late)
		if late > batch {
			s.t.Errorf("%d events that came after the incident were sent twice, more than a batch of %d", late, batch)
		}
	}
	if i := slices.IndexFunc(repeated, func(a arrival) bool { return a.seq <= incidents[0].last }); i >= 0 {
		s.t.Errorf("event %s was sent again before anything had happened", repeated[i].id)
	}
}
