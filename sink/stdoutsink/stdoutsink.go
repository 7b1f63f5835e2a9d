// Package stdoutsink writes each event as one line of JSON, for pipes:
//
//	{"id":"0190...","type":"OrderPaid","aggregate_type":"order","aggregate_id":"47","topic":"OrderPaid",
//	 "time":"2026-03-01T12:00:00Z","headers":{"traceparent":"00-..."},"payload":{"amount":1.10}}
//
// The payload stands as it is, numbers included, only without the blanks between its parts. One
// that is not JSON is a string in payload_text instead, and one that is not even text is in
// payload_base64. An event without a payload (SQL NULL) has none of the three.
package stdoutsink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
)

// Sink writes lines to a writer. It is safe for concurrent use: the lines of one call stand
// together.
type Sink struct {
	w    io.Writer
	turn chan struct{} // holds one element while a write is under way
	torn bool          // the last line written is not whole; belongs to the holder of turn
}

var _ relay.Sink = (*Sink)(nil)

// New makes a sink of w. If w has a method Flush() error, as *bufio.Writer has, it is called at the
// end of each call of Publish.
func New(w io.Writer) *Sink { return &Sink{w: w, turn: make(chan struct{}, 1)} }

// Publish implements relay.Sink. A line counts as published when w has taken all of it. After a
// failed write that left half a line behind, the next call begins with a line break, so that
// readers find one line that is no JSON and then whole lines again.
//
// A write cannot be taken back: when ctx ends while a reader does not read, Publish returns, and
// the write goes on until the reader reads or is gone. The next call waits for that.
func (s *Sink) Publish(ctx context.Context, batch []relay.Message) error {
	if ctx.Err() != nil {
		return fmt.Errorf("write lines: %w", context.Cause(ctx))
	}
	t := encode(batch)
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return t.result(0, fmt.Errorf("an earlier write is still under way: %w", context.Cause(ctx)))
	}
	type outcome struct {
		n   int
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() { <-s.turn }()
		n, err := s.write(t)
		done <- outcome{n, err}
	}()
	select {
	case o := <-done:
		return t.result(o.n, o.err)
	case <-ctx.Done():
		return t.result(0, fmt.Errorf("write under way: %w", context.Cause(ctx)))
	}
}

// write writes the lines and returns how many bytes of them were taken.
func (s *Sink) write(t *text) (int, error) {
	if s.torn {
		if _, err := s.w.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		s.torn = false
	}
	n := 0
	for n < len(t.lines) {
		m, err := s.w.Write(t.lines[n:])
		n += m
		if err == nil && m == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			s.torn = n > 0 && t.lines[n-1] != '\n'
			return n, err
		}
	}
	if f, ok := s.w.(interface{ Flush() error }); ok {
		if err := f.Flush(); err != nil {
			s.torn = true // nobody knows how much of the buffer went out
			return 0, err
		}
	}
	return n, nil
}

// text is a batch in lines.
type text struct {
	lines []byte
	ends  []int   // of each message's line; 0: it has none
	errs  []error // why a message has none
}

func encode(batch []relay.Message) *text {
	type key struct{ aggregateType, aggregateID string }
	var refused map[key]bool
	t := &text{ends: make([]int, len(batch)), errs: make([]error, len(batch))}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i := range batch {
		m := &batch[i]
		k := key{m.Event.AggregateType, m.Event.AggregateID}
		if refused[k] {
			t.errs[i] = errors.New("not written: an earlier message of its key was not")
			continue
		}
		l, err := makeLine(m)
		if err == nil {
			err = enc.Encode(l)
		}
		if err != nil {
			if refused == nil {
				refused = map[key]bool{}
			}
			refused[k] = true
			t.errs[i] = relay.Permanent(err)
			continue
		}
		t.ends[i] = b.Len()
	}
	t.lines = b.Bytes()
	return t
}

// result is what Publish returns when n bytes of the lines were taken.
func (t *text) result(n int, err error) error {
	failed := false
	for i, end := range t.ends {
		if t.errs[i] == nil && end > n {
			t.errs[i] = fmt.Errorf("write line: %w", err)
		}
		failed = failed || t.errs[i] != nil
	}
	if !failed {
		return nil
	}
	return &relay.BatchError{Errs: t.errs}
}

type line struct {
	ID            string            `json:"id"`
	Type          string            `json:"type"`
	AggregateType string            `json:"aggregate_type"`
	AggregateID   string            `json:"aggregate_id"`
	Topic         string            `json:"topic"`
	Time          string            `json:"time"`
	Headers       map[string]string `json:"headers"`
	Payload       json.RawMessage   `json:"payload,omitempty"`
	PayloadText   *string           `json:"payload_text,omitempty"`
	PayloadBase64 []byte            `json:"payload_base64,omitempty"`
}

func makeLine(m *relay.Message) (*line, error) {
	e := &m.Event
	l := &line{
		ID: e.ID.String(), Type: e.Type, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
		Topic: m.Topic, Time: wire.FormatTime(m.CreatedAt), Headers: make(map[string]string, len(e.Headers)),
	}
	for what, s := range map[string]string{"event type": l.Type, "aggregate type": l.AggregateType, "aggregate id": l.AggregateID, "topic": l.Topic} {
		if !utf8.ValidString(s) {
			return nil, fmt.Errorf("%s %q is not UTF-8, which JSON needs", what, s)
		}
	}
	for name, value := range e.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, fmt.Errorf("header %q is not UTF-8, which JSON needs", name)
		}
		if !wire.IsOwn(name) {
			l.Headers[name] = value
		}
	}
	switch {
	case e.Payload == nil:
	case !utf8.Valid(e.Payload):
		l.PayloadBase64 = e.Payload
	case json.Valid(e.Payload):
		l.Payload = e.Payload
	default:
		s := string(e.Payload)
		l.PayloadText = &s
	}
	return l, nil
}
