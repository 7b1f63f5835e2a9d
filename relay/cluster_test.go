package relay_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// quick are parameters of servers whose machine does not fail: a killed process loses nothing that the system has.
func quick(more map[string]string) pgtemp.Options {
	p := map[string]string{"fsync": "off", "shared_buffers": "8MB", "autovacuum": "off", "max_wal_senders": "4", "max_connections": "40"}
	maps.Copy(p, more)
	return pgtemp.Options{Parameters: p}
}

// newCluster is a server of the test's own, for those that stop, kill and copy it.
func newCluster(t testing.TB, opts pgtemp.Options) *pgtemp.Cluster {
	t.Helper()
	c, err := pgtemp.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	closeCluster(t, c)
	return c
}

func closeCluster(t testing.TB, c *pgtemp.Cluster) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close cluster: %v", err)
		}
	})
}

// migrated is a pool on a cluster's database, with the tables in it.
func migrated(t testing.TB, c *pgtemp.Cluster) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Connect(t, c.URL())
	if err := migrate.Up(t.Context(), pool, migrate.Options{}); err != nil {
		t.Fatalf("migrate up: %v", err)
	}
	return pool
}

// tool runs one of PostgreSQL's programs.
func tool(t testing.TB, c *pgtemp.Cluster, name string, args ...string) {
	t.Helper()
	out, err := c.Command(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// dump writes a dump of the cluster's database to a file; restore fills another cluster from it.
func dump(t testing.TB, from *pgtemp.Cluster, name string) string {
	t.Helper()
	file := filepath.Join(from.Dir(), name)
	tool(t, from, "pg_dump", "--format=custom", "--file", file, "postgres")
	return file
}

func restore(t testing.TB, to *pgtemp.Cluster, file string) *pgxpool.Pool {
	t.Helper()
	tool(t, to, "pg_restore", "--exit-on-error", "--dbname", "postgres", file)
	return pgtest.Connect(t, to.URL())
}

// burn hands out n transaction ids.
func burn(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	mustExec(t, pool, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`, n))
}

// nextXID is the transaction id that is handed out next.
func nextXID(t testing.TB, pool *pgxpool.Pool) uint64 {
	t.Helper()
	return one[uint64](t, pool, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint`)
}

func one[T any](t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// row is what a writer knows of an event it has written.
type row struct {
	id  outbox.ID
	key string
	seq int64
	xid uint64
}

const insertRows = `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
	SELECT 'user', $1, 'UserCreated', to_json(g) FROM generate_series(1, $2::integer) AS g
	RETURNING id, seq, xid::text::bigint`

type inserter interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// insertMany writes n events of a key in one statement.
func insertMany(t testing.TB, db inserter, key string, n int) []row {
	t.Helper()
	rows, err := tryInsert(t.Context(), db, key, n)
	if err != nil {
		t.Fatalf("insert: %v", err)
	}
	return rows
}

func tryInsert(ctx context.Context, db inserter, key string, n int) ([]row, error) {
	rows, err := db.Query(ctx, insertRows, pgx.QueryExecModeExec, key, n)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (w row, err error) {
		w.key = key
		return w, r.Scan((*[16]byte)(&w.id), &w.seq, &w.xid)
	})
}

// ledger holds what has been committed, in commit order.
type ledger struct {
	mu        sync.Mutex
	committed []row
}

// write commits n events of a key in one transaction.
func (l *ledger) write(t testing.TB, db inserter, key string, n int) []row {
	t.Helper()
	rows := insertMany(t, db, key, n)
	l.add(rows...)
	return rows
}

func (l *ledger) add(rows ...row) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed = append(l.committed, rows...)
}

func (l *ledger) rows() []row {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.committed)
}

// wait waits until every committed event has arrived.
func (l *ledger) wait(t testing.TB, sink *capture) {
	t.Helper()
	rows := l.rows()
	testwait.UntilNil(t, fmt.Sprintf("all %d events to arrive", len(rows)), func() error {
		arrived := map[outbox.ID]bool{}
		for _, m := range sink.messages() {
			arrived[m.Event.ID] = true
		}
		for i, r := range rows {
			if !arrived[r.id] {
				return fmt.Errorf("event %d of %d is missing: %+v; arrived: %d", i+1, len(rows), r, len(arrived))
			}
		}
		return nil
	})
}

// check compares the ledger with what has arrived: nothing lost, nothing invented, and the first arrivals of each key in
// commit order. It returns the events that arrived more than once. An event may be missing that is parked or dead in one
// of the given databases.
func (l *ledger) check(t testing.TB, sink *capture, pools ...*pgxpool.Pool) (duplicates []row) {
	t.Helper()
	kept := map[outbox.ID]bool{}
	for _, pool := range pools {
		rows, err := pool.Query(t.Context(), `SELECT event_id FROM commitrelay.parked
			WHERE last_error IS NOT NULL OR next_attempt IS NULL`)
		if err != nil {
			t.Fatal(err)
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			kept[id] = true
		}
	}
	times := map[outbox.ID]int{}
	first := map[string][]outbox.ID{}
	for _, m := range sink.messages() {
		if times[m.Event.ID]++; times[m.Event.ID] == 1 {
			first[m.Event.AggregateID] = append(first[m.Event.AggregateID], m.Event.ID)
		}
	}
	want := map[string][]outbox.ID{}
	for _, r := range l.rows() {
		switch n := times[r.id]; {
		case n == 0 && !kept[r.id]:
			t.Errorf("lost: %+v", r)
		case n > 1:
			duplicates = append(duplicates, r)
		}
		if times[r.id] > 0 {
			want[r.key] = append(want[r.key], r.id)
		}
		delete(times, r.id)
	}
	for id := range times {
		t.Errorf("invented: %s was never committed", id)
	}
	for key, ids := range want {
		if !slices.Equal(first[key], ids) {
			t.Errorf("key %s: first arrivals are not in commit order:\n got %v\nwant %v", key, first[key], ids)
		}
	}
	return duplicates
}

// checkOnce is check where nothing may arrive twice.
func (l *ledger) checkOnce(t testing.TB, sink *capture, pools ...*pgxpool.Pool) {
	t.Helper()
	if duplicates := l.check(t, sink, pools...); len(duplicates) > 0 {
		t.Errorf("%d events arrived more than once: %+v", len(duplicates), duplicates)
	}
}

// logBook keeps what a relay logs.
type logBook struct {
	t     testing.TB
	mu    sync.Mutex
	lines []string
}

func newLog(t testing.TB) (*logBook, *slog.Logger) {
	b := &logBook{t: t}
	return b, slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (b *logBook) Write(line []byte) (int, error) {
	b.t.Logf("%s", line[:len(line)-1])
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(line))
	return len(line), nil
}

// find returns the lines that hold each of the parts.
func (b *logBook) find(parts ...string) (found []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}

// loud returns the lines that operators see by default and have to do something about.
func (b *logBook) loud() []string {
	return append(b.find("level=WARN"), b.find("level=ERROR")...)
}

func (b *logBook) waitFor(parts ...string) {
	b.t.Helper()
	testwait.Until(b.t, fmt.Sprintf("a line of the log with %q", parts), func() bool { return len(b.find(parts...)) > 0 })
}

// logged is config with a log that can be read.
func logged(t testing.TB, sink relay.Sink) (relay.Config, *logBook) {
	cfg := config(sink)
	book, logger := newLog(t)
	cfg.Logger = logger
	return cfg, book
}

// settled waits until the relay has stored that it stands at the sequence's value, with no window open.
func settled(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	testwait.Until(t, "everything to be settled and stored", func() bool {
		return one[bool](t, pool, `SELECT coalesce(bool_and(l.to_window IS NULL AND w.h = coalesce(s.h, 0)
				AND (w.run ->> 'filenode')::bigint = pg_relation_filenode(q.oid)), false)
			FROM commitrelay.lanes AS l JOIN commitrelay.windows AS w ON w.id = l.from_window,
			     CAST(pg_get_serial_sequence('public.outbox_events', 'seq') AS regclass) AS q (oid),
			     pg_sequence_last_value(q.oid) AS s (h)`)
	})
}

// through is url with the proxy's address.
func through(t testing.TB, server string, proxy *tcpproxy.Proxy) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = proxy.Addr()
	return u.String()
}

// contextOf is a context for the test's cleaning up, when t.Context has ended.
func contextOf(t testing.TB) context.Context { return context.WithoutCancel(t.Context()) }

// begin opens a transaction that ends with the test at the latest.
func begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(contextOf(t)) })
	return tx
}

// setvalIn cuts the statement to run out of an error.
func setvalIn(t testing.TB, text string) string {
	t.Helper()
	_, sql, found := strings.Cut(text, "Run: ")
	if !found {
		t.Fatalf("the error names no statement to run: %s", text)
	}
	return sql
}
