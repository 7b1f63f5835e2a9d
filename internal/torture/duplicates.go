package torture

import (
	"fmt"
	"slices"
	"time"
)

// grace is how long after a fault, beside the lease, its duplicates may still come.
const grace = 5 * time.Second

// duplicates counts the copies beyond the first of each event, and finds those that no fault explains.
//
// The copies of an event are taken in the order in which they were sent: what a network held back may
// arrive after its own repetition. Each but the first must be explained twice:
//
//   - by a fault: it hit the relay of an earlier copy, its sink or the database, began before the
//     repetition was sent, and ended at most lease + 5 s before that;
//   - by number: no earlier copy was known to be settled. A relay that was told by the sink that it
//     has the event, and then by the database that this is stored, has settled it for ever. What
//     remains is what a lane published since its last store, and its batch in flight.
func (c *checker) duplicates() {
	// Over the arrivals, for a stable order of findings.
	done := map[*Arrival]bool{}
	for i := range c.Arrivals {
		copies := c.copies[c.Arrivals[i].ID]
		if len(copies) < 2 || done[copies[0].Arrival] {
			continue
		}
		done[copies[0].Arrival] = true
		c.report.Duplicates += len(copies) - 1
		c.explain(copies)
	}
}

func (c *checker) explain(copies []copied) {
	first := copies[0].Arrival
	e := *c.events[first.ID]
	sorted := slices.Clone(copies)
	slices.SortStableFunc(sorted, func(a, b copied) int { return sentAt(a).Compare(sentAt(b)) })
	for i := 1; i < len(sorted); i++ {
		if reason := c.unexplained(sorted[:i], sorted[i]); reason != "" {
			c.report.UnexplainedDuplicates++
			c.find(Unexplained, e, c.arrived(sorted[i]), "sent by %s (%s), and again by %s (%s): %s",
				sorted[0].Call, sorted[0].Place, sorted[i].Call, sorted[i].Place, reason)
		}
	}
}

// sentAt orders the copies of an event. One whose call is not known comes last, to be the one that is
// not explained.
func sentAt(a copied) time.Time {
	if a.call == nil {
		return time.Unix(1<<40, 0)
	}
	return a.call.Begin
}

// unexplained says why a repetition is not explained, or "".
func (c *checker) unexplained(earlier []copied, again copied) string {
	if again.call == nil {
		return "no journal says who sent it"
	}
	repeated := again.call.Begin
	for _, a := range earlier {
		if a.call == again.call {
			repeated = c.arrived(again) // the sink itself repeated it, at some time after the call began
		}
	}
	for _, a := range earlier {
		if at := c.settled(a); !at.IsZero() && at.Before(repeated) {
			return fmt.Sprintf("%s had stored at %s that it is delivered, %.3f s before it was sent again",
				a.Call.Relay, clock(at), repeated.Sub(at).Seconds())
		}
	}
	for _, a := range earlier {
		for _, f := range c.Faults {
			if f.Kind.Disturbs() && f.Target.hits(a.Call.Relay) && !f.Begin.After(repeated) && !repeated.After(f.End.Add(c.Lease+grace)) {
				return ""
			}
		}
	}
	return fmt.Sprintf("no fault hit %s, its sink or the database in the %v before %s", earlier[0].Call.Relay, c.Lease+grace, clock(repeated))
}

// idle is the time in which a relay that nothing disturbs stores what it has delivered, many times over.
const idle = 2 * time.Second

// settled is when the relay that sent the copy knew that its delivery is stored; zero if it never did.
//
// Positions are stored while more is being published, so the end of a store says nothing of what was
// confirmed meanwhile. The next store of the lane began later, and holds it. Or there is none, because
// nothing was left to store: that is known when time has passed in which nothing kept the relay from it.
func (c *checker) settled(a copied) time.Time {
	if a.call == nil || !a.call.Confirmed[a.ID] {
		return time.Time{}
	}
	stores := c.stores[laneOf{a.Call.Relay, c.Lane[a.Key]}]
	i, _ := slices.BinarySearchFunc(stores, a.call.End, time.Time.Compare)
	if i == len(stores) {
		return time.Time{}
	}
	var at time.Time
	if i+1 < len(stores) {
		at = stores[i+1]
	}
	if quiet := stores[i].Add(idle); (at.IsZero() || quiet.Before(at)) && c.undisturbed(a.Call.Relay, stores[i].Add(-c.Lease-grace), quiet) {
		at = quiet
	}
	return at
}

// undisturbed says whether no fault hit the relay, its sink or the database in that time.
func (c *checker) undisturbed(r RelayID, from, to time.Time) bool {
	for _, f := range c.Faults {
		if f.Kind.Disturbs() && f.Target.hits(r) && !f.Begin.After(to) && !f.End.Before(from) {
			return false
		}
	}
	return true
}
