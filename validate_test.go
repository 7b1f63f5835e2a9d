package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/migrate"
)

// faultsOf are the faults that an error of Write holds.
func faultsOf(t *testing.T, err error) []outbox.FaultError {
	t.Helper()
	var found []outbox.FaultError
	var walk func(err error)
	walk = func(err error) {
		switch err := err.(type) { //nolint:errorlint // it walks the tree that errors.As walks
		case *outbox.FaultError:
			found = append(found, *err)
		case interface{ Unwrap() []error }:
			for _, e := range err.Unwrap() {
				walk(e)
			}
		case interface{ Unwrap() error }:
			walk(err.Unwrap())
		}
	}
	walk(err)
	return found
}

func TestFaults(t *testing.T) {
	const nul = "\x00"
	for _, c := range []struct {
		name   string
		writer outbox.Writer
		change func(e *outbox.Event)
		field  string // empty: valid
		offset int
		reason string
	}{
		{name: "no aggregate type", change: func(e *outbox.Event) { e.AggregateType = "" }, field: "aggregate_type", offset: -1, reason: "is empty"},
		{name: "no aggregate id", change: func(e *outbox.Event) { e.AggregateID = "" }, field: "aggregate_id", offset: -1, reason: "is empty"},
		{name: "no type", change: func(e *outbox.Event) { e.Type = "" }, field: "event_type", offset: -1, reason: "is empty"},
		{name: "longest type", change: func(e *outbox.Event) { e.Type = strings.Repeat("x", 255) }},
		{name: "type too long", change: func(e *outbox.Event) { e.Type = strings.Repeat("é", 128) }, field: "event_type", offset: -1, reason: "has 256 bytes, at most 255 are allowed"},
		{name: "zero byte in a name", change: func(e *outbox.Event) { e.AggregateID = "a" + nul }, field: "aggregate_id", offset: 1, reason: "holds a zero byte"},
		{name: "bad UTF-8 in a name", change: func(e *outbox.Event) { e.AggregateID = "aé\xff" }, field: "aggregate_id", offset: 3, reason: "is not valid UTF-8"},
		{name: "replacement character in a name", change: func(e *outbox.Event) { e.AggregateID = "a\uFFFD" }},
		{name: "line feed in a name", change: func(e *outbox.Event) { e.AggregateID = "a\nb" }, field: "aggregate_id", offset: 1, reason: "holds a control character"},
		{name: "space around a name", change: func(e *outbox.Event) { e.AggregateID = "a " }, field: "aggregate_id", offset: -1, reason: "has a space at its end, which NATS and HTTP would take away"},
		{name: "spaces in a name", change: func(e *outbox.Event) { e.AggregateID = "a  b" }},

		{name: "no payload", change: func(e *outbox.Event) { e.Payload = nil }},
		{name: "empty JSON", change: func(e *outbox.Event) { e.Payload = []byte{} }, field: "payload", offset: 0, reason: "is not valid JSON: the text ends too early"},
		{name: "bad JSON", change: func(e *outbox.Event) { e.Payload = []byte(`{"a":}`) }, field: "payload", offset: 5, reason: "is not valid JSON: expected a value"},
		{name: "two values", change: func(e *outbox.Event) { e.Payload = []byte(`1 2`) }, field: "payload", offset: 2, reason: "is not valid JSON: there is more after the end of the value"},
		{name: "U+0000 in json", change: func(e *outbox.Event) { e.Payload = []byte(`{"a":"\u0000"}`) }, field: "payload", offset: 6, reason: `holds \u0000`},
		{name: "U+0000 in jsonb", writer: outbox.Writer{Payload: outbox.PayloadJSONB}, change: func(e *outbox.Event) { e.Payload = []byte(`{"a":"\u0000"}`) }, field: "payload", offset: 6, reason: `holds \u0000`},
		{name: "harmless text", change: func(e *outbox.Event) { e.Payload = []byte(`{"a":"\\u0000"}`) }},
		{name: "surrogate", change: func(e *outbox.Event) { e.Payload = []byte(`{"a":"\ud800"}`) }, field: "payload", offset: 6, reason: `holds half of a surrogate pair`},
		{name: "bad UTF-8 in JSON", change: func(e *outbox.Event) { e.Payload = []byte("{\"a\":\"\xc3\"}") }, field: "payload", offset: 6, reason: "holds a byte that is not UTF-8"},
		{name: "number in json", change: func(e *outbox.Event) { e.Payload = []byte(`1e200000`) }},
		{name: "number in jsonb", writer: outbox.Writer{Payload: outbox.PayloadJSONB}, change: func(e *outbox.Event) { e.Payload = []byte(`1e200000`) }, field: "payload", offset: 0, reason: "holds a number outside the range of numeric, which jsonb keeps it in"},
		{name: "zero byte in text", writer: outbox.Writer{Payload: outbox.PayloadText}, change: func(e *outbox.Event) { e.Payload = []byte("a" + nul) }, field: "payload", offset: 1, reason: "holds a zero byte, which a text column cannot"},
		{name: "bad UTF-8 in text", writer: outbox.Writer{Payload: outbox.PayloadText}, change: func(e *outbox.Event) { e.Payload = []byte("ab\xff") }, field: "payload", offset: 2, reason: "is not valid UTF-8"},
		{name: "anything in bytea", writer: outbox.Writer{Payload: outbox.PayloadBytea}, change: func(e *outbox.Event) { e.Payload = []byte("\x00\xff") }},
		{name: "largest", change: func(e *outbox.Event) { e.Payload = []byte(`"` + strings.Repeat("x", 999_998) + `"`) }},
		{name: "too large", change: func(e *outbox.Event) { e.Payload = []byte(`"` + strings.Repeat("x", 999_999) + `"`) }, field: "payload", offset: -1, reason: "has 1000001 bytes, Writer.MaxPayload allows 1000000"},
		{name: "as large as allowed", writer: outbox.Writer{MaxPayload: 3}, change: func(e *outbox.Event) { e.Payload = []byte(`123`) }},
		{name: "larger than allowed", writer: outbox.Writer{MaxPayload: 3}, change: func(e *outbox.Event) { e.Payload = []byte(`1234`) }, field: "payload", offset: -1, reason: "has 4 bytes, Writer.MaxPayload allows 3"},
		{
			name: "small, but jsonb prints it large", writer: outbox.Writer{Payload: outbox.PayloadJSONB},
			change: func(e *outbox.Event) { e.Payload = []byte(`[` + strings.Repeat(`1e131071,`, 9) + `1]`) },
			field:  "payload", offset: -1, reason: "has up to 1179669 bytes as jsonb prints it (numbers without exponents), 1000000 are allowed",
		},

		{name: "header", change: headers("x-Header_1.~", "any value, é")},
		{name: "no header name", change: headers("", "v"), field: `headers[""]`, offset: -1, reason: "has no name"},
		{name: "header name too long", change: headers(strings.Repeat("x", 256), "v"), field: `headers["` + strings.Repeat("x", 40) + `"]`, offset: -1, reason: "has a name of 256 bytes, at most 255 are allowed"},
		{name: "colon in a header name", change: headers("a:b", "v"), field: `headers["a:b"]`, offset: -1, reason: "has a name with other characters than letters, digits and !#$%&'*+-.^_`|~"},
		{name: "space in a header name", change: headers("a b", "v"), field: `headers["a b"]`, offset: -1, reason: "has a name with other characters than letters, digits and !#$%&'*+-.^_`|~"},
		{name: "letter in a header name", change: headers("größe", "v"), field: `headers["größe"]`, offset: -1, reason: "has a name with other characters than letters, digits and !#$%&'*+-.^_`|~"},
		{name: "reserved header", change: headers("Outbox-Id", "v"), field: `headers["Outbox-Id"]`, offset: -1, reason: `is reserved: names that begin with "outbox-" are the relay's own`},
		{name: "line feed in a header", change: headers("a", "v\r\nb: c"), field: `headers["a"]`, offset: 1, reason: "holds a control character"},
		{name: "zero byte in a header", change: headers("a", nul), field: `headers["a"]`, offset: 0, reason: "holds a zero byte"},
		{name: "bad UTF-8 in a header", change: headers("a", "\xff"), field: `headers["a"]`, offset: 0, reason: "is not valid UTF-8"},
		{name: "space before a header", change: headers("a", " v"), field: `headers["a"]`, offset: -1, reason: "has a space at its end, which NATS and HTTP would take away"},
		{name: "most headers", change: headers("a", strings.Repeat("v", 16384-5))},
		{name: "too many headers", change: headers("a", strings.Repeat("v", 16384-4)), field: "headers", offset: -1, reason: "have 16385 bytes, at most 16384 are allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := user("1", `{}`)
			c.change(e)
			tx := &recorder{}
			err := c.writer.Write(t.Context(), tx, user("0", "1"), e)
			if c.field == "" {
				if err != nil || tx.calls != 1 {
					t.Errorf("got %v, want it written", err)
				}
				return
			}
			got := faultsOf(t, err)
			for i := range got {
				got[i].Path = ""
			}
			if d := cmp.Diff([]outbox.FaultError{{Index: 1, Field: c.field, Offset: c.offset, Reason: c.reason}}, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if tx.calls != 0 || !e.ID.IsZero() {
				t.Errorf("%d statements were sent, the id is %v", tx.calls, e.ID)
			}
		})
	}
}

func headers(name, value string) func(e *outbox.Event) {
	return func(e *outbox.Event) { e.Headers = map[string]string{name: value} }
}

func TestAllFaultsAtOnce(t *testing.T) {
	same := user("1", `{}`)
	twice := outbox.NewID()
	first, second := user("2", `{}`), user("3", `{}`)
	first.ID, second.ID = twice, twice
	events := []*outbox.Event{
		same, nil, first, second, same,
		{AggregateType: "user\x00", Payload: []byte(`{"name":"a\u0000","tags":["\ud800"]}`), Headers: map[string]string{"b c": "\n", "outbox-id": "1"}},
	}
	tx := &recorder{}
	var w outbox.Writer
	err := w.Write(t.Context(), tx, events...)
	want := strings.TrimSpace(`
write events: nothing was sent: event 1: is nil
event 3: id is that of event 2
event 4: is the same *Event as event 0
event 5: aggregate_type (byte 4) holds a zero byte
event 5: aggregate_id is empty
event 5: event_type is empty
event 5: payload at $.name (byte 10) holds \u0000
event 5: payload at $.tags[0] (byte 27) holds half of a surrogate pair
event 5: headers["b c"] has a name with other characters than letters, digits and !#$%&'*+-.^_` + "`" + `|~
event 5: headers["b c"] (byte 0) holds a control character
event 5: headers["outbox-id"] is reserved: names that begin with "outbox-" are the relay's own
`)
	if d := cmp.Diff(want, err.Error()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var fault *outbox.FaultError
	if !errors.As(err, &fault) || fault.Index != 1 {
		t.Errorf("errors.As found %+v, want the fault of event 1", fault)
	}
	if tx.calls != 0 || !same.ID.IsZero() {
		t.Errorf("%d statements were sent, the id is %v", tx.calls, same.ID)
	}
}

func TestFaultsTellNoSecrets(t *testing.T) {
	const canary = "canary"
	e := &outbox.Event{
		AggregateType: "user", AggregateID: canary + "\x00", Type: canary + "\n",
		Payload: []byte(`{"a":"` + canary + `\u0000"}`), Headers: map[string]string{"authorization": canary + "\x00"},
	}
	var w outbox.Writer
	err := w.Write(t.Context(), &recorder{}, e)
	if n := len(faultsOf(t, err)); n != 4 || strings.Contains(err.Error(), canary) {
		t.Errorf("%d faults, want 4 and no word of what the event says: %v", n, err)
	}
}

func TestTooMuchForOneCall(t *testing.T) {
	big := make([]byte, 1<<20)
	events := make([]*outbox.Event, 256)
	for i := range events {
		events[i] = &outbox.Event{AggregateType: "user", AggregateID: "1", Type: "UserCreated", Payload: big}
	}
	w := outbox.Writer{Payload: outbox.PayloadBytea, MaxPayload: 1 << 20}
	tx := &recorder{}
	err := w.Write(t.Context(), tx, events...)
	if err == nil || !strings.Contains(err.Error(), "at most 268435456 are allowed in one call") || tx.calls != 0 {
		t.Errorf("got %v, want it refused: too much for one call", err)
	}
}

// After a fault the caller may go on: nothing was sent.
func TestTransactionIsUsableAfterFaults(t *testing.T) {
	pool := newOutbox(t, migrate.Options{Payload: outbox.PayloadJSONB})
	tx := begin(t, pool)
	if _, err := tx.Exec(t.Context(), `CREATE TEMP TABLE users (name text)`); err != nil {
		t.Fatal(err)
	}
	batch := make([]*outbox.Event, 10)
	for i := range batch {
		batch[i] = user("1", `{"name": "\\u0000"}`)
	}
	w := outbox.Writer{Payload: outbox.PayloadJSONB}
	for _, bad := range []string{`"\u0000"`, `"\ud800"`, "\"\xff\"", `1e400000`} {
		batch[4].Payload = []byte(`{"name": ` + bad + `}`)
		err := w.Write(t.Context(), tx, batch...)
		var fault *outbox.FaultError
		if !errors.As(err, &fault) || fault.Index != 4 || fault.Field != "payload" || fault.Path != "$.name" {
			t.Fatalf("%q: got %v, want a fault of event 4 at $.name", bad, err)
		}
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO users VALUES ('x')`); err != nil {
		t.Fatalf("the transaction is not usable after faults: %v", err)
	}
	batch[4].Payload = []byte(`{"name": "\\u0000"}`)
	if err := w.Write(t.Context(), tx, batch...); err != nil {
		t.Fatal(err)
	}
	for i, e := range stored(t, tx, "outbox_events", "convert_to(payload::text, 'UTF8')") {
		if string(e.Payload) != `{"name": "\\u0000"}` {
			t.Errorf("event %d: got %s, want it unchanged", i, e.Payload)
		}
	}
}
