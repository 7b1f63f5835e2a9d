package window

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// observer follows a server as one relay does that others know nothing of.
type observer struct{ at *Position }

// readTogether takes readings for some observers at once, the steps of their statements in any order: one may see the lower
// number and the higher next id.
func (s *modelServer) readTogether(n int) []Reading {
	readings, done := make([]Reading, n), make([]int, n)
	for range 3 * n {
		i := s.pick(n)
		for done[i] == 3 {
			i = (i + 1) % n
		}
		switch r := &readings[i]; done[i] {
		case 0:
			r.Snapshot, r.Run = s.snapshot(), s.run
		case 1:
			r.H = s.seq
		case 2:
			r.Next = s.next
		}
		done[i]++
		s.meanwhile()
	}
	return readings
}

// What two relays know of running transactions is true for both: put together it is never too late, and nothing is forgotten.
func TestBoundsOfSeveralRelays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newModel(picker(t))
		observers := make([]observer, rapid.IntRange(2, 5).Draw(t, "observers"))
		for i := range observers {
			observers[i].at = s.begin().From
		}
		for range rapid.IntRange(1, 30).Draw(t, "turns") {
			s.steps(s.pick(10))
			n := 1 + s.pick(len(observers))
			for i, r := range s.readTogether(n) {
				o := &observers[i]
				if r.H < o.at.H || r.Next < o.at.Next {
					continue
				}
				o.at = o.at.next(r)
				if s.pick(3) == 0 { // a look at the locks
					writers, _ := s.Writers(t.Context())
					after := s.snapshot()
					var idle []uint64
					for _, x := range o.at.Snapshot.Xip {
						if !writers[uint32(x)] && !after.Ended(x) {
							idle = append(idle, x)
						}
					}
					o.at = o.at.Raise(idle)
				}
			}
			all := observers[0].at.Bounds
			for _, o := range observers[1:] {
				all = all.and(o.at.Bounds)
			}
			for _, tx := range s.open {
				if len(tx.rows) > 0 && tx.rows[0].seq <= all.of(tx.xid, 0) {
					t.Fatalf("transaction %d has number %d, and its bound is %d: %+v", tx.xid, tx.rows[0].seq, all.of(tx.xid, 0), all)
				}
			}
			for x := uint64(3); x < s.next+3; x++ {
				best := int64(0)
				for _, o := range observers {
					best = max(best, o.at.Bounds.of(x, 0))
				}
				if got := all.of(x, 0); got < best {
					t.Fatalf("the bound of %d is %d together, and %d was known: %+v of %+v", x, got, best, all, observers)
				}
			}
			for i, p := range all.Pairs[1:] {
				if before := all.Pairs[i]; p.Next <= before.Next || p.H <= before.H {
					t.Fatalf("pairs do not ascend: %+v", all.Pairs)
				}
			}
		}
	})
}

func TestBoundsAnd(t *testing.T) {
	a := Bounds{Pairs: []Pair{{10, 100}, {20, 300}, {30, 400}}, Raised: []Raised{{5, 90}, {7, 70}}}
	b := Bounds{Pairs: []Pair{{10, 110}, {21, 200}, {25, 350}, {30, 390}}, Raised: []Raised{{7, 80}, {4, 10}}}
	want := Bounds{Pairs: []Pair{{10, 110}, {20, 300}, {25, 350}, {30, 400}}, Raised: []Raised{{4, 10}, {5, 90}, {7, 80}}}
	for _, c := range []struct{ x, y Bounds }{{a, b}, {b, a}} {
		x, y := slices.Clone(c.x.Pairs), slices.Clone(c.y.Pairs)
		got := c.x.and(c.y)
		if !slices.Equal(got.Pairs, want.Pairs) || !slices.Equal(got.Raised, want.Raised) {
			t.Errorf("%+v and %+v are %+v, want %+v", c.x, c.y, got, want)
		}
		if !slices.Equal(c.x.Pairs, x) || !slices.Equal(c.y.Pairs, y) {
			t.Errorf("they were changed")
		}
	}
	if got := (Bounds{}).and(a); !slices.Equal(got.Pairs, a.Pairs) {
		t.Errorf("nothing and %+v are %+v", a, got)
	}
}

// However many pairs come together, a position stays small.
func TestManyBoundsArePruned(t *testing.T) {
	var pairs []Pair
	for i := range 10 * maxPairs {
		pairs = append(pairs, Pair{uint64(1000 + i), int64(i)})
	}
	last := pairs[len(pairs)-1]
	got := prune(slices.Clone(pairs), Snapshot{Xmin: 5, Xmax: 6})
	if len(got) > maxPairs || got[len(got)-1] != last || got[0] != pairs[0] {
		t.Errorf("%d pairs are kept from %v to %v, want at most %d from %v to %v", len(got), got[0], got[len(got)-1], maxPairs, pairs[0], last)
	}
	whole := Bounds{Pairs: pairs}
	for x := uint64(990); x < last.Next+10; x++ {
		if b := (Bounds{Pairs: got}); b.of(x, 0) > whole.of(x, 0) {
			t.Fatalf("the bound of %d is %d, was %d", x, b.of(x, 0), whole.of(x, 0))
		}
	}
}
