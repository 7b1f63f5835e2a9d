package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
)

const (
	userCreated = "UserCreated"
	userMoved   = "UserEmailChanged"

	rollbacks = 10 // percent: so many transactions that roll back for one that commits
	changes   = 30 // percent of the committed transactions change a user instead of making one
)

// payload is the body of each event. It says which event it is, so that the consumer of any broker,
// and of either relay, can tell.
type payload struct {
	EventID outbox.ID `json:"event_id"`
	UserID  int64     `json:"user_id"`
	Version int       `json:"version"`
	Email   string    `json:"email"`
}

// load is the application: writers that register users and change them, each in a transaction
// with its event.
type load struct {
	pool   *pgxpool.Pool
	db     database
	write  func(ctx context.Context, tx pgx.Tx, e *outbox.Event) error
	ledger *ledger
	rate   int // committed events per second; 0: as fast as it goes

	start, end time.Time
	turns      atomic.Int64
	users      recentUsers
}

// run writes for that long, then returns when the last transaction has ended.
func (l *load) run(ctx context.Context, writers int, duration time.Duration) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	l.start = time.Now()
	l.end = l.start.Add(duration)
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			if err := l.writer(ctx); err != nil {
				fail(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (l *load) writer(ctx context.Context) error {
	lastSuccess := time.Now()
	for l.turn(ctx) {
		err := l.step(ctx)
		switch {
		case err == nil:
			lastSuccess = time.Now()
		case ctx.Err() != nil:
			return nil // the caller knows why
		case !passing(err) || time.Since(lastSuccess) > patience:
			return fmt.Errorf("write: %w", err)
		default:
			pause(ctx, 100*time.Millisecond)
		}
	}
	return nil
}

// turn waits for the time of the next transaction, and is false when the load is over.
func (l *load) turn(ctx context.Context) bool {
	now := time.Now()
	if ctx.Err() != nil || !now.Before(l.end) {
		return false
	}
	if l.rate == 0 {
		return true
	}
	at := l.start.Add(time.Duration(l.turns.Add(1)-1) * time.Second / time.Duration(l.rate))
	if !at.Before(l.end) {
		return false
	}
	return pause(ctx, at.Sub(now))
}

// step commits one transaction, and now and then rolls another one back before.
func (l *load) step(ctx context.Context) error {
	if rand.IntN(100) < rollbacks {
		if err := l.transaction(ctx, false); err != nil {
			return err
		}
	}
	return l.transaction(ctx, true)
}

// transaction registers a user, or changes one of those registered lately, and writes the event.
func (l *load) transaction(ctx context.Context, commit bool) error {
	tx, err := l.pool.BeginTx(ctx, readWrite)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // a no-op once the transaction has ended

	e := event{ID: outbox.NewID()}
	email := "user-" + strconv.FormatUint(rand.Uint64N(1e12), 36) + "@example.com"
	eventType := userCreated
	if known := l.users.any(); known != 0 && rand.IntN(100) < changes {
		eventType, e.User = userMoved, known
		err = tx.QueryRow(ctx, l.db.sql("update_user"), e.User, email).Scan(&e.Version)
	} else {
		err = tx.QueryRow(ctx, l.db.sql("insert_user"), email).Scan(&e.User, &e.Version)
	}
	if err != nil {
		return err
	}
	body, err := json.Marshal(payload{EventID: e.ID, UserID: e.User, Version: e.Version, Email: email})
	if err != nil {
		return err
	}
	err = l.write(ctx, tx, &outbox.Event{
		ID: e.ID, AggregateType: "user", AggregateID: strconv.FormatInt(e.User, 10), Type: eventType, Payload: body,
	})
	if err != nil {
		return err
	}
	if !commit {
		l.ledger.RolledBack()
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		l.ledger.Uncertain(e)
		return err
	}
	l.ledger.Committed(e)
	l.users.add(e.User)
	return nil
}

// recentUsers are those that were registered last. Writers choose among few, so that they meet at
// one user's row and wait for each other.
type recentUsers struct {
	mu  sync.Mutex
	ids [64]int64
	n   int
}

func (u *recentUsers) add(id int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ids[u.n%len(u.ids)] = id
	u.n++
}

// any is one of them, or 0 if there is none yet.
func (u *recentUsers) any() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ids[rand.IntN(len(u.ids))]
}

// pause waits for d, and is false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
