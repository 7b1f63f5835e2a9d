package torture

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
)

// The scenes of these tests have a lease of 10 s, two keys a and b in lanes 0 and 1, and times in
// seconds after the start.

const testLease = 10 * time.Second

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(seconds float64) time.Time {
	return start.Add(time.Duration(seconds * float64(time.Second)).Round(time.Microsecond))
}

var (
	keyA = Key{"order", "a"}
	keyB = Key{"order", "b"}
	r1   = RelayID{1, 1}
	r2   = RelayID{2, 1}
	r3   = RelayID{3, 1}
)

// scene builds a Record.
type scene struct {
	rec  Record
	last map[RelayID]int // number of the last call
}

func newScene() *scene {
	return &scene{rec: Record{Lease: testLease, Lane: map[Key]int{keyA: 0, keyB: 1}}, last: map[RelayID]int{}}
}

func event(k Key, n int64) Event {
	e := Event{Key: k, N: n, EventType: "t", At: at(0)}
	copy(e.ID[:], fmt.Sprintf("%s-%d", k.ID, n))
	return e
}

// commit adds events 1 to n of a key to the history.
func (s *scene) commit(k Key, n int64) {
	for i := int64(1); i <= n; i++ {
		s.rec.Committed = append(s.rec.Committed, event(k, i))
	}
}

// call notes that a relay publishes events for a tenth of a second, and that the sink confirms them.
func (s *scene) call(r RelayID, t float64, events ...Event) CallID {
	return s.try(r, t, true, events...)
}

func (s *scene) try(r RelayID, t float64, confirmed bool, events ...Event) CallID {
	s.last[r]++
	c := Call{CallID: CallID{r, s.last[r]}, Begin: at(t), End: at(t + 0.1), Confirmed: map[outbox.ID]bool{}}
	for _, e := range events {
		c.IDs = append(c.IDs, e.ID)
		if confirmed {
			c.Confirmed[e.ID] = true
		} else {
			c.Err = "connection reset"
		}
	}
	s.rec.Calls = append(s.rec.Calls, c)
	return c.CallID
}

// arrive has events of a call arrive.
func (s *scene) arrive(c CallID, t float64, events ...Event) {
	for _, e := range events {
		s.rec.Arrivals = append(s.rec.Arrivals, Arrival{
			ID: e.ID, Key: e.Key, N: e.N, EventType: e.EventType, Call: c, At: at(t), Place: fmt.Sprintf("place %d", len(s.rec.Arrivals)),
		})
	}
}

// deliver is call and arrive.
func (s *scene) deliver(r RelayID, t float64, events ...Event) {
	s.arrive(s.call(r, t, events...), t+0.05, events...)
}

func (s *scene) store(r RelayID, t float64, lanes ...int) {
	s.rec.Stores = append(s.rec.Stores, Store{r, at(t), lanes})
}

func (s *scene) fault(kind Kind, target Target, begin, end float64) {
	s.rec.Faults = append(s.rec.Faults, Fault{Kind: kind, Target: target, Begin: at(begin), End: at(end)})
}

// counts are what a scene should yield beside what was committed.
type counts struct{ lost, invented, order, duplicates, unexplained int }

func TestCheck(t *testing.T) {
	a := func(n int64) Event { return event(keyA, n) }
	b := func(n int64) Event { return event(keyB, n) }
	tests := []struct {
		name   string
		play   func(*scene)
		want   counts
		reason string // in the first finding
	}{
		{"nothing", func(*scene) {}, counts{}, ""},
		{"all is well", func(s *scene) {
			s.commit(keyA, 3)
			s.commit(keyB, 1)
			s.deliver(r1, 1, a(1), b(1), a(2))
			s.deliver(r2, 2, a(3))
		}, counts{}, ""},

		{"lost, never sent", func(s *scene) {
			s.commit(keyA, 2)
			s.deliver(r1, 1, a(2))
		}, counts{lost: 1}, "no relay ever sent it"},
		{"lost, though confirmed", func(s *scene) {
			s.commit(keyA, 1)
			s.call(r1, 1, a(1))
		}, counts{lost: 1}, "the sink confirmed it"},
		{"lost after a failure", func(s *scene) {
			s.commit(keyA, 1)
			s.try(r1, 1, false, a(1))
		}, counts{lost: 1}, "connection reset"},

		{"invented", func(s *scene) {
			s.deliver(r1, 1, a(1))
		}, counts{invented: 1}, "nobody wrote it"},
		{"rolled back", func(s *scene) {
			s.rec.Undone = []Event{a(1)}
			s.deliver(r1, 1, a(1))
		}, counts{invented: 1}, "rolled it back"},
		{"arrives as something else", func(s *scene) {
			s.commit(keyA, 1)
			e := a(1)
			e.N = 7
			s.deliver(r1, 1, e)
		}, counts{lost: 1, invented: 1}, "as number 7"},
		{"arrives under another key", func(s *scene) {
			s.commit(keyA, 1)
			e := a(1)
			e.Key = keyB
			s.deliver(r1, 1, e)
		}, counts{lost: 1, invented: 1}, "of order/b"},

		{"out of order", func(s *scene) {
			s.commit(keyA, 3)
			s.deliver(r1, 1, a(1), a(3), a(2))
		}, counts{order: 1}, "after number 3"},
		{"a gap is lost, not out of order", func(s *scene) {
			s.commit(keyA, 3)
			s.deliver(r1, 1, a(1), a(3))
		}, counts{lost: 1}, "did not arrive"},
		{"keys do not wait for each other", func(s *scene) {
			s.commit(keyA, 2)
			s.commit(keyB, 2)
			s.deliver(r1, 1, b(1), b(2), a(1), a(2))
		}, counts{}, ""},
		{"repetitions have no order", func(s *scene) {
			s.commit(keyA, 3)
			s.deliver(r1, 1, a(1), a(2), a(3))
			s.fault(Kill, Target{1, 1}, 1.5, 1.5)
			s.deliver(r2, 10, a(1), a(2), a(3))
		}, counts{duplicates: 3}, ""},
		{"a fault does not excuse disorder", func(s *scene) {
			s.commit(keyA, 2)
			s.fault(Restart, Target{}, 0, 1)
			s.deliver(r1, 1, a(2), a(1))
		}, counts{order: 1}, "after number 2"},

		{"repeated without a fault", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault hit r1.1"},
		{"repeated after another relay's fault", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Kill, Target{3, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault hit r1.1"},
		{"repeated after the fault of the relay that repeats", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(HoleDB, Target{2, 0}, 2, 3)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault hit r1.1"},
		{"repeated after an earlier life's death", func(s *scene) {
			s.commit(keyA, 1)
			s.fault(Kill, Target{1, 1}, 0, 0)
			s.deliver(RelayID{1, 2}, 1, a(1))
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault hit r1.2"},
		{"repeated after a link's fault, whoever lives behind it", func(s *scene) {
			s.commit(keyA, 1)
			s.fault(HoleBroker, Target{1, 0}, 0, 2)
			s.deliver(RelayID{1, 2}, 1, a(1))
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"repeated after a clean stop", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Leave, Target{1, 1}, 2, 2)
			s.fault(Join, Target{2, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault"},
		{"repeated just in time", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Terminate, Target{}, 2, 3)
			s.deliver(r2, 18, a(1))
		}, counts{duplicates: 1}, ""},
		{"repeated too late", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Terminate, Target{}, 2, 3)
			s.deliver(r2, 18.001, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault"},
		{"repeated while it lasts", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(HoleDB, Target{1, 0}, 2, 100)
			s.deliver(r2, 50, a(1))
		}, counts{duplicates: 1}, ""},
		{"repeated before it began", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.deliver(r2, 5, a(1))
			s.fault(Restart, Target{}, 5.01, 6)
		}, counts{duplicates: 1, unexplained: 1}, "no fault"},

		{"stored, and repeated", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.2, 0)
			s.store(r1, 1.3, 0, 1)
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "had stored"},
		{"stored once, which may have begun before", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.2, 0)
			s.fault(Kill, Target{1, 1}, 3.1, 3.1)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"stored once, and nothing was left to store", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.2, 0)
			s.fault(Kill, Target{1, 1}, 3.3, 3.3)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "had stored"},
		{"stored once, and then the database was away", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.2, 0)
			s.fault(HoleDB, Target{1, 0}, 1.3, 9)
			s.deliver(r2, 10, a(1))
		}, counts{duplicates: 1}, ""},
		{"stored once, after the sink was away", func(s *scene) {
			s.commit(keyA, 1)
			s.fault(CutBroker, Target{1, 0}, 0, 0)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.2, 0)
			s.fault(Kill, Target{1, 1}, 3.3, 3.3)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"stored before it was sent", func(s *scene) {
			s.commit(keyA, 1)
			s.store(r1, 0.9, 0)
			s.store(r1, 0.95, 0)
			s.deliver(r1, 1, a(1))
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"stored while it was being sent", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.05, 0)
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"another lane was stored", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r1, 1.2, 1)
			s.store(r1, 1.3, 1)
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"another relay stored", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.store(r3, 1.2, 0)
			s.store(r3, 1.3, 0)
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
		}, counts{duplicates: 1}, ""},
		{"not confirmed, so not settled by the store", func(s *scene) {
			s.commit(keyA, 1)
			s.arrive(s.try(r1, 1, false, a(1)), 1.05, a(1))
			s.store(r1, 1.2, 0)
			s.store(r1, 1.3, 0)
			s.fault(CutBroker, Target{1, 0}, 1, 1)
			s.deliver(r1, 1.5, a(1))
		}, counts{duplicates: 1}, ""},
		{"the second copy was stored, and repeated", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 5, a(1))
			s.store(r2, 5.2, 0)
			s.store(r2, 5.3, 0)
			s.fault(Kill, Target{2, 1}, 6, 6)
			s.deliver(r3, 8, a(1))
		}, counts{duplicates: 2, unexplained: 1}, "r2.1 had stored"},
		{"the second copy's relay had a fault of its own", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Kill, Target{1, 1}, 2, 2)
			s.deliver(r2, 12, a(1))
			s.fault(Kill, Target{2, 1}, 13, 13)
			s.deliver(r3, 25, a(1))
		}, counts{duplicates: 2}, ""},
		{"held back by the network behind its own repetition", func(s *scene) {
			s.commit(keyA, 1)
			held := s.try(r1, 1, false, a(1))
			s.fault(HoleBroker, Target{1, 0}, 0.5, 30)
			s.deliver(r2, 13, a(1))
			s.store(r2, 13.2, 0)
			s.store(r2, 13.3, 0)
			s.arrive(held, 30.1, a(1))
		}, counts{duplicates: 1}, ""},
		{"sent by nobody's journal", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.fault(Restart, Target{}, 1, 2)
			s.arrive(CallID{r2, 99}, 3, a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no journal"},
		{"sent by a call that did not hold it", func(s *scene) {
			s.commit(keyA, 2)
			s.deliver(r1, 1, a(1))
			s.fault(Restart, Target{}, 1, 2)
			other := s.call(r2, 3, a(2))
			s.arrive(other, 3, a(2), a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no journal"},
		{"repeated within one call, by a cut", func(s *scene) {
			s.commit(keyA, 1)
			c := s.call(r1, 1, a(1))
			s.fault(CutBroker, Target{1, 0}, 1.01, 1.01)
			s.arrive(c, 1.005, a(1))
			s.arrive(c, 1.05, a(1))
		}, counts{duplicates: 1}, ""},
		{"repeated within one call, for no reason", func(s *scene) {
			s.commit(keyA, 1)
			s.arrive(s.call(r1, 1, a(1)), 1.05, a(1), a(1))
		}, counts{duplicates: 1, unexplained: 1}, "no fault"},
		{"suppressed by the broker, and a duplicate all the same", func(s *scene) {
			s.commit(keyA, 1)
			s.deliver(r1, 1, a(1))
			s.arrive(s.call(r2, 1.3, a(1)), 1.35, a(1))
			s.rec.Arrivals[1].Suppressed = true
		}, counts{duplicates: 1, unexplained: 1}, "no fault"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newScene()
			test.play(s)
			r := Check(&s.rec)
			got := counts{r.Lost, r.Invented, r.OrderViolations, r.Duplicates, r.UnexplainedDuplicates}
			if got != test.want {
				t.Errorf("got %+v, want %+v\nfindings: %v", got, test.want, r.Findings)
			}
			bad := test.want.lost + test.want.invented + test.want.order + test.want.unexplained
			if len(r.Findings) != bad || (r.Err() == nil) != (bad == 0) {
				t.Errorf("%d findings, error %v; want %d findings", len(r.Findings), r.Err(), bad)
			}
			if r.Delivered != len(s.rec.Arrivals) || r.Delivered != r.Distinct+r.Duplicates+test.want.invented {
				t.Errorf("delivered %d, of them %d distinct and %d duplicates; %d arrived", r.Delivered, r.Distinct, r.Duplicates, len(s.rec.Arrivals))
			}
			found := false
			for _, f := range r.Findings {
				found = found || strings.Contains(f.Reason, test.reason)
			}
			if bad > 0 && !found {
				t.Errorf("no finding says %q: %v", test.reason, r.Findings)
			}
		})
	}
}

func TestFaultsAreCounted(t *testing.T) {
	s := newScene()
	s.fault(Kill, Target{1, 1}, 0, 0)
	s.fault(Kill, Target{2, 1}, 0, 0)
	s.fault(Join, Target{2, 1}, 0, 0)
	r := Check(&s.rec)
	if r.Faults != 2 || r.FaultsByKind[Kill] != 2 || r.FaultsByKind[Join] != 1 {
		t.Errorf("faults %d, by kind %v; want 2, and 2 kills and a join", r.Faults, r.FaultsByKind)
	}
}
