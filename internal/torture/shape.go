package torture

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// shape plays a transaction between BEGIN and its end.
type shape func(context.Context, *txn) error

// weighted is a shape, and how often it comes.
type weighted struct {
	weight int
	play   shape
}

// Most writers are quick, and some are patient: they keep transactions open for long. Any transaction
// may be rolled back in the end.
var (
	quick   = []weighted{{8, single}, {4, several}, {4, manyKeys}, {2, savepoint}, {3, lateCommit}, {2, lateNumber}}
	patient = []weighted{{2, single}, {3, longOpen}, {1, longIdle}}
)

func (w *writer) shape() shape {
	shapes := quick
	if w.number%4 == 3 {
		shapes = patient
	}
	total := 0
	for _, s := range shapes {
		total += s.weight
	}
	n := w.rng.IntN(total)
	for _, s := range shapes {
		if n -= s.weight; n < 0 {
			return s.play
		}
	}
	panic("unreachable: n is less than the sum")
}

// single is what most applications do.
func single(ctx context.Context, t *txn) error {
	return t.write(ctx, t.shared(1)[0], 1)
}

// several events of one aggregate, by one statement or more.
func several(ctx context.Context, t *txn) error {
	k := t.shared(1)[0]
	for range 1 + t.rng.IntN(2) {
		if err := t.write(ctx, k, 1+t.rng.IntN(4)); err != nil {
			return err
		}
	}
	return nil
}

// manyKeys are events of several aggregates, in turn.
func manyKeys(ctx context.Context, t *txn) error {
	keys := t.shared(2 + t.rng.IntN(3))
	for range 1 + t.rng.IntN(2) {
		for _, k := range keys {
			if err := t.write(ctx, k, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// savepoint takes some of its events back, which leaves holes in the sequence.
func savepoint(ctx context.Context, t *txn) error {
	k := t.shared(1)[0]
	if err := t.write(ctx, k, 1); err != nil {
		return err
	}
	outer, kept := t.tx, len(t.events)
	inner, err := outer.Begin(ctx)
	if err != nil {
		return err
	}
	t.tx = inner
	err = t.write(ctx, k, 1+t.rng.IntN(3))
	t.tx = outer
	if err != nil {
		return err
	}
	if err := inner.Rollback(ctx); err != nil {
		return err
	}
	t.undone = append(t.undone, t.events[kept:]...)
	t.events = t.events[:kept]
	return t.write(ctx, k, 1)
}

// lateCommit has its numbers long before it commits: others overtake it.
func lateCommit(ctx context.Context, t *txn) error {
	if err := t.write(ctx, t.shared(1)[0], 1+t.rng.IntN(2)); err != nil {
		return err
	}
	t.hold(5*time.Millisecond, 100*time.Millisecond)
	return nil
}

// lateNumber has its id long before it has its numbers: transactions with newer ids commit events of
// the same aggregate before it.
func lateNumber(ctx context.Context, t *txn) error {
	if _, err := t.tx.Exec(ctx, query("take_id"), pgx.QueryExecModeExec); err != nil {
		return err
	}
	t.hold(5*time.Millisecond, 100*time.Millisecond)
	return t.write(ctx, t.shared(1)[0], 1)
}

// longOpen writes at the begin and at the end, and may outlast a lease. Its aggregate is the writer's
// own, so that nobody waits for it.
func longOpen(ctx context.Context, t *txn) error {
	k := ownKey(t.number)
	if err := t.write(ctx, k, 1+t.rng.IntN(3)); err != nil {
		return err
	}
	if t.rng.IntN(4) == 0 {
		t.hold(t.lease, 2*t.lease)
	} else {
		t.hold(200*time.Millisecond, 2*time.Second)
	}
	return t.write(ctx, k, 1)
}

// longIdle has an id, and never writes an event.
func longIdle(ctx context.Context, t *txn) error {
	if _, err := t.tx.Exec(ctx, query("take_id"), pgx.QueryExecModeExec); err != nil {
		return err
	}
	t.hold(100*time.Millisecond, 2*time.Second)
	return nil
}
