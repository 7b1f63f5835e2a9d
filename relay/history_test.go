package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// In these tests a server is replaced by another that has its history up to a point. What is in its table is what has
// happened; what the relays had settled up to that point is what its own tables say.

// retained is the history that the database holds. (Each key has one writer here, so numbers tell the order of its commits.)
func retained(t testing.TB, pool *pgxpool.Pool) *ledger {
	t.Helper()
	return &ledger{committed: rowsOf(t, pool, `SELECT id, aggregate_id, seq, xid::text::bigint FROM outbox_events ORDER BY seq`)}
}

// unsettled are the events that the database does not say are settled.
func unsettled(t testing.TB, pool *pgxpool.Pool) []row {
	t.Helper()
	return rowsOf(t, pool, `SELECT v.id, v.aggregate_id, v.seq, e.xid::text::bigint
		FROM commitrelay.events AS v JOIN outbox_events AS e ON e.seq = v.seq AND e.id = v.id
		WHERE v.status <> 'PUBLISHED' ORDER BY v.seq`)
}

func rowsOf(t testing.TB, pool *pgxpool.Pool, sql string) []row {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (w row, err error) {
		return w, r.Scan((*[16]byte)(&w.id), &w.key, &w.seq, &w.xid)
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func idsOf(rows []row) map[outbox.ID]bool {
	ids := map[outbox.ID]bool{}
	for _, r := range rows {
		ids[r.id] = true
	}
	return ids
}

// arrived are the ids of the messages.
func arrived(sink *capture) map[outbox.ID]bool {
	ids := map[outbox.ID]bool{}
	for _, m := range sink.messages() {
		ids[m.Event.ID] = true
	}
	return ids
}

// without is what the sink has got, less those of its first n messages whose events were delivered and then un-committed: they
// are not in the history, and undone. Nothing else is left out.
func without(sink *capture, n int, undone []row, history *ledger) *capture {
	gone := idsOf(undone)
	for id := range idsOf(history.rows()) {
		delete(gone, id)
	}
	c := &capture{}
	for i, m := range sink.messages() {
		if i >= n || !gone[m.Event.ID] {
			c.got = append(c.got, m)
		}
	}
	return c
}

// checkRepeated says which events arrived twice that should not have, or did not though they should.
func checkRepeated(t testing.TB, got []row, want map[outbox.ID]bool) {
	t.Helper()
	for _, r := range got {
		if !want[r.id] {
			t.Errorf("arrived twice, though it was settled or remembered: %+v", r)
		}
	}
	again := idsOf(got)
	for id := range want {
		if !again[id] {
			t.Errorf("%s was not stored and not remembered, and arrived once: how does the relay know?", id)
		}
	}
}

// ownerOf is the relay that has the lane of a key.
func ownerOf(t testing.TB, pool *pgxpool.Pool, key string) string {
	t.Helper()
	return one[string](t, pool, `SELECT owner::text FROM commitrelay.lanes WHERE lane = `+laneOf, key)
}

// laneOf is the lane of a key ($1), of 16.
const laneOf = `(hashtextextended($1, hashtextextended('user', 0)) & 15)`

// keysOfBoth are a key of each of the two relays that share the lanes.
func keysOfBoth(t testing.TB, pool *pgxpool.Pool) (one, other string) {
	t.Helper()
	one = "k0"
	for n := 1; other == "" || ownerOf(t, pool, other) == ownerOf(t, pool, one); n++ {
		other = fmt.Sprint("k", n)
	}
	return one, other
}

// manyKeys are keys for all lanes.
func manyKeys() (keys []string) {
	for n := range 32 {
		keys = append(keys, fmt.Sprint("a", n))
	}
	return keys
}

// writeAll commits n events of each key, in a transaction per key.
func (l *ledger) writeAll(t testing.TB, db inserter, keys []string, n int) {
	t.Helper()
	for _, key := range keys {
		l.write(t, db, key, n)
	}
}

// settledBy waits until the relay has stored that its lanes stand at the sequence's value.
func settledBy(t testing.TB, pool *pgxpool.Pool, owner string) {
	t.Helper()
	testwait.Until(t, "everything of a relay's lanes to be settled and stored", func() bool {
		return one[bool](t, pool, `SELECT bool_and(l.to_window IS NULL AND w.h = (SELECT last_value FROM outbox_events_seq))
			FROM commitrelay.lanes AS l JOIN commitrelay.windows AS w ON w.id = l.from_window WHERE l.owner = $1::text::uuid`, owner)
	})
}

// highest are the greatest number and transaction id of rows.
func highest(rows []row) (seq int64, xid uint64) {
	for _, r := range rows {
		seq, xid = max(seq, r.seq), max(xid, r.xid)
	}
	return seq, xid
}

// refuseAfter has the sink refuse all but the first events of a key, as one that is gone: their lane stays in mid-window.
func (c *capture) refuseAfter(key string, taken int) {
	var got []outbox.ID
	c.setAnswer(func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		for i, m := range batch {
			switch {
			case m.Event.AggregateID != key || slices.Contains(got, m.Event.ID):
			case len(got) < taken:
				got = append(got, m.Event.ID)
			default:
				errs[i] = errors.New("the sink is gone")
			}
		}
		return &relay.BatchError{Errs: errs}
	})
}

// midWindow waits until the lane of a key stands in the middle of a window, at the row or beyond.
func midWindow(t testing.TB, pool *pgxpool.Pool, r row) {
	t.Helper()
	testwait.Until(t, "a window to be half done", func() bool {
		return one[bool](t, pool, `SELECT to_window IS NOT NULL AND p >= $2 FROM commitrelay.lanes WHERE lane = `+laneOf, r.key, r.seq)
	})
}

func (c *capture) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got)
}
