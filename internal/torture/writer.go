package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
)

// writer is a connection that writes events, in transactions of many shapes, and notes what became of
// each.
type writer struct {
	number  int
	db      *database
	history *history
	rng     *rand.Rand
	every   time.Duration // mean time from one transaction to the next
	lease   time.Duration
	conn    *pgx.Conn
}

func newWriter(n int, db *database, h *history, o Options) *writer {
	return &writer{
		number: n, db: db, history: h, rng: rand.New(rand.NewPCG(uint64(o.Seed), uint64(1000+n))),
		every: time.Duration(o.Writers) * time.Second / time.Duration(o.Rate), lease: o.Lease,
	}
}

// statementTime bounds a statement: faults of the database are short.
const statementTime = 20 * time.Second

// run writes until ctx ends. A transaction that has begun is brought to its end.
func (w *writer) run(ctx context.Context) {
	defer w.disconnect()
	next := time.Now()
	for {
		next = next.Add(time.Duration(w.rng.ExpFloat64() * float64(w.every)))
		if late := time.Since(next); late > time.Second {
			next = next.Add(late) // the database was away: what it missed is not made up for
		}
		if !pause(ctx, time.Until(next)) {
			return
		}
		if w.conn == nil && !w.reconnect(ctx) {
			continue
		}
		if err := w.transaction(ctx); err != nil {
			w.disconnect()
		}
	}
}

func (w *writer) reconnect(ctx context.Context) bool {
	conn, err := w.db.connect(ctx)
	if err != nil {
		pause(ctx, 100*time.Millisecond)
		return false
	}
	w.conn = conn
	return true
}

func (w *writer) disconnect() {
	if w.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = w.conn.Close(ctx) // it may be broken
	w.conn = nil
}

// transaction makes one transaction of a random shape. The error says that the connection is not to be
// used any more.
func (w *writer) transaction(ctx context.Context) error {
	t := &txn{writer: w, soft: ctx, library: w.rng.IntN(2) == 0}
	hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTime+3*w.lease)
	defer cancel()
	tx, err := w.conn.BeginTx(hard, readWrite)
	if err != nil {
		return err
	}
	t.tx = tx
	shape := w.shape()
	rollback := w.rng.IntN(8) == 0
	if err = shape(hard, t); err != nil || rollback {
		// Nobody has asked it to commit, so it will not.
		w.history.add(append(t.events, t.undone...), undone)
		if rollbackErr := tx.Rollback(hard); err == nil {
			err = rollbackErr
		}
		return err
	}
	w.history.add(t.undone, undone)
	err = tx.Commit(hard)
	now := time.Now()
	for i := range t.events {
		t.events[i].At = now
	}
	if err != nil {
		w.history.add(t.events, unknown)
		return err
	}
	w.history.add(t.events, committed)
	return nil
}

// shared are the aggregates that all writers write.
func (w *writer) shared(n int) []Key {
	all := w.db.keys
	for i, k := range all {
		if k == ownKey(0) {
			all = all[:i]
			break
		}
	}
	return pick(w.rng, all, n)
}

// pick chooses up to n different keys, in the order in which all writers lock them.
func pick(rng *rand.Rand, all []Key, n int) []Key {
	chosen := map[int]bool{}
	for len(chosen) < min(n, len(all)) {
		chosen[rng.IntN(len(all))] = true
	}
	var keys []Key
	for i, k := range all {
		if chosen[i] {
			keys = append(keys, k)
		}
	}
	return keys
}

// txn is a transaction and the events that it has written so far.
type txn struct {
	*writer
	soft    context.Context // the end of the load: what is held open ends early
	tx      pgx.Tx
	library bool // write with outbox.Writer, not with plain SQL
	events  []Event
	undone  []Event // behind a savepoint that was rolled back
}

// write writes n events of a key, whose aggregate it locks first.
func (t *txn) write(ctx context.Context, k Key, n int) error {
	var version int64
	if err := t.tx.QueryRow(ctx, query("raise"), pgx.QueryExecModeExec, k.Type, k.ID, n).Scan(&version); err != nil {
		return fmt.Errorf("lock aggregate: %w", err)
	}
	var batch []*outbox.Event
	for i := version - int64(n) + 1; i <= version; i++ {
		e := Event{Key: k, N: i, EventType: topicName(t.rng.IntN(topics))}
		payload, err := json.Marshal(body{N: i, Pad: strings.Repeat("x", t.padding())})
		if err != nil {
			return err
		}
		if t.library {
			e.ID = outbox.NewID()
			batch = append(batch, &outbox.Event{ID: e.ID, AggregateType: k.Type, AggregateID: k.ID, Type: e.EventType, Payload: payload})
		} else if err := t.tx.QueryRow(ctx, query("insert_event"), pgx.QueryExecModeExec, k.Type, k.ID, e.EventType, string(payload)).Scan(&e.ID); err != nil {
			return fmt.Errorf("insert event: %w", err)
		}
		t.events = append(t.events, e)
	}
	return new(outbox.Writer).Write(ctx, t.tx, batch...)
}

// body is an event's payload.
type body struct {
	N   int64  `json:"n"`
	Pad string `json:"pad,omitempty"`
}

// padding makes most events small, and a few large.
func (t *txn) padding() int {
	if t.rng.IntN(20) == 0 {
		return t.rng.IntN(4000)
	}
	return t.rng.IntN(100)
}

// hold keeps the transaction open for a while.
func (t *txn) hold(low, high time.Duration) {
	pause(t.soft, low+time.Duration(t.rng.Int64N(int64(high-low))))
}
