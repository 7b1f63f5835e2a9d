package window_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// parameters: prepared transactions are allowed, and nobody but the tests takes transaction ids.
var parameters = map[string]string{
	"max_prepared_transactions": "64", "autovacuum": "off", "fsync": "off",
}

// cluster is a server of these tests' own: which transaction ends when is part of what they say.
func cluster(t testing.TB) *pgtemp.Cluster {
	t.Helper()
	own.once.Do(func() {
		own.cluster, own.err = pgtemp.Start(context.Background(), pgtemp.Options{Parameters: parameters})
	})
	if own.err != nil {
		t.Fatal(own.err)
	}
	return own.cluster
}

// outbox is the tables, in schemas of their own: a database of its own would take longer to make.
type outbox struct {
	pool   *pgxpool.Pool
	events ident.Table
	schema string
	store  *store.Store
}

var outboxes atomic.Int64

func newOutbox(t testing.TB, c *pgtemp.Cluster) *outbox {
	t.Helper()
	name := fmt.Sprintf("o%d", outboxes.Add(1))
	o := &outbox{pool: pgtest.Connect(t, c.URL()+"&pool_max_conns=32"), events: ident.Table{Schema: name, Name: "outbox_events"}, schema: name + "_relay"}
	o.exec(t, "CREATE SCHEMA "+name)
	err := migrate.Up(t.Context(), o.pool, migrate.Options{Table: name + ".outbox_events", Schema: o.schema, Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	o.store = o.open(t, o.pool)
	return o
}

func (o *outbox) open(t testing.TB, pool *pgxpool.Pool) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), pool, o.events, o.schema)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lane subscribes, and takes the lane.
func (o *outbox) lane(t testing.TB, subscription string) store.Lane {
	t.Helper()
	if _, err := o.store.Subscribe(t.Context(), store.Subscription{Name: subscription, Lanes: 1, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	held, err := o.store.Acquire(t.Context(), subscription, owner, 1, time.Hour, nil)
	if err != nil || len(held) != 1 {
		t.Fatalf("acquired %d lanes: %v", len(held), err)
	}
	return held[0]
}

const owner, other = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"

// restored is an open state as it comes back from the database.
func (o *outbox) restored(ctx context.Context, l store.Lane, open window.Open) (window.Open, error) {
	stored, err := o.store.StoreLanes(ctx, open.From.Run, []store.Settled{{Lane: l, Open: open}}, nil)
	if err == nil && !stored[l.Lane] {
		err = store.ErrFenced
	}
	if err != nil {
		return open, err
	}
	open, _, err = o.store.Load(ctx, l)
	return open, err
}

func (o *outbox) storeAndLoad(t testing.TB, l store.Lane, open window.Open) window.Open {
	t.Helper()
	open, err := o.restored(t.Context(), l, open)
	if err != nil {
		t.Fatal(err)
	}
	return open
}

// beginning is where a new subscription begins.
func (o *outbox) beginning(t testing.TB) window.Open {
	t.Helper()
	open, _, err := o.store.Load(t.Context(), o.lane(t, "beginning"))
	if err != nil {
		t.Fatal(err)
	}
	return open
}

// insert is the writers' statement, for a key and the text of a payload.
func (o *outbox) insert() string {
	return "INSERT INTO " + o.events.String() + ` (aggregate_type, aggregate_id, event_type, payload) VALUES ('user', $1, 'UserCreated', to_json($2::text))`
}

func (o *outbox) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := o.pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
