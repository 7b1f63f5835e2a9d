package torture

import (
	"slices"
	"time"
)

// span is a stretch of time.
type span struct{ begin, end time.Time }

// stall finds the event that waited longest from its commit to its first arrival, not counting the
// time in which a fault was active or had ended less than a lease ago.
func (c *checker) stall() {
	excused := c.excused()
	for i := range c.Committed {
		e := &c.Committed[i]
		var first time.Time
		for _, a := range c.copies[e.ID] {
			if at := c.arrived(a); !at.IsZero() && (first.IsZero() || at.Before(first)) {
				first = at
			}
		}
		if first.IsZero() {
			continue
		}
		if s := Seconds(without(span{e.At, first}, excused)); s > c.report.LongestStall {
			c.report.LongestStall, c.report.Stalled = s, e
		}
	}
}

// excused are the times of faults and of the lease after each, without overlaps, in order.
func (c *checker) excused() []span {
	var all []span
	for _, f := range c.Faults {
		if f.Kind.Disturbs() {
			all = append(all, span{f.Begin, f.End.Add(c.Lease)})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return a.begin.Compare(b.begin) })
	var joined []span
	for _, s := range all {
		if n := len(joined); n > 0 && !s.begin.After(joined[n-1].end) {
			if s.end.After(joined[n-1].end) {
				joined[n-1].end = s.end
			}
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// without is the length of s less what it has in common with the others.
func without(s span, others []span) time.Duration {
	left := s.end.Sub(s.begin)
	if left <= 0 {
		return 0
	}
	i, _ := slices.BinarySearchFunc(others, s.begin, func(o span, t time.Time) int { return o.end.Compare(t) })
	for ; i < len(others) && others[i].begin.Before(s.end); i++ {
		begin, end := others[i].begin, others[i].end
		if begin.Before(s.begin) {
			begin = s.begin
		}
		if end.After(s.end) {
			end = s.end
		}
		left -= end.Sub(begin)
	}
	return left
}
