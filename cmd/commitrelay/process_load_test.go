//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// load writes events until stop is called, which returns how many transactions failed. Each writer has
// keys of its own and numbers the events of each; so their order is that of the commits. One
// transaction in ten is rolled back.
func (s *site) load(pause time.Duration) (stop func() (failed int)) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var mu sync.Mutex
	failures := 0
	for w := range 2 {
		wg.Go(func() {
			n := s.writer(ctx, w, pause)
			mu.Lock()
			defer mu.Unlock()
			failures += n
		})
	}
	stop = func() int { cancel(); wg.Wait(); return failures }
	s.t.Cleanup(func() { stop() })
	return stop
}

const keysPerWriter, eventsPerTransaction = 20, 5

func (s *site) writer(ctx context.Context, w int, pause time.Duration) (failed int) {
	next := map[string]int{}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return failed
		case <-tick.C:
		}
		if next == nil {
			if next = s.numbers(w); next == nil {
				continue // the database does not answer yet
			}
		}
		keys, numbers := []string{}, []int{}
		for _, k := range rand.Perm(keysPerWriter)[:eventsPerTransaction] {
			key := fmt.Sprintf("%d/%d", w, k)
			keys, numbers = append(keys, key), append(numbers, next[key])
		}
		// Not bound to ctx: a transaction that has begun is ended one way or the other.
		committed, err := s.write(context.WithoutCancel(ctx), keys, numbers, rand.IntN(10) == 0)
		switch {
		case err != nil:
			failed++
			next = nil // the commit may have happened
		case committed:
			for _, k := range keys {
				next[k]++
			}
		}
	}
}

func (s *site) write(ctx context.Context, keys []string, numbers []int, rollback bool) (committed bool, err error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer tx.Rollback(ctx)
	_, err = tx.Exec(ctx, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'key', k, 'Numbered', json_build_object('n', n) FROM unnest($1::text[], $2::int[]) AS e (k, n)`, keys, numbers)
	if err != nil || rollback {
		return false, err
	}
	return true, tx.Commit(ctx)
}

// numbers are those that a writer's keys have come to, by what is committed.
func (s *site) numbers(w int) map[string]int {
	rows, err := s.pool.Query(context.Background(), `SELECT aggregate_id, count(*) FROM outbox_events
		WHERE aggregate_id LIKE $1 GROUP BY aggregate_id`, fmt.Sprintf("%d/%%", w))
	if err != nil {
		return nil
	}
	next := map[string]int{}
	var key string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&key, &n}, func() error { next[key] = n; return nil }); err != nil {
		return nil
	}
	return next
}
