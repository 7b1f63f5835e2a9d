package store_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

// A role's defaults are somebody's good intentions. Isolation changes nothing of what is stored and read.
func TestStrictIsolation(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			d := newDB(t, migrate.Options{})
			cfg := d.pool.Config()
			cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			pool := connect(t, cfg)
			if got := get[string](t, pool, "SHOW transaction_isolation"); got != level {
				t.Fatalf("the pool's isolation is %s", got)
			}
			d.store = d.open(t, pool)
			d.acquire(t, &d.lane)
			for _, k := range []string{"a", "b", "a"} {
				d.insert(t, k, "x")
			}
			events, _ := d.read(t, 2, 1<<20)
			if len(events) != 3 {
				t.Fatalf("%d events, want 3", len(events))
			}
			w := d.window(t)
			d.storeLane(t, window.Open{From: w.From, Window: w, P: 1}, parking(events[0]))
			d.storeLane(t, window.Open{From: w.To}, parking(events[2]))
			if open := d.load(t); open.From.H != 3 || open.Window != nil {
				t.Errorf("loaded %+v", open.From)
			}
			_, claimed := d.claim(t, 10, 1<<20, "a")
			if len(claimed) != 2 {
				t.Fatalf("claimed %d events, want 2", len(claimed))
			}
			err := d.store.SettleParked(t.Context(), d.lane, []int64{claimed[0].RowID}, []store.Settling{{RowID: claimed[1].RowID}}, []store.Key{key("a")})
			if err != nil {
				t.Error(err)
			}

			// Inserts that go on meanwhile, in transactions that the lock has to wait for: the quiet position sees them all.
			var writing sync.WaitGroup
			tx, err := d.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')"); err != nil {
				t.Fatal(err)
			}
			var held *store.HeldError
			if _, err := d.store.QuietPosition(t.Context()); !errors.As(err, &held) {
				t.Errorf("QuietPosition beside a writer: %v", err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if r, err := d.store.QuietPosition(t.Context()); err != nil || r.H != 4 {
				t.Errorf("QuietPosition: %+v, %v", r, err)
			}

			// Heartbeats and stores of the same lane meet. None may fail for good, and none may be lost.
			run := d.position(t).Run
			var mu sync.Mutex
			var fatal []error
			for range 2 {
				writing.Go(func() {
					for range 30 {
						if held, err := d.renew(t, d.lane, time.Hour); !held && err == nil || err != nil && !store.Transient(err) {
							mu.Lock()
							fatal = append(fatal, errors.Join(errors.New("renew"), err))
							mu.Unlock()
						}
					}
				})
			}
			stored := int64(0)
			for h := int64(1); h <= 30; h++ {
				p := d.fullPosition(t, 1000+h)
				switch err := d.put(t.Context(), d.lane, run, window.Open{From: p}); {
				case err == nil:
					stored = 1000 + h
				case !store.Transient(err):
					t.Errorf("StoreLanes: %v", err)
				}
			}
			writing.Wait()
			for _, err := range fatal {
				t.Error(err)
			}
			if open := d.load(t); stored != 0 && open.From.H != stored {
				t.Errorf("the lane stands at %d, stored last was %d", open.From.H, stored)
			}
		})
	}
}

// A read-only default stops what writes with a clear error, and nothing else.
func TestReadOnlyRole(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "a", "x")
	d.insert(t, "b", "x")
	cfg := d.pool.Config()
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	d.store = d.open(t, connect(t, cfg))
	if events, _ := d.read(t, 10, 1<<20); len(events) != 2 {
		t.Errorf("%d events, want 2", len(events))
	}
	// Transactions of several statements say themselves that they write.
	if r, err := d.store.QuietPosition(t.Context()); err != nil || r.H != 2 {
		t.Errorf("QuietPosition: %+v, %v", r, err)
	}
	_, err := d.take(t, &d.lane)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != "25006" || !strings.HasPrefix(err.Error(), "lanes_acquire: ") {
		t.Errorf("Acquire: %v; want an error that names the statement, and says read-only", err)
	}
}
