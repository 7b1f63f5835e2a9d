package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/migrate"
)

// What is, and what is not, a transaction. Implements is the rule the compiler goes by.
func TestOnlyTransactionsCompile(t *testing.T) {
	tx, sqlTx := reflect.TypeFor[outbox.Tx](), reflect.TypeFor[outbox.SQLTx]()
	for _, c := range []struct {
		typ       reflect.Type
		tx, sqlTx bool
	}{
		{reflect.TypeFor[pgx.Tx](), true, false},
		{reflect.TypeFor[*pgxpool.Tx](), true, false},
		{reflect.TypeFor[*sql.Tx](), false, true},
		{reflect.TypeFor[*pgxpool.Pool](), false, false},
		{reflect.TypeFor[*pgxpool.Conn](), false, false},
		{reflect.TypeFor[*pgx.Conn](), false, false},
		{reflect.TypeFor[*sql.DB](), false, false},
		{reflect.TypeFor[*sql.Conn](), false, false},
	} {
		if got := c.typ.Implements(tx); got != c.tx {
			t.Errorf("%v can be given to Write: %t, want %t", c.typ, got, c.tx)
		}
		if got := c.typ.Implements(sqlTx); got != c.sqlTx {
			t.Errorf("%v can be given to WriteSQL: %t, want %t", c.typ, got, c.sqlTx)
		}
	}
}

var execModes = []pgx.QueryExecMode{
	pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
}

// payloads are for each type a payload that has what needs care: quotes, backslashes, bytes, odd
// whitespace. bytes is the SQL that reads it back.
var payloads = []struct {
	typ      outbox.PayloadType
	payloads []string
	bytes    string
}{
	{outbox.PayloadJSON, []string{` {"b":1, "a":"it's \"\\\\u0000\" \\ é😀",  "b":1e400}` + "\n", `null`, `""`, `{}`, `[]`, `0`}, "convert_to(payload::text, 'UTF8')"},
	{outbox.PayloadJSONB, []string{`{"a": "it's \"\\\\u0000\" \\ é😀", "b": 1234567890123456789, "t": 1.10}`, `null`, `""`, `{}`, `[]`}, "convert_to(payload::text, 'UTF8')"},
	{outbox.PayloadBytea, []string{"\x00\xff\\x41'\"\\", "", "{}", "NULL"}, "payload"},
	{outbox.PayloadText, []string{`it's "\" {,} \\x41` + "\r\n\té😀", "", "NULL", "{}", ` `}, "convert_to(payload, 'UTF8')"},
}

func TestWriteKeepsWhatIsWritten(t *testing.T) {
	for _, p := range payloads {
		t.Run(string(p.typ), func(t *testing.T) {
			pool := newOutbox(t, migrate.Options{Payload: p.typ})
			w := outbox.Writer{Payload: p.typ}
			var all []*outbox.Event
			for i, payload := range append(p.payloads, "nil") {
				e := &outbox.Event{
					ID: outbox.NewID(), AggregateType: `"use\r'`, AggregateID: fmt.Sprintf(`{%d,NULL}`, i), Type: "Größe 😀",
					Payload: []byte(payload), Headers: map[string]string{"x-quote": `it's "\" <&>`, "empty": ""},
				}
				if payload == "nil" {
					e.Payload, e.Headers = nil, nil
				}
				all = append(all, e)
			}
			var want []outbox.Event
			for _, e := range all {
				want = append(want, *e)
			}
			for _, mode := range execModes {
				t.Run(mode.String(), func(t *testing.T) {
					config := pool.Config()
					config.ConnConfig.DefaultQueryExecMode = mode
					conn, err := pgx.ConnectConfig(t.Context(), config.ConnConfig)
					if err != nil {
						t.Fatal(err)
					}
					defer conn.Close(context.Background())
					check := func(how string, write func(tx pgx.Tx) error) {
						t.Helper()
						tx, err := conn.Begin(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						defer tx.Rollback(t.Context())
						if err := write(tx); err != nil {
							t.Fatalf("%s: %v", how, err)
						}
						if d := cmp.Diff(want, stored(t, tx, "outbox_events", p.bytes)); d != "" {
							t.Errorf("%s (-want +got):\n%s", how, d)
						}
					}
					check("together", func(tx pgx.Tx) error { return w.Write(t.Context(), tx, all...) })
					check("one by one", func(tx pgx.Tx) error {
						for _, e := range all {
							if err := w.Write(t.Context(), tx, e); err != nil {
								return err
							}
						}
						return nil
					})
				})
			}
			t.Run("database/sql", func(t *testing.T) {
				tx := beginSQL(t, pool)
				if err := w.WriteSQL(t.Context(), tx, all...); err != nil {
					t.Fatal(err)
				}
				for _, e := range all {
					if err := w.WriteSQL(t.Context(), tx, e); err != nil {
						t.Fatal(err)
					}
				}
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(append(want, want...), stored(t, begin(t, pool), "outbox_events", p.bytes)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		})
	}
}

func TestWriteKeepsTheOrder(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	tx := begin(t, pool)
	const n = 5000
	var w outbox.Writer
	events := make([]*outbox.Event, n)
	for i := range events {
		// Bodies of very different sizes, so that a sort has reason to spill.
		events[i] = user(strconv.Itoa(i), `"`+strings.Repeat("x", i%7*300)+`"`)
	}
	if err := w.Write(t.Context(), tx, user("first", `{}`)); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), tx, events...); err != nil {
		t.Fatal(err)
	}
	got := stored(t, tx, "outbox_events", "payload")[1:]
	if len(got) != n {
		t.Fatalf("got %d events, want %d", len(got), n)
	}
	for i, e := range got {
		if e.AggregateID != strconv.Itoa(i) {
			t.Fatalf("number %d went to event %s", i, e.AggregateID)
		}
	}
	var gaps, transactions int
	if err := tx.QueryRow(t.Context(), `SELECT max(seq) - min(seq) + 1 - count(*), count(DISTINCT xid) FROM outbox_events`).Scan(&gaps, &transactions); err != nil {
		t.Fatal(err)
	}
	if gaps != 0 || transactions != 1 {
		t.Errorf("got %d gaps in the numbers and %d transactions, want 0 and 1", gaps, transactions)
	}
}

func TestWriteFillsInIDs(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	tx := begin(t, pool)
	var w outbox.Writer
	given := outbox.NewID()
	events := []*outbox.Event{user("1", `{}`), {ID: given, AggregateType: "user", AggregateID: "2", Type: "UserCreated"}, {AggregateType: "user", AggregateID: "3"}}
	if err := w.Write(t.Context(), tx, events...); err == nil {
		t.Fatal("an event without a type was written")
	}
	if !events[0].ID.IsZero() || !events[2].ID.IsZero() {
		t.Errorf("a call that was refused has filled in ids: %v, %v", events[0].ID, events[2].ID)
	}
	events[2].Type = "UserCreated"
	if err := w.Write(t.Context(), tx, events...); err != nil {
		t.Fatal(err)
	}
	got := stored(t, tx, "outbox_events", "payload")
	for i, e := range events {
		if e.ID.IsZero() || got[i].ID != e.ID {
			t.Errorf("event %d has id %v, the table %v", i, e.ID, got[i].ID)
		}
	}
	if events[1].ID != given {
		t.Errorf("a given id became %v, want %v", events[1].ID, given)
	}
	if a, b := events[0].ID.String(), events[2].ID.String(); a >= b {
		t.Errorf("ids do not rise in the order of the arguments: %s, %s", a, b)
	}
}

type traceKey struct{}

func TestWriteAddsTraceHeaders(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	tx := begin(t, pool)
	w := outbox.Writer{Trace: func(ctx context.Context) map[string]string {
		return map[string]string{"traceparent": ctx.Value(traceKey{}).(string), "tracestate": "a=1"}
	}}
	plain, own := user("1", `{}`), user("2", `{}`)
	own.Headers = map[string]string{"Traceparent": "mine", "other": "x"}
	ctx := context.WithValue(t.Context(), traceKey{}, "00-abc-def-01")
	if err := w.Write(ctx, tx, plain, own); err != nil {
		t.Fatal(err)
	}
	got := stored(t, tx, "outbox_events", "payload")
	if d := cmp.Diff(map[string]string{"traceparent": "00-abc-def-01", "tracestate": "a=1"}, got[0].Headers); d != "" {
		t.Errorf("without own headers (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"Traceparent": "mine", "other": "x", "tracestate": "a=1"}, got[1].Headers); d != "" {
		t.Errorf("with own headers (-want +got):\n%s", d)
	}
	if plain.Headers != nil || len(own.Headers) != 2 {
		t.Errorf("the caller's maps were changed: %v, %v", plain.Headers, own.Headers)
	}
}

func TestWriterIsSafeForConcurrentUse(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	w := &outbox.Writer{Trace: func(context.Context) map[string]string { return map[string]string{"a": "b"} }}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					return w.Write(t.Context(), tx, user(strconv.Itoa(i), `{}`), user(strconv.Itoa(i), `{}`))
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := len(stored(t, begin(t, pool), "outbox_events", "payload")); got != 8*20*2 {
		t.Errorf("got %d events, want %d", got, 8*20*2)
	}
}

// recorder is a transaction that only remembers what it was asked to do.
type recorder struct {
	calls int
	sql   string
	args  []any
	tag   pgconn.CommandTag
	err   error
}

func (r *recorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r.calls++
	r.sql, r.args = sql, args
	return r.tag, r.err
}
func (r *recorder) Commit(context.Context) error   { return nil }
func (r *recorder) Rollback(context.Context) error { return nil }

func TestWriteSendsOneStatement(t *testing.T) {
	var w outbox.Writer
	for n, calls := range map[int]int{0: 0, 1: 1, 2: 1, 1000: 1} {
		tx := &recorder{}
		events := make([]*outbox.Event, n)
		for i := range events {
			events[i] = user("1", `{}`)
		}
		if err := w.Write(t.Context(), tx, events...); err != nil {
			t.Fatal(err)
		}
		if tx.calls != calls {
			t.Errorf("%d events: %d statements, want %d", n, tx.calls, calls)
		}
		if n > 0 && len(tx.args) != 6 {
			t.Errorf("%d events: %d arguments, want 6", n, len(tx.args))
		}
	}
}

func TestWriteNoticesRowsThatVanish(t *testing.T) {
	var w outbox.Writer
	err := w.Write(t.Context(), &recorder{tag: pgconn.NewCommandTag("INSERT 0 1")}, user("1", `{}`), user("2", `{}`))
	if err == nil || !strings.Contains(err.Error(), "took 1") {
		t.Errorf("got %v, want an error: the table took 1 of 2", err)
	}
}

func TestWriterTable(t *testing.T) {
	tx := &recorder{}
	w := outbox.Writer{Table: `Sales."Out.box"`}
	if err := w.Write(t.Context(), tx, user("1", `{}`)); err != nil {
		t.Fatal(err)
	}
	if want := `INSERT INTO "Sales"."Out.box" (`; !strings.HasPrefix(tx.sql, want) {
		t.Errorf("got %s, want it to begin with %s", tx.sql, want)
	}

	pool := newOutbox(t, migrate.Options{Table: "Order"})
	w = outbox.Writer{Table: "Order"}
	real := begin(t, pool)
	if err := w.Write(t.Context(), real, user("1", `{}`), user("2", `{}`)); err != nil {
		t.Fatal(err)
	}
	if got := len(stored(t, real, `"Order"`, "payload")); got != 2 {
		t.Errorf("got %d events, want 2", got)
	}
}

func TestWriterSettings(t *testing.T) {
	w := outbox.Writer{Table: "a.b.c", Payload: "xml", MaxPayload: -1}
	tx := &recorder{}
	for _, events := range [][]*outbox.Event{nil, {user("1", `{}`)}} {
		err := w.Write(t.Context(), tx, events...)
		if err == nil || tx.calls != 0 {
			t.Fatalf("got %v and %d statements, want an error and none", err, tx.calls)
		}
		for _, want := range []string{"a.b.c", `"xml"`, "MaxPayload is -1"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v: does not say %s", err, want)
			}
		}
	}
}
