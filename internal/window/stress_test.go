package window_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/window"
)

// written is an event of the history.
type written struct {
	tx      int // the transaction's number
	n       int // its place in the transaction
	key     string
	version int64 // of the key, where writers lock it first; else the writer's own count of its transactions
}

// history is what writers did: the truth that arrivals are held against.
type history struct {
	mu        sync.Mutex
	committed map[string]written // by name
	txs       int
	waiting   []chan<- struct{} // readers that want to hear of commits
	errs      []error
}

func (h *history) number() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.txs++
	return h.txs
}

func (h *history) commit(names map[string]written) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.committed, names)
	for _, c := range h.waiting {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (h *history) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

// writer runs one transaction after another on its own connection.
type writer struct {
	o       *outbox
	h       *history
	conn    *pgxpool.Conn
	dice    *rand.Rand
	number  int
	count   int64
	keys    int                // that are locked before they are written
	tx      int                // the transaction in progress
	names   map[string]written // its events, but those rolled back
	n       int
	version int64
	depth   int // of transactions between the two phases of others
}

func (w *writer) exec(ctx context.Context, sql string, args ...any) {
	if _, err := w.conn.Exec(ctx, sql, args...); err != nil {
		panic(fmt.Errorf("%s: %w", sql, err))
	}
}

// run writes until done says so. Transactions are finished, never broken off.
func (w *writer) run(ctx context.Context, done func() bool) {
	defer func() {
		if err, ok := recover().(error); ok {
			w.h.fail(err)
		}
	}()
	for !done() {
		w.transaction(ctx)
	}
}

// transaction is one of every kind that there is.
func (w *writer) transaction(ctx context.Context) {
	w.count++
	w.tx, w.n, w.version, w.names = w.h.number(), 0, w.count, map[string]written{}
	w.exec(ctx, "BEGIN")
	if w.one(5) { // its id is older than its numbers
		w.exec(ctx, "SELECT pg_current_xact_id()")
		if w.one(3) {
			w.exec(ctx, "SELECT pg_sleep(0.01)")
		}
	}
	key, locked := fmt.Sprintf("own%d-%d", w.number, w.depth), false // those of one depth do not overlap
	if w.one(2) {
		key, locked = w.lock(ctx), true
	}
	w.insert(ctx, key)
	for w.one(2) {
		switch w.dice.IntN(3) {
		case 0: // rolled back to before the insert
			kept, n := w.mark()
			w.exec(ctx, "SAVEPOINT a")
			w.insert(ctx, key)
			w.exec(ctx, "ROLLBACK TO a")
			w.names, w.n = kept, n
		case 1: // kept, in a subtransaction, with one in it that fails
			w.exec(ctx, "SAVEPOINT b")
			w.insert(ctx, key)
			kept, n := w.mark()
			w.exec(ctx, "SAVEPOINT c")
			w.insert(ctx, key)
			if _, err := w.conn.Exec(ctx, "SELECT 1/0"); err == nil {
				panic(fmt.Errorf("1/0 did not fail"))
			}
			w.exec(ctx, "ROLLBACK TO c")
			w.names, w.n = kept, n
			w.exec(ctx, "RELEASE b")
		default:
			w.insert(ctx, key)
		}
	}
	if w.one(8) { // slow
		w.exec(ctx, "SELECT pg_sleep(0.02)")
	}
	switch w.dice.IntN(8) {
	case 0:
		w.exec(ctx, "ROLLBACK")
	case 1:
		w.prepare(ctx, locked)
	default:
		w.exec(ctx, "COMMIT")
		w.h.commit(w.names)
	}
}

// prepare ends the transaction in two phases. Another one comes between them, unless it might wait for this one's lock.
func (w *writer) prepare(ctx context.Context, locked bool) {
	name := fmt.Sprintf("'%s tx %d'", w.o.events.Schema, w.tx)
	w.exec(ctx, "PREPARE TRANSACTION "+name)
	names := w.names
	if !locked && w.one(2) {
		w.depth++
		w.transaction(ctx)
		w.depth--
	}
	if w.one(3) {
		w.exec(ctx, "ROLLBACK PREPARED "+name)
		return
	}
	w.exec(ctx, "COMMIT PREPARED "+name)
	w.h.commit(names)
}

func (w *writer) one(in int) bool { return w.dice.IntN(in) == 0 }

// lock takes one of the keys that all writers share, and learns how many transactions have held it before.
func (w *writer) lock(ctx context.Context) (key string) {
	key = fmt.Sprint("shared", w.dice.IntN(w.keys))
	err := w.conn.QueryRow(ctx, "UPDATE "+w.o.accounts()+" SET version = version + 1 WHERE key = $1 RETURNING version", key).Scan(&w.version)
	if err != nil {
		panic(err)
	}
	return key
}

// insert writes one event or several with one statement.
func (w *writer) insert(ctx context.Context, key string) {
	first := w.n
	into := "INSERT INTO " + w.o.events.String() + " (aggregate_type, aggregate_id, event_type, payload) "
	switch w.dice.IntN(8) {
	case 0:
		w.exec(ctx, into+"SELECT 'user', $1, 'UserCreated', to_json(format('%s-%s', $2::int, g)) FROM generate_series($3::int, $3 + 19) AS g",
			key, w.tx, first)
		w.n += 20
	case 1, 2:
		w.exec(ctx, into+`VALUES ('user', $1, 'UserCreated', to_json(format('%s-%s', $2::int, $3::int))),
			('user', $1, 'UserCreated', to_json(format('%s-%s', $2::int, $3 + 1)))`, key, w.tx, first)
		w.n += 2
	default:
		w.exec(ctx, into+"VALUES ('user', $1, 'UserCreated', to_json(format('%s-%s', $2::int, $3::int)))", key, w.tx, first)
		w.n++
	}
	for n := first; n < w.n; n++ {
		w.names[fmt.Sprintf("%d-%d", w.tx, n)] = written{w.tx, n, key, w.version}
	}
}

// mark is what to go back to.
func (w *writer) mark() (map[string]written, int) {
	kept := make(map[string]written, len(w.names))
	maps.Copy(kept, w.names)
	return kept, w.n
}

func (o *outbox) accounts() string { return pgx.Identifier{o.events.Schema, "accounts"}.Sanitize() }

// arrivals is what one reader of the history was given.
type arrivals struct {
	name  string
	names []string
	keys  []string
}

func (a *arrivals) add(page *window.Page) {
	for _, e := range page.Events {
		a.names = append(a.names, strings.Trim(string(e.Payload), `"`))
		a.keys = append(a.keys, e.AggregateID)
	}
}

// check holds what arrived against what was written.
func (h *history) check(t testing.TB, a *arrivals) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	faults := 0
	fault := func(format string, args ...any) {
		if faults++; faults <= 5 {
			t.Errorf(a.name+": "+format, args...)
		}
	}
	seen := map[string]bool{}
	inTx := map[int]int{}        // the last event of each transaction
	last := map[string]written{} // of each key
	for i, name := range a.names {
		w, ok := h.committed[name]
		switch {
		case !ok:
			fault("invented: event %s was never committed", name)
			continue
		case seen[name]:
			fault("event %s arrived twice", name)
			continue
		}
		seen[name] = true
		if n, ok := inTx[w.tx]; ok && w.n < n {
			fault("transaction %d: event %d arrived after %d", w.tx, w.n, n)
		}
		inTx[w.tx] = w.n
		if a.keys[i] != w.key {
			fault("event %s has key %s, want %s", name, a.keys[i], w.key)
		}
		if before := last[w.key]; before.version > w.version {
			fault("key %s: version %d arrived after %d", w.key, w.version, before.version)
		}
		last[w.key] = w
	}
	for name := range h.committed {
		if !seen[name] {
			fault("lost: %s", name)
		}
	}
	if faults > 5 {
		t.Errorf("%s: %d faults in all", a.name, faults)
	}
	t.Logf("%s: %d events of %d transactions", a.name, len(a.names), len(inTx))
}

// follow reads beside the writers, and once more when they have ended. On a page it calls settle, which may hand over
// another reader to go on with.
func (h *history) follow(ctx context.Context, reader *window.Reader, a *arrivals, every int, ended <-chan struct{},
	settle func(*window.Page) (*window.Reader, error),
) error {
	commits := make(chan struct{}, 1)
	h.mu.Lock()
	h.waiting = append(h.waiting, commits)
	h.mu.Unlock()
	over := false
	for idle := 0; idle < 3; {
		page, err := reader.Next(ctx, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		if page.At == nil {
			idle = 0
			a.add(page)
			next, err := settle(page)
			if err != nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			if next != nil {
				reader = next
			}
			continue
		}
		if over {
			idle++ // see scene.look
			continue
		}
		for range every {
			select {
			case <-commits:
				continue
			case <-ended:
				over = true
			}
			break
		}
	}
	return nil
}

// stress runs writers beside the right reader, in three ways of using it, and two relays that share lanes, until done. It writes before and after them in a
// transaction that lasts for all of the run, and keeps one open that never touches the outbox.
func stress(t *testing.T, o *outbox, writers int, done func(txs int) bool) {
	ctx := t.Context()
	o.exec(t, "CREATE TABLE "+o.accounts()+" (key text PRIMARY KEY, version bigint NOT NULL)")
	o.exec(t, "INSERT INTO "+o.accounts()+" SELECT 'shared' || g, 0 FROM generate_series(0, 4) AS g")
	h := &history{committed: map[string]written{}}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)

	acquire := func() *pgxpool.Conn {
		conn, err := o.pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	idler := acquire()
	defer idler.Release()
	if _, err := idler.Exec(ctx, "BEGIN; SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	long := &writer{o: o, h: h, conn: acquire(), dice: rand.New(rand.NewPCG(seed, 0)), tx: h.number(), version: 1, names: map[string]written{}}
	defer func() { long.conn.Release() }()
	long.exec(ctx, "BEGIN")
	long.insert(ctx, "long")

	ended := make(chan struct{})
	var reading sync.WaitGroup
	var all []*arrivals
	follow := func(name string, reader *window.Reader, every int, settle func(*window.Page) (*window.Reader, error)) {
		a := &arrivals{name: name}
		all = append(all, a)
		reading.Go(func() {
			if err := h.follow(ctx, reader, a, every, ended, settle); err != nil {
				h.fail(err)
			}
		})
	}
	nothing := func(*window.Page) (*window.Reader, error) { return nil, nil }
	begin := func(src window.Source) *window.Reader { return newReader(t, src, o.beginning(t)) }
	follow("looks after each commit", begin(o.source()), 1, nothing)
	follow("looks seldom, reads small pages", begin(o.store.NewReader(nil, nil, 1, 20, 1<<20)), 200, nothing)

	// As a relay does that is stopped after each page: store, load, go on.
	lane := o.lane(t, "stops everywhere")
	src := o.store.NewReader(nil, nil, 1, 20, 1<<20)
	follow("stops after each page", begin(src), 20, func(page *window.Page) (*window.Reader, error) {
		open := window.Open{From: page.Window.From, Window: page.Window, P: page.P}
		if page.Last {
			open = window.Open{From: page.Window.To}
		}
		loaded, err := o.restored(ctx, lane, open)
		if err != nil {
			return nil, err
		}
		r, err := o.store.Position(ctx)
		next := window.NewReader(src, r)
		next.Add(0, loaded)
		return next, err
	})

	team, relays := startTeam(t, o, 8, seed)
	all = append(all, &team.arrivals)
	for _, run := range relays {
		reading.Go(func() {
			if err := run(ctx, ended); err != nil {
				h.fail(err)
			}
		})
	}

	var writing sync.WaitGroup
	for i := range writers {
		w := &writer{o: o, h: h, conn: acquire(), dice: rand.New(rand.NewPCG(seed, uint64(i+1))), number: i, keys: 5}
		writing.Go(func() {
			defer w.conn.Release()
			w.run(ctx, func() bool { return done(h.number()) })
		})
	}
	writing.Wait()
	long.insert(ctx, "long")
	long.exec(ctx, "COMMIT")
	h.commit(long.names)
	close(ended)
	reading.Wait()
	for _, err := range h.errs {
		t.Error(err)
	}
	for _, a := range all {
		h.check(t, a)
	}
	t.Logf("lanes were handed over %d times", team.handovers)
	if team.handovers == 0 {
		t.Error("no lane was handed over")
	}
	if len(h.committed) == 0 {
		t.Error("nothing was written")
	}
}

func TestStress(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	stress(t, newOutbox(t, cluster(t)), 8, func(txs int) bool { return ctx.Err() != nil && txs > 800 })
}
