package torture

import (
	"fmt"
	"time"

	"github.com/commitrelay/outbox"
)

// Record is what a run leaves behind, as the checker needs it.
type Record struct {
	// Lease is the relays' lease: it bounds how long after a fault its consequences may show.
	Lease time.Duration

	// Lane is the lane of each key, as PostgreSQL computes it.
	Lane map[Key]int

	// Committed are the events that writers committed. Within a key they are in the order of N.
	Committed []Event

	// Undone are events that were inserted and rolled back. They are only used to say more of one
	// that arrived all the same.
	Undone []Event

	// Arrivals are the messages that the broker holds. Those of a key are in the order in which
	// they came.
	Arrivals []Arrival

	// Calls and Stores are what the relays noted.
	Calls  []Call
	Stores []Store

	Faults []Fault
}

// Key is what keeps its order: aggregate type and id.
type Key struct{ Type, ID string }

func (k Key) String() string { return k.Type + "/" + k.ID }

// Event is an event of the history.
type Event struct {
	ID outbox.ID
	Key
	EventType string

	// N is the aggregate's version: it rises with each event of the key in the order of the
	// commits, because writers raise it in the transaction that holds the aggregate's lock.
	N int64

	// At is when the writer knew that it was committed.
	At time.Time
}

// CallID names one call of Sink.Publish. Messages carry it in a header, so that each arrival can be
// told from a repetition. The zero CallID means that it is not known.
type CallID struct {
	Relay RelayID
	N     int
}

func (c CallID) String() string { return fmt.Sprintf("%s/%d", c.Relay, c.N) }

// RelayID names a relay process: the Life-th one in its slot, both from 1. A slot keeps its proxies
// for as long as the run lasts.
type RelayID struct{ Slot, Life int }

func (r RelayID) String() string { return fmt.Sprintf("r%d.%d", r.Slot, r.Life) }

// Arrival is a message that the broker holds.
type Arrival struct {
	ID outbox.ID
	Key
	EventType string
	N         int64
	Call      CallID

	// At is when the broker took it; the zero time if the broker does not tell: then it is when the
	// relay knew.
	At time.Time

	// Suppressed is a repetition that the broker recognised and did not keep.
	Suppressed bool

	// Place is where in the broker it stands, for people.
	Place string
}

// Call is one call of Sink.Publish.
type Call struct {
	CallID
	Begin, End time.Time // End is zero if it never returned
	IDs        []outbox.ID
	Confirmed  map[outbox.ID]bool // by its answer
	Err        string             // the first of its errors
}

// Store is the moment at which a relay knew that the database holds what has become of all that it
// had published of these lanes.
type Store struct {
	Relay RelayID
	At    time.Time
	Lanes []int
}

// Fault is something that was done to the relays or to what they depend on.
type Fault struct {
	Kind   Kind
	Target Target
	Begin  time.Time
	End    time.Time // of something that lasts; else it is Begin
	Detail string
}

// Target is what a fault hits.
type Target struct {
	Slot int // whose relay, or whose link; 0: a server, and so all relays
	Life int // of that slot; 0: any, as for a link
}

func (t Target) String() string {
	switch {
	case t.Slot == 0:
		return "all"
	case t.Life == 0:
		return fmt.Sprintf("r%d", t.Slot)
	}
	return RelayID(t).String()
}

// hits says whether it befell the relay, its link to a server, or a server.
func (t Target) hits(r RelayID) bool {
	return t.Slot == 0 || t.Slot == r.Slot && (t.Life == 0 || t.Life == r.Life)
}

func (f Fault) String() string {
	s := fmt.Sprintf("%s of %s at %s", f.Kind, f.Target, clock(f.Begin))
	if f.End.After(f.Begin) {
		s += fmt.Sprintf(" for %.2f s", f.End.Sub(f.Begin).Seconds())
	}
	if f.Detail != "" {
		s += " (" + f.Detail + ")"
	}
	return s
}

// clock is a time of day as all output has it.
func clock(t time.Time) string { return t.Format("15:04:05.000") }
