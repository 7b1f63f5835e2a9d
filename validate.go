package outbox

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxJSONB is the most bytes that a jsonb payload may be printed in. Beyond it jsonb's own limits,
// 256 MiB as it is stored and 16 million elements, might be met first.
const maxJSONB = 40_000_000

// check finds all faults of all events, and returns them with the headers that each will have.
func (w *Writer) check(events []*Event, trace map[string]string) ([]row, error) {
	var f faults
	rows := make([]row, len(events))
	at := make(map[*Event]int, len(events))
	ids := make(map[ID]int, len(events))
	size := 0
	for i, e := range events {
		f.index = i
		if e == nil {
			f.add("", "is nil")
			continue
		}
		if first, ok := at[e]; ok {
			f.add("", fmt.Sprintf("is the same *Event as event %d", first))
			continue
		}
		at[e] = i
		if first, ok := ids[e.ID]; ok {
			f.add("id", fmt.Sprintf("is that of event %d", first))
		} else if !e.ID.IsZero() {
			ids[e.ID] = i
		}
		rows[i] = row{e, withTrace(e.Headers, trace)}
		w.checkEvent(&f, e)
		size += len(e.AggregateType) + len(e.AggregateID) + len(e.Type) + len(e.Payload)
		size += 64 + checkHeaders(&f, rows[i].headers)
	}
	if size > MaxWriteSize {
		f.errs = append(f.errs, fmt.Errorf("%d events with %d bytes, at most %d are allowed in one call: make several in the same transaction", len(events), size, MaxWriteSize))
	}
	return rows, f.err()
}

// checkEvent checks one event, all but its ID and its headers.
func (w *Writer) checkEvent(f *faults, e *Event) {
	checkName(f, "aggregate_type", e.AggregateType)
	checkName(f, "aggregate_id", e.AggregateID)
	checkName(f, "event_type", e.Type)
	w.checkPayload(f, e.Payload)
}

func checkName(f *faults, field, s string) {
	switch {
	case s == "":
		f.add(field, "is empty")
	case len(s) > MaxNameLength:
		f.add(field, fmt.Sprintf("has %d bytes, at most %d are allowed", len(s), MaxNameLength))
	}
	checkLine(f, field, s)
}

// checkLine checks text that travels as a header's value: one line, which ends where it seems to.
func checkLine(f *faults, field, s string) {
	for i, r := range s {
		switch {
		case r == 0:
			f.addAt(field, i, "holds a zero byte")
		case r < ' ', r == 0x7f:
			f.addAt(field, i, "holds a control character")
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			f.addAt(field, i, "is not valid UTF-8")
		default:
			continue
		}
		return
	}
	if strings.Trim(s, " ") != s {
		f.add(field, "has a space at its end, which NATS and HTTP would take away")
	}
}

func (w *Writer) checkPayload(f *faults, p []byte) {
	const field = "payload"
	limit := w.maxPayload()
	if len(p) > limit {
		f.add(field, fmt.Sprintf("has %d bytes, Writer.MaxPayload allows %d", len(p), limit))
		return
	}
	if p == nil {
		return
	}
	switch t := w.payloadType(); t {
	case PayloadText:
		if i := bytes.IndexByte(p, 0); i >= 0 {
			f.addAt(field, i, "holds a zero byte, which a text column cannot")
		}
		if i := notUTF8(p); i >= 0 {
			f.addAt(field, i, "is not valid UTF-8")
		}
	case PayloadJSON, PayloadJSONB:
		found, printed := checkJSON(p, t == PayloadJSONB)
		for _, j := range found {
			f.errs = append(f.errs, &FaultError{Index: f.index, Field: field, Path: j.path, Offset: j.offset, Reason: j.reason})
		}
		if t == PayloadJSONB && printed > min(limit, maxJSONB) {
			f.add(field, fmt.Sprintf("has up to %d bytes as jsonb prints it (numbers without exponents), %d are allowed", printed, min(limit, maxJSONB)))
		}
	}
}

// notUTF8 is where the first byte stands that is not UTF-8, or -1.
func notUTF8(p []byte) int {
	for i := 0; i < len(p); {
		r, size := utf8.DecodeRune(p[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}
