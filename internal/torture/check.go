package torture

import (
	"fmt"
	"slices"
	"time"

	"github.com/commitrelay/outbox"
)

// Check compares what was committed with what arrived. It asks nobody and changes nothing.
func Check(rec *Record) *Report {
	c := newChecker(rec)
	c.arrivals()
	c.lost()
	c.order()
	c.duplicates()
	c.stall()
	c.report.Committed = len(rec.Committed)
	c.report.Lease = Seconds(rec.Lease)
	c.report.FaultsByKind = map[Kind]int{}
	for _, f := range rec.Faults {
		c.report.FaultsByKind[f.Kind]++
		if f.Kind.Disturbs() {
			c.report.Faults++
		}
	}
	return c.report
}

type checker struct {
	*Record
	report *Report

	events map[outbox.ID]*Event   // committed
	copies map[outbox.ID][]copied // of each event that arrived
	sends  map[outbox.ID][]*Call  // that held it, in order of time
	stores map[laneOf][]time.Time // in order
}

// copied is one arrival of an event, and when it was sent.
type copied struct {
	*Arrival
	call *Call // nil: not known
}

type laneOf struct {
	relay RelayID
	lane  int
}

func newChecker(rec *Record) *checker {
	c := &checker{
		Record: rec, report: &Report{},
		events: make(map[outbox.ID]*Event, len(rec.Committed)),
		copies: make(map[outbox.ID][]copied, len(rec.Committed)),
		sends:  make(map[outbox.ID][]*Call, len(rec.Committed)),
		stores: map[laneOf][]time.Time{},
	}
	for i := range rec.Committed {
		c.events[rec.Committed[i].ID] = &rec.Committed[i]
	}
	for i := range rec.Calls {
		for _, id := range rec.Calls[i].IDs {
			c.sends[id] = append(c.sends[id], &rec.Calls[i])
		}
	}
	for _, calls := range c.sends {
		slices.SortStableFunc(calls, func(a, b *Call) int { return a.Begin.Compare(b.Begin) })
	}
	for _, s := range rec.Stores {
		for _, lane := range s.Lanes {
			k := laneOf{s.Relay, lane}
			c.stores[k] = append(c.stores[k], s.At)
		}
	}
	for _, at := range c.stores {
		slices.SortFunc(at, time.Time.Compare)
	}
	return c
}

func (c *checker) find(kind FindingKind, e Event, at time.Time, format string, args ...any) {
	c.report.Findings = append(c.report.Findings, Finding{
		Kind: kind, ID: e.ID, Key: e.Key, N: e.N, At: at, Reason: fmt.Sprintf(format, args...),
	})
}

// arrivals sorts what arrived into copies of what was committed, and what nobody committed.
func (c *checker) arrivals() {
	undone := map[outbox.ID]bool{}
	for _, e := range c.Undone {
		undone[e.ID] = true
	}
	for i := range c.Arrivals {
		a := &c.Arrivals[i]
		c.report.Delivered++
		if a.Suppressed {
			c.report.Suppressed++
		}
		e := c.events[a.ID]
		switch {
		case e == nil:
			reason := "it arrived, and nobody wrote it"
			if undone[a.ID] {
				reason = "it arrived, and its writer rolled it back"
			}
			c.report.Invented++
			c.find(Invented, Event{ID: a.ID, Key: a.Key, N: a.N}, a.At, "%s (%s, sent by %s)", reason, a.Place, a.Call)
		case e.Key != a.Key || e.N != a.N || e.EventType != a.EventType:
			c.report.Invented++
			c.find(Invented, *e, a.At, "it arrived as number %d, %s, of %s (%s, sent by %s)", a.N, a.EventType, a.Key, a.Place, a.Call)
		default:
			c.copies[a.ID] = append(c.copies[a.ID], copied{a, c.callOf(a)})
		}
	}
	c.report.Distinct = len(c.copies)
}

// callOf is the call that sent the arrival, if that is in a journal.
func (c *checker) callOf(a *Arrival) *Call {
	for _, call := range c.sends[a.ID] {
		if call.CallID == a.Call {
			return call
		}
	}
	return nil
}

func (c *checker) lost() {
	for i := range c.Committed {
		e := &c.Committed[i]
		if len(c.copies[e.ID]) > 0 {
			continue
		}
		c.report.Lost++
		sent := "no relay ever sent it"
		for _, call := range c.sends[e.ID] {
			answer := "did not answer"
			switch {
			case call.Confirmed[e.ID]:
				answer = "confirmed it"
			case call.Err != "":
				answer = "said " + call.Err
			}
			sent = fmt.Sprintf("the last to send it was %s at %s, and the sink %s", call.CallID, clock(call.Begin), answer)
		}
		c.find(Lost, *e, e.At, "committed at %s in lane %d, it did not arrive; %s", clock(e.At), c.Lane[e.Key], sent)
	}
}

// order looks at the first arrivals of each key: their numbers must rise. What is lost leaves a gap,
// and is counted as that.
func (c *checker) order() {
	newest := map[Key]copied{}
	seen := map[outbox.ID]bool{}
	for i := range c.Arrivals {
		a := &c.Arrivals[i]
		e := c.events[a.ID]
		if a.Suppressed || e == nil || e.Key != a.Key || e.N != a.N || seen[a.ID] {
			continue
		}
		seen[a.ID] = true
		this := copied{a, c.callOf(a)}
		before, ok := newest[a.Key]
		if !ok || a.N > before.N {
			newest[a.Key] = this
			continue
		}
		c.report.OrderViolations++
		c.find(OutOfOrder, *e, c.arrived(this), "it first arrived (%s, sent by %s) after number %d, event %s (%s, sent by %s)",
			a.Place, a.Call, before.N, before.ID, before.Place, before.Call)
	}
}

// arrived is when a copy arrived, as well as that is known.
func (c *checker) arrived(a copied) time.Time {
	switch {
	case !a.At.IsZero():
		return a.At
	case a.call == nil:
		return time.Time{}
	case a.call.Confirmed[a.ID]:
		return a.call.End
	}
	return a.call.Begin
}
