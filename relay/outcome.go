package relay

import (
	"errors"
	"fmt"
	"time"
)

// BatchError is what a Sink returns when its messages fared differently: Errs[i] answers for
// batch[i]. See Sink for the meaning of an entry.
type BatchError struct {
	Errs []error // as long as the batch
}

func (e *BatchError) Error() string {
	var failed int
	var first error
	for _, err := range e.Errs {
		if err == nil {
			continue
		}
		if first == nil {
			first = err
		}
		failed++
	}
	if failed == 0 {
		return "batch: no message failed"
	}
	return fmt.Sprintf("batch: %d of %d messages not published, the first: %v", failed, len(e.Errs), first)
}

// Unwrap gives errors.Is and errors.As the entries that are errors.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Permanent marks an error that no repetition can heal: the event is too large or malformed for
// this destination. The event becomes dead at once, with err as its reason.
// Permanent(nil) is nil.
func Permanent(err error) error { return mark(err, outcome{kind: permanent}) }

// Retry marks the refusal of one event that may be accepted later. The event is parked with
// backoff and an attempt is counted; later events of its key wait behind it.
// Retry(nil) is nil.
func Retry(err error) error { return mark(err, outcome{kind: retry}) }

// RetryAfter is Retry with the earliest time of the next attempt, as the destination asked.
// RetryAfter(nil, d) is nil.
func RetryAfter(err error, d time.Duration) error {
	return mark(err, outcome{kind: retry, after: max(d, 0)})
}

// Unavailable marks a fault of one event's destination: its topic or exchange is missing, it
// cannot be routed, access is denied. The event is parked without counting an attempt; events
// for other topics flow on. (An error of the whole sink needs no mark: see Sink.)
// Unavailable(nil) is nil.
func Unavailable(err error) error { return mark(err, outcome{kind: unavailable}) }

// OutcomeOf says in a word what the error of one message means to a relay: "published" (nil),
// "unknown" (no mark), "permanent", "retry" or "unavailable". It is for sinks around sinks, and
// for tests of sinks.
func OutcomeOf(err error) string { return outcomeOf(err).kind.String() }

type outcomeKind int

const (
	published   outcomeKind = iota
	unknown                 // an unmarked error: not sent, or not known
	permanent               // dead at once
	retry                   // parked, an attempt counted
	unavailable             // parked, no attempt counted
)

func (k outcomeKind) String() string {
	return [...]string{"published", "unknown", "permanent", "retry", "unavailable"}[k]
}

type outcome struct {
	kind  outcomeKind
	after time.Duration // retry: not before this much time has passed; 0 leaves it to the backoff
}

type markedError struct {
	err error
	outcome
}

func (e *markedError) Error() string { return e.err.Error() }
func (e *markedError) Unwrap() error { return e.err }

func mark(err error, o outcome) error {
	if err == nil {
		return nil
	}
	return &markedError{err: err, outcome: o}
}

// outcomeOf reads what an error says of one message. The outermost mark counts.
func outcomeOf(err error) outcome {
	if err == nil {
		return outcome{kind: published}
	}
	if m, ok := errors.AsType[*markedError](err); ok {
		return m.outcome
	}
	return outcome{kind: unknown}
}
