package store_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(closing{m}) }

// closing stops the server before goroutines are counted.
type closing struct{ m *testing.M }

func (c closing) Run() int {
	code := c.m.Run()
	if own.cluster != nil {
		if err := own.cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	return code
}

var own struct {
	once    sync.Once
	cluster *pgtemp.Cluster
	err     error
}

// cluster is a server of these tests' own: databases are made fast on it, prepared transactions are allowed, and nobody
// writes the WAL for the sake of others.
func cluster(t testing.TB) *pgtemp.Cluster {
	t.Helper()
	own.once.Do(func() {
		own.cluster, own.err = pgtemp.Start(context.Background(), pgtemp.Options{Parameters: map[string]string{
			"max_prepared_transactions": "8", "autovacuum": "off", "fsync": "off", "wal_writer_delay": "10000ms",
		}})
	})
	if own.err != nil {
		t.Fatal(own.err)
	}
	return own.cluster
}

// db is a database with the tables and one lane in it.
type db struct {
	url   string
	pool  *pgxpool.Pool
	store *store.Store
	lane  store.Lane
}

const owner, other = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"

var databases atomic.Int64

func newDB(t testing.TB, opts migrate.Options) *db {
	t.Helper()
	if opts.Slots == 0 {
		opts.Slots = 2 // fewer tables are made faster
	}
	c := cluster(t)
	name := fmt.Sprintf("d%d", databases.Add(1))
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	d := &db{url: c.URLFor(name), lane: store.Lane{Subscription: "all", Owner: owner}}
	d.pool = pgtest.Connect(t, d.url)
	if err := migrate.Up(t.Context(), d.pool, opts); err != nil {
		t.Fatal(err)
	}
	d.store = d.open(t, d.pool)
	if _, err := d.store.Subscribe(t.Context(), store.Subscription{Name: "all", Lanes: 1, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	d.acquire(t, &d.lane)
	return d
}

func (d *db) open(t testing.TB, pool *pgxpool.Pool) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), pool, ident.Table{Schema: "public", Name: "outbox_events"}, "commitrelay")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connect opens a pool that is closed when the test ends.
func connect(t testing.TB, cfg *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func (d *db) acquire(t testing.TB, l *store.Lane) {
	t.Helper()
	if held, err := d.take(t, l); err != nil || !held {
		t.Fatalf("acquire: %v, %v", held, err)
	}
}

// take tries to take the one lane of a subscription.
func (d *db) take(t testing.TB, l *store.Lane) (held bool, err error) {
	t.Helper()
	lanes, err := d.store.Acquire(t.Context(), l.Subscription, l.Owner, 1, time.Hour, nil)
	if len(lanes) == 0 {
		return false, err
	}
	*l = lanes[0]
	return true, err
}

// renew prolongs the lease of one lane.
func (d *db) renew(t testing.TB, l store.Lane, lease time.Duration) (held bool, err error) {
	t.Helper()
	renewed, err := d.store.Renew(t.Context(), l.Owner, []store.Lane{l}, lease)
	return renewed[l], err
}

// put stores what is settled of one lane. What the lane's row referred to before is needed no more.
func (d *db) put(ctx context.Context, l store.Lane, run window.Run, open window.Open, parked ...store.Parking) error {
	settled := store.Settled{Lane: l, Open: open}
	if len(parked) > 0 {
		return d.store.StoreParking(ctx, run, settled, parked)
	}
	var gone []int64
	rows, err := d.pool.Query(ctx, "SELECT id FROM commitrelay.windows WHERE id <> 0")
	if err != nil {
		return err
	}
	if gone, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
		return err
	}
	stored, err := d.store.StoreLanes(ctx, run, []store.Settled{settled}, gone)
	if err == nil && !stored[l.Lane] {
		err = store.ErrFenced
	}
	return err
}

func (d *db) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := d.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// get reads one value.
func get[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// insert writes an event.
func (d *db) insert(t testing.TB, key, payload string) {
	t.Helper()
	d.exec(t, "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('user', $1, 'UserCreated', to_json($2::text))", key, payload)
}

func (d *db) position(t testing.TB) window.Reading {
	t.Helper()
	r, err := d.store.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (d *db) load(t testing.TB) window.Open {
	t.Helper()
	open, _, err := d.store.Load(t.Context(), d.lane)
	if err != nil {
		t.Fatal(err)
	}
	return open
}

func (d *db) storeLane(t testing.TB, open window.Open, parked ...store.Parking) {
	t.Helper()
	if err := d.put(t.Context(), d.lane, d.position(t).Run, open, parked...); err != nil {
		t.Fatal(err)
	}
}

// window is from the beginning to now.
func (d *db) window(t testing.TB) *window.Window {
	t.Helper()
	from := d.load(t).From
	to, low := from.Advance(d.position(t))
	return &window.Window{From: from, To: to, Low: low}
}

// read reads everything with pages of these limits.
func (d *db) read(t testing.TB, maxRows, maxBytes int) (events []window.Event, pages int) {
	t.Helper()
	w := d.window(t)
	src := d.store.NewReader(nil, nil, 1, maxRows, maxBytes)
	for p := w.Low; p < w.To.H; {
		page, more, err := src.Page(t.Context(), w, []int{0}, p, w.To.H)
		if err != nil {
			t.Fatal(err)
		}
		pages++
		p = w.To.H
		if more {
			if len(page) == 0 {
				t.Fatal("there is more, and the page is empty")
			}
			p = page[len(page)-1].Seq
		}
		events = append(events, page...)
	}
	return events, pages
}

// parking parks an event that is due at once.
func parking(e window.Event) store.Parking {
	return store.Parking{Seq: e.Seq, ID: e.ID, Attempts: 1, Error: "refused", Topic: "t", Delay: new(time.Duration)}
}
