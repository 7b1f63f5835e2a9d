package torture

import (
	"fmt"
	"strings"
	"time"

	"github.com/commitrelay/outbox"
)

// Report is what the checker counted. docs/torture.md explains the fields.
type Report struct {
	Committed             int     `json:"committed"`
	Delivered             int     `json:"delivered"`
	Distinct              int     `json:"distinct"`
	Lost                  int     `json:"lost"`
	Invented              int     `json:"invented"`
	OrderViolations       int     `json:"order_violations"`
	Duplicates            int     `json:"duplicates"`
	UnexplainedDuplicates int     `json:"unexplained_duplicates"`
	Suppressed            int     `json:"suppressed_duplicates"`
	Faults                int     `json:"faults"`
	LongestStall          Seconds `json:"longest_stall_s"`
	Seed                  int64   `json:"seed"`

	FaultsByKind map[Kind]int `json:"faults_by_kind"`
	Sink         string       `json:"sink"`
	Relays       int          `json:"relays"`
	Lanes        int          `json:"lanes"`
	Lease        Seconds      `json:"lease_s"`
	Duration     Seconds      `json:"duration_s"`

	// Problems are failures beside what is counted: a relay that ended by itself, for one.
	Problems []string `json:"problems,omitempty"`

	// Findings say what is wrong, and with what. Those of one kind stand in the order of arrival.
	Findings []Finding `json:"-"`

	// Stalled is the event that waited for LongestStall.
	Stalled *Event `json:"-"`
}

// Seconds is a duration that reads as a number of seconds in JSON.
type Seconds time.Duration

// MarshalJSON writes seconds with milliseconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}

// Err is nil if the promises were kept, and otherwise says which were not.
func (r *Report) Err() error {
	var broken []string
	for _, n := range []struct {
		what string
		n    int
	}{
		{"lost", r.Lost},
		{"invented", r.Invented},
		{"out of order", r.OrderViolations},
		{"repeated without a fault that explains it", r.UnexplainedDuplicates},
	} {
		if n.n > 0 {
			broken = append(broken, fmt.Sprintf("%d events %s", n.n, n.what))
		}
	}
	broken = append(broken, r.Problems...)
	if len(broken) == 0 {
		return nil
	}
	return fmt.Errorf("torture: %s", strings.Join(broken, "; "))
}

// Finding is one thing that must not be.
type Finding struct {
	Kind   FindingKind
	ID     outbox.ID
	Key    Key
	N      int64
	Reason string
	At     time.Time // around which to look
}

// FindingKind says which promise a finding breaks.
type FindingKind string

// The kinds of findings.
const (
	Lost        FindingKind = "lost"
	Invented    FindingKind = "invented"
	OutOfOrder  FindingKind = "order"
	Unexplained FindingKind = "duplicate"
)

func (f Finding) String() string {
	return fmt.Sprintf("%s: event %s, number %d of %s: %s", f.Kind, f.ID, f.N, f.Key, f.Reason)
}
