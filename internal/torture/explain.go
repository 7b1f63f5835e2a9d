//go:build unix

package torture

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// shownPerKind is how many findings of a kind are explained at length.
const shownPerKind = 5

// explain prints what it takes to understand a failure.
func (r *run) explain(report *Report) {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%v\n", report.Err())
	shown := map[FindingKind]int{}
	for _, f := range report.Findings {
		shown[f.Kind]++
		switch n := shown[f.Kind]; {
		case n <= shownPerKind:
			fmt.Fprintf(&b, "\n%s\n", f)
			r.explainOne(&b, f)
		case n <= 4*shownPerKind:
			fmt.Fprintf(&b, "%s\n", f)
		}
	}
	for kind, n := range shown {
		if n > 4*shownPerKind {
			fmt.Fprintf(&b, "... %d more of kind %s\n", n-4*shownPerKind, kind)
		}
	}
	if n := len(r.notes); n > 0 {
		fmt.Fprintf(&b, "\n%d events were parked or dead, the last:\n  %s\n", n, strings.Join(r.notes[max(0, n-5):], "\n  "))
	}
	fmt.Fprintf(&b, "\njournals and logs are kept in %s\nthe same faults again: %s\n", r.dir, r.replay())
	r.output.Lock()
	defer r.output.Unlock()
	fmt.Fprint(r.Output, b.String())
}

// moment is something that happened.
type moment struct {
	at   time.Time
	what string
}

// explainOne tells the story of an event: who sent it, what was stored of its lane at that time, where
// it arrived, and which faults there were.
func (r *run) explainOne(b *strings.Builder, f Finding) {
	lane := r.record.Lane[f.Key]
	fmt.Fprintf(b, "  its lane is %d\n", lane)
	var story []moment
	from, to := f.At, f.At
	for _, c := range r.record.Calls {
		i := slices.Index(c.IDs, f.ID)
		if i < 0 {
			continue
		}
		answer := "never answered"
		if !c.End.IsZero() {
			answer = fmt.Sprintf("answered at %s: confirmed %v %s", clock(c.End), c.Confirmed[f.ID], c.Err)
		}
		story = append(story, moment{c.Begin, fmt.Sprintf("call %s holds it, as %d of %d; %s", c.CallID, i+1, len(c.IDs), answer)})
		if c.Begin.Before(from) {
			from = c.Begin
		}
		if c.Begin.After(to) {
			to = c.Begin
		}
	}
	for _, a := range r.record.Arrivals {
		if a.ID == f.ID {
			story = append(story, moment{a.At, fmt.Sprintf("arrival of number %d of %s, %s, sent by %s", a.N, a.Key, a.Place, a.Call)})
		}
	}
	for _, e := range r.record.Committed {
		if e.ID == f.ID {
			story = append(story, moment{e.At, "committed"})
		}
	}
	from, to = from.Add(-r.Lease-grace), to.Add(time.Second)
	for _, x := range r.record.Faults {
		if !x.Begin.After(to) && !x.End.Before(from) {
			story = append(story, moment{x.Begin, "fault: " + x.String()})
		}
	}
	story = append(story, r.storesAround(story, lane)...)
	slices.SortStableFunc(story, func(a, b moment) int { return a.at.Compare(b.at) })
	for _, m := range story {
		fmt.Fprintf(b, "  %s %s\n", clock(m.at), m.what)
	}
}

// storesAround are, of each relay that has stored the lane, the last store before each moment and the
// first one after it.
func (r *run) storesAround(story []moment, lane int) []moment {
	chosen := map[int]bool{}
	for _, m := range story {
		before, after := map[RelayID]int{}, map[RelayID]int{}
		for i, s := range r.record.Stores {
			if !slices.Contains(s.Lanes, lane) {
				continue
			}
			if s.At.Before(m.at) {
				before[s.Relay] = i
			} else if _, ok := after[s.Relay]; !ok {
				after[s.Relay] = i
			}
		}
		for _, near := range []map[RelayID]int{before, after} {
			for _, i := range near {
				if d := r.record.Stores[i].At.Sub(m.at); d > -2*time.Second && d < 2*time.Second {
					chosen[i] = true
				}
			}
		}
	}
	var stores []moment
	for i := range chosen {
		s := r.record.Stores[i]
		stores = append(stores, moment{s.At, fmt.Sprintf("%s knows that lane %d is stored", s.Relay, lane)})
	}
	return stores
}
