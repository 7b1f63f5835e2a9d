package outbox

import (
	"errors"
	"fmt"
	"strings"
)

// FaultError is one fault of one event, found before anything was sent to the database. Write
// reports all faults of all events in one error: errors.As finds the first.
// It never holds what the payload or a header says, only where.
type FaultError struct {
	Index  int    // which of the events given to Write, from 0
	Field  string // as its column is called; with its name for a header: headers["traceparent"]
	Path   string // inside a JSON payload: $.items[3].name
	Offset int    // in bytes from the beginning of the field; -1 if all of it is meant
	Reason string // as "is empty"
}

func (e *FaultError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "event %d: ", e.Index)
	if e.Field != "" {
		b.WriteString(e.Field + " ")
	}
	if e.Path != "" {
		fmt.Fprintf(&b, "at %s ", e.Path)
	}
	if e.Offset >= 0 {
		fmt.Fprintf(&b, "(byte %d) ", e.Offset)
	}
	b.WriteString(e.Reason)
	return b.String()
}

// faults gathers what is wrong with the events of one call.
type faults struct {
	errs  []error
	index int // the event that is being checked
}

func (f *faults) add(field, reason string) { f.addAt(field, -1, reason) }

func (f *faults) addAt(field string, offset int, reason string) {
	f.errs = append(f.errs, &FaultError{Index: f.index, Field: field, Offset: offset, Reason: reason})
}

func (f *faults) err() error {
	if len(f.errs) == 0 {
		return nil
	}
	return fmt.Errorf("write events: nothing was sent: %w", errors.Join(f.errs...))
}
