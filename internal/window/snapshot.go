// Package window holds the arithmetic of reading the outbox: positions, the windows between them, and the proof that
// nothing is lost (docs/design.md, "Reading the log"). It knows nothing of SQL, sinks or lanes.
package window

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Snapshot is a pg_snapshot: which transactions had ended when it was taken. Its ids are those of top-level transactions
// (PostgreSQL 13, section 9.26 "Transaction ID and Snapshot Information Functions").
type Snapshot struct {
	Xmin, Xmax uint64
	Xip        []uint64 // running between Xmin and Xmax, ascending
}

// emptySnapshot sees nothing: no transaction has an id below 3.
var emptySnapshot = Snapshot{Xmin: 3, Xmax: 3}

// ParseSnapshot reads PostgreSQL's text form, "xmin:xmax:xip,xip".
func ParseSnapshot(s string) (Snapshot, error) {
	snap, err := parseSnapshot(s)
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", s, err)
	}
	return snap, nil
}

func parseSnapshot(s string) (snap Snapshot, err error) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return snap, errors.New("want xmin:xmax:xip")
	}
	if snap.Xmin, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return snap, err
	}
	if snap.Xmax, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return snap, err
	}
	if parts[2] == "" {
		return snap, nil
	}
	for f := range strings.SplitSeq(parts[2], ",") {
		x, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return snap, err
		}
		snap.Xip = append(snap.Xip, x)
	}
	slices.Sort(snap.Xip)
	return snap, nil
}

// String is PostgreSQL's text form.
func (s Snapshot) String() string {
	var b strings.Builder
	b.WriteString(strconv.FormatUint(s.Xmin, 10))
	b.WriteByte(':')
	b.WriteString(strconv.FormatUint(s.Xmax, 10))
	for i, x := range s.Xip {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(strconv.FormatUint(x, 10))
	}
	if len(s.Xip) == 0 {
		b.WriteByte(':')
	}
	return b.String()
}

// Ended says whether transaction x had committed or aborted: pg_visible_in_snapshot.
func (s Snapshot) Ended(x uint64) bool {
	if x >= s.Xmax {
		return false
	}
	_, running := slices.BinarySearch(s.Xip, x)
	return !running
}
