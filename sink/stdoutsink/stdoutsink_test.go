package stdoutsink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		var out buffer
		return sinktest.Destination{
			Sink: New(&out), Topic: "any topic at all", Arrived: out.arrived, Carried: compact,
			Refusals: []sinktest.Refusal{{
				Name: "no UTF-8", Outcome: "permanent", Reason: []string{"UTF-8", "header"},
				Spoil: func(m *relay.Message) { m.Event.Headers = map[string]string{"a": "\xff"} },
			}},
		}
	}})
}

// compact is JSON without blanks, and everything else as it is.
func compact(payload []byte) []byte {
	var b bytes.Buffer
	if !utf8.Valid(payload) || json.Compact(&b, payload) != nil {
		return payload
	}
	return b.Bytes()
}

// buffer is a destination: what was written to it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *buffer) arrived() ([]sinktest.Arrival, error) {
	var all []sinktest.Arrival
	for s := range strings.Lines(b.String()) {
		var l line
		if err := json.Unmarshal([]byte(s), &l); err != nil {
			return nil, err
		}
		a := sinktest.Arrival{Headers: l.Headers, Body: l.PayloadBase64}
		switch {
		case l.Payload != nil:
			a.Body = l.Payload
		case l.PayloadText != nil:
			a.Body = []byte(*l.PayloadText)
		}
		maps.Copy(a.Headers, map[string]string{wire.ID: l.ID, wire.Type: l.Type, wire.AggregateType: l.AggregateType, wire.AggregateID: l.AggregateID, wire.Time: l.Time})
		all = append(all, a)
	}
	return all, nil
}

func message(payload string) relay.Message {
	return relay.Message{
		Event:     outbox.Event{ID: outbox.ID{15: 1}, AggregateType: "order", AggregateID: payload, Type: "OrderPaid", Payload: []byte(payload)},
		Topic:     "orders",
		CreatedAt: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	}
}

func TestLines(t *testing.T) {
	head := `{"id":"00000000-0000-0000-0000-000000000001","type":"OrderPaid","aggregate_type":"order","aggregate_id":"47","topic":"orders","time":"2026-03-01T12:00:00Z","headers":{}`
	tests := map[string]string{
		"{\"amount\": 1.10,\n  \"big\": 1234567890123456789, \"html\": \"<&>\"}": `,"payload":{"amount":1.10,"big":1234567890123456789,"html":"<&>"}}`,
		`null`:             `,"payload":null}`,
		`""`:               `,"payload":""}`,
		``:                 `,"payload_text":""}`,
		"plain\ntext <b>":  `,"payload_text":"plain\ntext <b>"}`,
		"\xff\xfe":         `,"payload_base64":"//4="}`,
		"\"\xff\"":         `,"payload_base64":"Iv8i"}`,
		`{"a":1} {"b":2}`:  `,"payload_text":"{\"a\":1} {\"b\":2}"}`,
		"\u2028":           `,"payload_text":"\u2028"}`,
		`{"a":"\u0000\n"}`: `,"payload":{"a":"\u0000\n"}}`,
	}
	for payload, want := range tests {
		var out buffer
		m := message(payload)
		m.Event.AggregateID = "47"
		if err := New(&out).Publish(t.Context(), []relay.Message{m}); err != nil {
			t.Errorf("payload %q: %v", payload, err)
		}
		if got := out.String(); got != head+want+"\n" {
			t.Errorf("payload %q:\n got %s\nwant %s", payload, got, head+want)
		}
	}
	var out buffer
	m := message("47")
	m.Event.Payload = nil
	if err := New(&out).Publish(t.Context(), []relay.Message{m}); err != nil || out.String() != head+"}\n" {
		t.Errorf("without a payload: %v, %s", err, out.String())
	}
}

// limited takes so many bytes, then fails.
type limited struct {
	buffer
	left int
}

var errPipe = errors.New("broken pipe")

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left, 100) // and never much at a time
	l.left -= n
	_, _ = l.buffer.Write(p[:n])
	if n < len(p) && l.left == 0 {
		return n, errPipe
	}
	return n, nil
}

func TestAFailedWriteTearsOneLineOnly(t *testing.T) {
	batch := []relay.Message{message("1"), message("2"), message("3")}
	var whole buffer
	if err := New(&whole).Publish(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	length := len(whole.String()) / 3
	for _, taken := range []int{0, 10, length - 1, length, length + 1, 3*length - 1} {
		out := &limited{left: taken}
		s := New(out)
		var err *relay.BatchError
		if !errors.As(s.Publish(t.Context(), batch), &err) {
			t.Fatalf("%d bytes taken: no *BatchError", taken)
		}
		var left []relay.Message
		for i, e := range err.Errs {
			if published := i < taken/length; (e == nil) != published {
				t.Errorf("%d bytes taken, message %d: %v", taken, i, e)
			}
			if e != nil {
				if relay.OutcomeOf(e) != "unknown" || !errors.Is(e, errPipe) {
					t.Errorf("message %d: outcome %s: %v", i, relay.OutcomeOf(e), e)
				}
				left = append(left, batch[i])
			}
		}
		out.left = 1 << 20
		if err := s.Publish(t.Context(), left); err != nil {
			t.Fatal(err)
		}
		good, torn := 0, 0
		for l := range strings.Lines(out.String()) {
			if json.Valid([]byte(l)) {
				good++
			} else {
				torn++
			}
		}
		wantTorn := 0
		if taken%length != 0 {
			wantTorn = 1
		}
		if taken%length == length-1 { // only its line break is missing: the line is whole, and written twice
			good, wantTorn = good-1, 0
		}
		if good != 3 || torn != wantTorn {
			t.Errorf("%d bytes taken: %d whole and %d torn lines:\n%s", taken, good, torn, out.String())
		}
	}
}

func TestFlush(t *testing.T) {
	var out buffer
	if err := New(bufio.NewWriterSize(&out, 1<<20)).Publish(t.Context(), []relay.Message{message("1")}); err != nil {
		t.Fatal(err)
	}
	if out.String() == "" {
		t.Error("nothing was flushed")
	}
	err := New(bufio.NewWriterSize(&limited{}, 1<<20)).Publish(t.Context(), []relay.Message{message("1")})
	if relay.OutcomeOf(errors.Unwrap(err)) != "unknown" && !errors.Is(err, errPipe) {
		t.Errorf("Publish = %v, want the error of Flush", err)
	}
}

func TestAReaderThatDoesNotRead(t *testing.T) {
	r, w := io.Pipe()
	s := New(w)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Publish(ctx, []relay.Message{message("1")}) }()
	testwait.Until(t, "the write is under way", func() bool { return len(s.turn) == 1 })
	cancel()
	if err := testwait.Recv(t, "Publish returns", done); !errors.Is(err, context.Canceled) {
		t.Errorf("Publish = %v, want the context's end", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- s.Publish(ctx, []relay.Message{message("2")}) }()
	cancel()
	if err := testwait.Recv(t, "the next call returns", done); !errors.Is(err, context.Canceled) {
		t.Errorf("Publish = %v, want the context's end", err)
	}
	// The reader reads again: what was under way comes first, then the next call.
	go func() { done <- s.Publish(t.Context(), []relay.Message{message("3")}) }()
	lines := bufio.NewScanner(r)
	for _, want := range []string{`"payload":1}`, `"payload":3}`} {
		if !lines.Scan() || !strings.HasSuffix(lines.Text(), want) {
			t.Fatalf("line %q, want one that ends with %s", lines.Text(), want)
		}
	}
	if err := testwait.Recv(t, "Publish returns", done); err != nil {
		t.Error(err)
	}
}
