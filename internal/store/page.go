package store

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/window"
)

// Reader reads the events that one subscription wants. It is not safe for concurrent use.
type Reader struct {
	*Store
	types, events string // LIKE patterns, as array literals
	lanes         int    // how many the subscription has
	maxRows       int
	maxBytes      int

	rows  int               // how many to ask for next
	names map[string]string // aggregate and event types seen: they repeat
}

// maxNames bounds the names a reader remembers.
const maxNames = 4096

// NewReader reads pages of a subscription with so many lanes, of at most maxRows events and, but for the last of them, maxBytes bytes. The lists hold exact
// names or prefixes that end in '*'; an empty one wants all.
func (s *Store) NewReader(aggregateTypes, eventTypes []string, lanes, maxRows, maxBytes int) *Reader {
	return &Reader{
		Store: s, lanes: lanes, types: patterns(aggregateTypes), events: patterns(eventTypes),
		maxRows: maxRows, maxBytes: maxBytes, rows: min(maxRows, 100), names: map[string]string{},
	}
}

// patterns makes a PostgreSQL array literal of LIKE patterns.
func patterns(names []string) string {
	like := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(names))
	for i, n := range names {
		prefix, isPrefix := strings.CutSuffix(n, "*")
		p := like.Replace(prefix)
		if isPrefix {
			p += "%"
		}
		quoted[i] = `"` + quote.Replace(p) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// NextSeq returns the lowest number above p, or false.
func (s *Store) NextSeq(ctx context.Context, p int64) (seq int64, found bool, err error) {
	found, err = s.row(ctx, s.pool, "next_seq", []any{p}, &seq)
	return seq, found, err
}

// Page reads events of w that belong to lanes, with numbers above p and up to hi. It asks for as many rows as lately fitted into maxBytes, and
// breaks off when they do not: the connection is closed then, which costs less than reading on.
func (r *Reader) Page(ctx context.Context, w *window.Window, lanes []int, p, hi int64) (events []window.Event, more bool, err error) {
	name, params := "page", [][]byte{num(p), num(hi)}
	if c := w.CatchUp; c != nil {
		name = "catch_up_page"
		settled := c.SettledSnapshot
		if settled == "" {
			settled = "3:3:"
		}
		params = append(params, []byte(c.Snapshot), num(c.H), []byte(settled), num(c.SettledP))
	} else {
		params = append(params, []byte(w.From.Snapshot.String()), []byte(w.To.Snapshot.String()))
	}
	asked := r.rows
	params = append(params, []byte(r.types), []byte(r.events), num(int64(asked)), num(int64(r.lanes)), r.wanted(lanes))

	err = repeat(ctx, r.pool, name, func() error {
		events, more, err = r.read(ctx, name, params, asked)
		return err
	})
	return events, more || err == nil && len(events) == asked, err
}

// read runs the page's statement. more says that it was broken off.
func (r *Reader) read(ctx context.Context, name string, params [][]byte, asked int) (events []window.Event, more bool, err error) {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return nil, false, err
	}
	defer conn.Release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// One transaction, and one way there and back.
	pipeline := conn.Conn().PgConn().StartPipeline(ctx)
	defer func() { _ = pipeline.Close() }() // its error is that of the results
	pipeline.SendQueryParams(r.sql["in_order"], nil, nil, nil, nil)
	pipeline.SendQueryParams(r.sql[name], params, nil, nil, []int16{1})
	if err := pipeline.Sync(); err != nil {
		return nil, false, err
	}
	var rr *pgconn.ResultReader
	for range 2 {
		results, err := pipeline.GetResults()
		if err != nil {
			return nil, false, err
		}
		rr = results.(*pgconn.ResultReader)
	}
	a := arena{names: r.names, buf: []byte{}} // not nil: an empty payload is not NULL
	for rr.NextRow() {
		a.add(rr.Values())
		if a.size() >= r.maxBytes {
			more = true
			if len(a.rows) < asked {
				cancel()
			}
			break
		}
	}
	fields := rr.FieldDescriptions()
	if _, err := rr.Close(); err != nil && !more {
		return nil, false, err
	}
	if events, err = a.events(fields); err != nil {
		return nil, false, err
	}
	r.adapt(len(events), a.size(), more)
	return events, more, nil
}

// wanted is an array literal of which lanes are asked for, nil if all are.
func (r *Reader) wanted(lanes []int) []byte {
	if len(lanes) == r.lanes {
		return nil
	}
	literal := []byte("{" + strings.Repeat("f,", r.lanes-1) + "f}")
	for _, lane := range lanes {
		literal[1+2*lane] = 't'
	}
	return literal
}

// adapt chooses how many rows to ask for next: as many as fit, growing by no more than twice.
func (r *Reader) adapt(rows, size int, broke bool) {
	switch {
	case broke:
		r.rows = max(rows, 1)
	case rows > 0:
		fit := r.maxBytes / max(size/rows, 1)
		r.rows = max(1, min(r.maxRows, fit, 2*r.rows))
	}
}

func num(n int64) []byte { return strconv.AppendInt(nil, n, 10) }

// arena holds the rows of a page in two pieces of memory. Their parts are cut out of it at the end: it moves as it grows.
type arena struct {
	buf   []byte // payloads and headers
	ids   []byte // aggregate ids
	rows  []rawEvent
	names map[string]string
}

type rawEvent struct {
	seq     int64
	created int64
	lane    int
	id      outbox.ID
	aggType string
	evType  string
	aggID   [2]int
	payload [2]int // from < 0: NULL
	headers [2]int
}

func (a *arena) size() int { return len(a.buf) + len(a.ids) + 64*len(a.rows) }

// add copies one row, in PostgreSQL's binary formats.
func (a *arena) add(v [][]byte) {
	e := rawEvent{
		seq:     int64(binary.BigEndian.Uint64(v[0])),
		created: int64(binary.BigEndian.Uint64(v[7])),
		lane:    int(binary.BigEndian.Uint32(v[8])),
		aggType: a.name(v[2]),
		evType:  a.name(v[4]),
		aggID:   [2]int{len(a.ids), len(a.ids) + len(v[3])},
		payload: a.put(v[5]),
		headers: a.put(v[6]),
	}
	copy(e.id[:], v[1])
	a.ids = append(a.ids, v[3]...)
	a.rows = append(a.rows, e)
}

func (a *arena) put(b []byte) [2]int {
	if b == nil {
		return [2]int{-1, -1}
	}
	at := len(a.buf)
	a.buf = append(a.buf, b...)
	return [2]int{at, len(a.buf)}
}

func (a *arena) name(b []byte) string {
	if s, ok := a.names[string(b)]; ok {
		return s
	}
	if len(a.names) >= maxNames {
		clear(a.names)
	}
	s := string(b)
	a.names[s] = s
	return s
}

func (a *arena) events(fields []pgconn.FieldDescription) ([]window.Event, error) {
	if len(a.rows) == 0 {
		return nil, nil
	}
	jsonb := fields[5].DataTypeOID == pgtype.JSONBOID
	events := make([]window.Event, len(a.rows))
	ids := string(a.ids)
	for i, raw := range a.rows {
		e := &events[i]
		e.Seq, e.Lane = raw.seq, raw.lane
		e.CreatedAt = timestamp(raw.created)
		e.ID = raw.id
		e.AggregateType, e.Type = raw.aggType, raw.evType
		e.AggregateID = ids[raw.aggID[0]:raw.aggID[1]]
		if raw.payload[0] >= 0 {
			from := raw.payload[0]
			if jsonb {
				from++ // the version of the format
			}
			e.Payload = a.buf[from:raw.payload[1]:raw.payload[1]]
		}
		if raw.headers[0] >= 0 {
			var err error
			if e.Headers, err = parseHeaders(a.buf[raw.headers[0]+1 : raw.headers[1]]); err != nil {
				return nil, fmt.Errorf("event %s (seq %d): headers: %w", raw.id, raw.seq, err)
			}
		}
	}
	return events, nil
}

// parseHeaders reads a JSON object. What is not a string in it, as plain SQL may write, becomes its JSON text.
func parseHeaders(b []byte) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	headers := make(map[string]string, len(raw))
	for k, v := range raw {
		var s string
		if v[0] != '"' || json.Unmarshal(v, &s) != nil {
			s = string(v)
		}
		headers[k] = s
	}
	return headers, nil
}

// The ends of PostgreSQL's timestamp range stand in for its infinities.
var (
	postgresEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	earliest      = time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC)
	latest        = time.Date(294276, 12, 31, 23, 59, 59, 999999000, time.UTC)
)

// timestamp reads a timestamptz: microseconds since 2000.
func timestamp(us int64) time.Time {
	switch us {
	case math.MaxInt64:
		return latest
	case math.MinInt64:
		return earliest
	}
	return time.Unix(postgresEpoch.Unix()+us/1e6, us%1e6*1e3).UTC()
}
