package store_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/window"
	"github.com/commitrelay/outbox/migrate"
)

// Pages are cut by bytes, events never. A page that is broken off costs its connection, and nothing else.
func TestPagesAreCutByBytes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	for _, c := range []struct {
		name     string
		size     func(i int) int
		n        int
		maxPages int
		minPages int
	}{
		{"all small", func(int) int { return 10 }, 500, 10, 5},
		{"all bigger than a page", func(int) int { return 150_000 }, 12, 14, 12},
		{"some bigger than a page", func(i int) int { return 10 + 300_000*(i%10/9) }, 60, 40, 6},
		{"many that fill a page together", func(int) int { return 20_000 }, 100, 40, 20},
		{"one huge one between small ones", func(i int) int { return 10 + 8_000_000*(i/50) }, 51, 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.exec(t, "TRUNCATE outbox_events RESTART IDENTITY")
			sizes := make([]int, c.n)
			for i := range sizes {
				sizes[i] = c.size(i)
			}
			d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, headers)
				SELECT 'a', i - 1, 't', to_json(repeat('x', size)), jsonb_build_object('n', (i - 1)::text)
				FROM unnest($1::int[]) WITH ORDINALITY AS e (size, i) ORDER BY i`, sizes)
			events, pages := d.read(t, 100, 100_000)
			if len(events) != c.n {
				t.Fatalf("%d events, want %d", len(events), c.n)
			}
			for i, e := range events {
				if e.AggregateID != fmt.Sprint(i) || e.Headers["n"] != e.AggregateID || string(e.Payload) != `"`+strings.Repeat("x", c.size(i))+`"` {
					t.Errorf("event %d is %s with %d bytes of payload and headers %v, want %d bytes", i, e.AggregateID, len(e.Payload), e.Headers, c.size(i)+2)
				}
			}
			if pages < c.minPages || pages > c.maxPages {
				t.Errorf("%d pages, want %d to %d", pages, c.minPages, c.maxPages)
			}
			// The pool closes those that were broken off in the background.
			testwait.Until(t, "all connections to be given back", func() bool { return d.pool.Stat().AcquiredConns() == 0 })
			if got := get[int](t, d.pool, "SELECT count(*) FROM outbox_events"); got != c.n {
				t.Errorf("the pool's next statement says %d", got)
			}
		})
	}
}

// payloads by type: what is written, as SQL, and what is to be delivered. Both are the same text where want is empty.
var payloads = map[outbox.PayloadType][]struct{ sql, want string }{
	outbox.PayloadJSON: {
		{sql: `{"i":1234567890123456789,"d":0.1234567890123456789012345,"t":1.10,"e":1e400,"n":-0}`},
		{sql: ` {"b" : 1,  "a":[ 2 ], "b":3} `},
		{sql: `null`},
		{sql: `""`},
		{sql: `{}`},
		{sql: `[]`},
		{sql: `"\u0000 \ud83d\ude00 \\u0000"`},
		{sql: `"é😀"`},
	},
	outbox.PayloadJSONB: {
		{
			sql:  `{"i":1234567890123456789,"d":0.1234567890123456789012345,"t":1.10,"n":-0}`,
			want: `{"d": 0.1234567890123456789012345, "i": 1234567890123456789, "n": 0, "t": 1.10}`,
		},
		{sql: `{"b":1,"a":2,"b":3}`, want: `{"a": 2, "b": 3}`},
		{sql: `null`},
		{sql: `""`},
		{sql: `{}`},
		{sql: `[]`},
		{sql: `"é😀"`},
	},
	outbox.PayloadText: {
		{sql: ``}, {sql: `plain`}, {sql: " spaced \n\t"}, {sql: `null`}, {sql: `\x00`}, {sql: `é😀`}, {sql: strings.Repeat("long ", 20_000)},
	},
	outbox.PayloadBytea: {
		{sql: ``},
		{sql: `\x00`, want: "\x00"},
		{sql: `\xff00fe`, want: "\xff\x00\xfe"},
		{sql: `plain`},
		{sql: `\x7b7d`, want: "{}"},
		{sql: `\x` + strings.Repeat("00ff0a", 30_000), want: strings.Repeat("\x00\xff\x0a", 30_000)},
	},
}

// Payloads come as the server keeps them, byte for byte, and NULL is not the same as nothing; from the events table, and
// from a parked row as well.
func TestPayloads(t *testing.T) {
	for kind, list := range payloads {
		t.Run(string(kind), func(t *testing.T) {
			d := newDB(t, migrate.Options{Payload: kind})
			insert := "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', '', 't', $1::text::" + string(kind) + ")"
			var want []string
			for _, p := range list {
				d.exec(t, insert, p.sql)
				if p.want == "" {
					p.want = p.sql
				}
				want = append(want, p.want)
			}
			d.exec(t, insert, nil)

			check := func(from string, i int, payload []byte) {
				t.Helper()
				switch {
				case i == len(want):
					if payload != nil {
						t.Errorf("%s: NULL came as %q", from, payload)
					}
				case payload == nil || string(payload) != want[i]:
					t.Errorf("%s: payload %d (nil: %v) is %.80q, want %.80q", from, i, payload == nil, payload, want[i])
				}
			}
			events, _ := d.read(t, 1, 1<<20)
			if len(events) != len(want)+1 {
				t.Fatalf("%d events, want %d", len(events), len(want)+1)
			}
			var parked []store.Parking
			for i, e := range events {
				check("page", i, e.Payload)
				parked = append(parked, parking(e))
			}
			d.storeLane(t, d.load(t), parked...)
			claimed, err := d.store.ClaimParked(t.Context(), d.lane, []store.Key{store.KeyOf(&events[0].Event)}, 100, 1<<30)
			if err != nil || len(claimed) != len(events) {
				t.Fatalf("claimed %d of %d parked events: %v", len(claimed), len(events), err)
			}
			for i, e := range claimed {
				check("parked", i, e.Payload)
				if e.Seq != events[i].Seq || e.ID != events[i].ID || e.Type != "t" || !e.CreatedAt.Equal(events[i].CreatedAt) {
					t.Errorf("parked event %d is %+v, want %+v", i, e.Event, events[i])
				}
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	d := newDB(t, migrate.Options{})
	for _, headers := range []any{
		nil, `{}`, `{"a":"b","":"empty name"}`,
		`{"n":1.10,"big":12345678901234567890,"t":true,"z":null,"o":{"k":[1,"x"]},"s":"é\"\n","e":""}`,
	} {
		d.exec(t, "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('a', 'k', 't', '1', $1::text::jsonb)", headers)
	}
	want := []map[string]string{
		nil,
		{},
		{"a": "b", "": "empty name"},
		{"n": "1.10", "big": "12345678901234567890", "t": "true", "z": "null", "o": `{"k": [1, "x"]}`, "s": "é\"\n", "e": ""},
	}
	events, _ := d.read(t, 100, 1<<20)
	var parked []store.Parking
	for i, e := range events {
		if !maps.Equal(e.Headers, want[i]) || (e.Headers == nil) != (want[i] == nil) {
			t.Errorf("headers %d are %q, want %q", i, e.Headers, want[i])
		}
		parked = append(parked, parking(e))
	}
	d.storeLane(t, d.load(t), parked...)
	claimed, err := d.store.ClaimParked(t.Context(), d.lane, []store.Key{{AggregateType: "a", AggregateID: "k"}}, 100, 1<<20)
	if err != nil || len(claimed) != len(want) {
		t.Fatalf("claimed %d: %v", len(claimed), err)
	}
	for i, e := range claimed {
		if !maps.Equal(e.Headers, want[i]) {
			t.Errorf("headers %d of a parked event are %q, want %q", i, e.Headers, want[i])
		}
	}
}

// The ends of time are not the end of delivery.
func TestCreatedAt(t *testing.T) {
	d := newDB(t, migrate.Options{})
	latest := time.Date(294276, 12, 31, 23, 59, 59, 999999000, time.UTC)
	earliest := time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC)
	list := []struct {
		sql  string
		want time.Time
	}{
		{"infinity", latest},
		{"-infinity", earliest},
		{"4714-11-24 00:00:00+00 BC", earliest},
		{"294276-12-31 23:59:59.999999+00", latest},
		{"2000-01-01 00:00:00+00", time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{"1999-12-31 23:59:59.999999+00", time.Date(1999, 12, 31, 23, 59, 59, 999999000, time.UTC)},
		{"1969-12-31 23:59:59.5+00", time.Date(1969, 12, 31, 23, 59, 59, 500000000, time.UTC)},
		{"2026-11-29 21:30:15.123456+05:30", time.Date(2026, 11, 29, 16, 0, 15, 123456000, time.UTC)},
		{"0044-03-15 12:00:00+00 BC", time.Date(-43, 3, 15, 12, 0, 0, 0, time.UTC)},
	}
	for _, c := range list {
		d.exec(t, "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, created_at) VALUES ('a', 'k', 't', $1::text::timestamptz)", c.sql)
	}
	events, _ := d.read(t, 100, 1<<20)
	var parked []store.Parking
	for i, e := range events {
		if !e.CreatedAt.Equal(list[i].want) || e.CreatedAt.Location() != time.UTC {
			t.Errorf("%s came as %v, want %v", list[i].sql, e.CreatedAt, list[i].want)
		}
		parked = append(parked, parking(e))
	}
	d.storeLane(t, d.load(t), parked...)
	claimed, err := d.store.ClaimParked(t.Context(), d.lane, []store.Key{{AggregateType: "a", AggregateID: "k"}}, 100, 1<<20)
	if err != nil || len(claimed) != len(list) {
		t.Fatalf("claimed %d: %v", len(claimed), err)
	}
	for i, e := range claimed {
		if !e.CreatedAt.Equal(list[i].want) {
			t.Errorf("%s came from a parked row as %v, want %v", list[i].sql, e.CreatedAt, list[i].want)
		}
	}
}

// A reader that has met huge events asks for few at a time, and for more again when they are small.
func TestPageSizeAdapts(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'a', g::text, 't', to_json(repeat('x', CASE WHEN g <= 100 THEN 50000 ELSE 10 END)) FROM generate_series(1, 3000) AS g`)
	w := d.window(t)
	src := d.store.NewReader(nil, nil, 1, 1000, 500_000)
	var sizes []int
	for p := int64(0); ; {
		events, more, err := src.Page(t.Context(), w, []int{0}, p, w.To.H)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(events))
		if !more {
			break
		}
		p = events[len(events)-1].Seq
	}
	for i, n := range sizes {
		if i < 9 && n > 11 {
			t.Errorf("page %d of huge events has %d of them: %v", i, n, sizes)
		}
	}
	if last := sizes[len(sizes)-2]; last < 500 {
		t.Errorf("pages of small events have %d of them in the end: %v", last, sizes)
	}
}

func TestPageNamesWhatFailed(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "k", "x")
	w := d.window(t)
	d.exec(t, "DROP TABLE outbox_events CASCADE")
	_, _, err := d.store.NewReader(nil, nil, 1, 10, 1<<20).Page(t.Context(), w, []int{0}, 0, w.To.H)
	if err == nil || !strings.HasPrefix(err.Error(), "page: ") || store.Transient(err) {
		t.Errorf("error %v (transient: %v); want one that names the statement and needs a person", err, store.Transient(err))
	}
	if n := d.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are not given back", n)
	}
}

// Pages hold the events of the lanes asked for, each with its lane, and no others.
func TestPagesOfLanes(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 't' || g % 3, 'key ' || g, 't', '1' FROM generate_series(1, 3000) AS g`)
	ordinary := d.window(t)
	caughtUp := *ordinary
	caughtUp.CatchUp = &window.CatchUp{Snapshot: "3:3:"}
	for _, n := range []int{1, 2, 16, 1024} {
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		for _, lanes := range [][]int{all, {0}, {n - 1}, {n / 2}, all[:(n+1)/2], all[n/3:]} {
			want := map[int64]int{}
			rows, err := d.pool.Query(t.Context(), `SELECT seq, lane FROM (
				SELECT seq, (hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & ($1 - 1))::int AS lane FROM outbox_events) AS e WHERE lane = ANY ($2)`, n, lanes)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var seq int64
				var lane int
				if err := rows.Scan(&seq, &lane); err != nil {
					t.Fatal(err)
				}
				want[seq] = lane
			}
			for _, w := range []*window.Window{ordinary, &caughtUp} {
				src := d.store.NewReader(nil, nil, n, 700, 1<<20)
				got := map[int64]int{}
				p := int64(0)
				for more := true; more; {
					var page []window.Event
					if page, more, err = src.Page(t.Context(), w, lanes, p, w.To.H); err != nil {
						t.Fatal(err)
					}
					for _, e := range page {
						if e.Seq <= p {
							t.Fatalf("seq %d after %d", e.Seq, p)
						}
						got[e.Seq], p = e.Lane, e.Seq
					}
				}
				if !maps.Equal(got, want) {
					t.Errorf("%d lanes, %d of them wanted from %d on, catch-up %v: %d events, want %d", n, len(lanes), lanes[0], w.CatchUp != nil, len(got), len(want))
				}
			}
		}
	}
}
