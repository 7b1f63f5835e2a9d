package relay_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// A relay that is stopped at the very moment at which it takes the lane gives it back: the next one
// need not wait for the lease to run out.
func TestStopWhileTakingTheLane(t *testing.T) {
	pool := newOutbox(t)
	sink := &capture{}
	cfg := config(sink)
	insert(t, pool, "1", "{}")
	_, stop := start(t, pool, cfg)
	sink.waitFor(t, 1) // the subscription and its lane are known
	stop()

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "LOCK TABLE commitrelay.lanes IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	cfg.Lease = time.Hour
	r, err := relay.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	taking := func() (n int) {
		t.Helper()
		err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
				AND query LIKE '%UPDATE "commitrelay".lanes%'`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	testwait.Until(t, "the relay waits for the lanes", func() bool { return taking() == 1 })
	cancel()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := testwait.Recv(t, "Run to end", done); err != nil {
		t.Errorf("Run: %v", err)
	}
	testwait.Until(t, "nothing is under way in the server", func() bool { return taking() == 0 })
	var owner string
	err = pool.QueryRow(t.Context(), "SELECT owner FROM commitrelay.lanes WHERE owner IS NOT NULL").Scan(&owner)
	if !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("the lane belongs to %q (%v), want nobody", owner, err)
	}
}

// A lane that is still in the name of a relay that stops is given back, also if its own statement
// for that has failed.
func TestGoodbyeGivesLanesBack(t *testing.T) {
	pool := newOutbox(t)
	sink := &capture{}
	cfg := config(sink)
	cfg.Lease = time.Hour
	insert(t, pool, "1", "{}")
	_, stop := start(t, pool, cfg)
	sink.waitFor(t, 1)
	// As if another statement of it had taken the lane meanwhile: the epoch that it knows is not the last.
	mustExec(t, pool, "UPDATE commitrelay.lanes SET epoch = epoch + 1")
	stop()
	var owned bool
	if err := pool.QueryRow(t.Context(), "SELECT owner IS NOT NULL FROM commitrelay.lanes").Scan(&owned); err != nil {
		t.Fatal(err)
	}
	if owned {
		t.Error("the lane still belongs to the relay that has stopped")
	}
}
