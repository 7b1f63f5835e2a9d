package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/window"
)

// lockWait bounds how long writers queue behind our wait for the lock.
const lockWait = 50 * time.Millisecond

// HeldError says that the events table could not be locked, because writers are at work.
type HeldError struct{ Holders []string }

func (e *HeldError) Error() string {
	if len(e.Holders) == 0 {
		return "the events table is busy with writers"
	}
	return "writers keep the events table: " + strings.Join(e.Holders, "; ")
}

// SequenceError says that the sequence would hand out numbers below those of events: they would lie between old ones, where
// nobody looks. It needs a person.
type SequenceError struct {
	Events      ident.Table
	At, Highest int64
	Used        int64 // numbers up to it have been handed out, here or where the tables were copied from
}

func (e *SequenceError) Error() string {
	return fmt.Sprintf("the sequence of %s stands at %d, below an event's number %d: new events would be lost between old ones. "+
		"Run: SELECT setval(pg_get_serial_sequence('%s', 'seq'), %d)",
		e.Events, e.At, e.Highest, strings.ReplaceAll(e.Events.String(), "'", "''"), max(e.Highest, e.Used))
}

// QuietPosition reads a position while no writer is at work: everything with a number up to its H is committed, or will
// never appear. It returns a *HeldError if writers do not leave within a moment: call it again. It returns a
// *SequenceError if the sequence is below an event's number.
//
// It takes two connections, and both before it locks anything. Two subscriptions do not do that at once: in a small pool
// each might wait for the other's second one.
func (s *Store) QuietPosition(ctx context.Context) (window.Reading, error) {
	s.quiet.Lock()
	defer s.quiet.Unlock()
	var reading window.Reading
	second, err := s.pool.Acquire(ctx)
	if err != nil {
		return reading, err
	}
	defer second.Release()
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		// Writers wait behind this lock: nothing in here lasts, and it ends if we do not go on.
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = '%dms'; SET LOCAL statement_timeout = '5s'; "+
			"SET LOCAL idle_in_transaction_session_timeout = '1s'", lockWait.Milliseconds()), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, s.sql["lock_events"]); err != nil {
			return fmt.Errorf("lock_events: %w", err)
		}
		// By the second connection: this one is in a transaction.
		var err error
		if reading, err = s.position(ctx, second); err != nil {
			return err
		}
		var highest, used int64
		if _, err := s.row(ctx, tx, "max_seq", []any{reading.Run.System}, &highest, &used); err != nil {
			return err
		}
		if highest > reading.H {
			return &SequenceError{Events: s.events, At: reading.H, Highest: highest, Used: used}
		}
		return nil
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" { // lock_not_available
		holders, err := s.lockHolders(ctx, second)
		if err != nil {
			return reading, err
		}
		return reading, &HeldError{holders}
	}
	return reading, err
}

func (s *Store) lockHolders(ctx context.Context, db querier) ([]string, error) {
	return collect(ctx, s, db, "lock_holders", nil, pgx.RowTo[string])
}
