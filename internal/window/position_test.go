package window

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBoundOf(t *testing.T) {
	b := Bounds{
		Pairs:  []Pair{{10, 100}, {20, 200}, {30, 300}},
		Raised: []Raised{{15, 250}, {25, 150}},
	}
	for _, c := range []struct {
		x     uint64
		floor int64
		want  int64
	}{
		{x: 9, want: 0},                // older than every pair: nothing is known
		{x: 9, floor: 50, want: 50},    // but the floor
		{x: 10, want: 100},             // had no id when the pair was read: it is the next one
		{x: 11, want: 100},             //
		{x: 19, want: 100},             //
		{x: 20, want: 200},             //
		{x: 1 << 40, want: 300},        //
		{x: 11, floor: 150, want: 150}, //
		{x: 15, want: 250},             // raised
		{x: 15, floor: 400, want: 400},
		{x: 25, want: 200}, // its pair says more than the raise did
	} {
		if got := b.of(c.x, c.floor); got != c.want {
			t.Errorf("bound of %d with floor %d: %d, want %d", c.x, c.floor, got, c.want)
		}
	}
	if got := (Bounds{}).of(7, 3); got != 3 {
		t.Errorf("bound without pairs: %d, want the floor, 3", got)
	}
}

func TestAdvanceLow(t *testing.T) {
	p := &Position{
		Snapshot: snapshot(t, "12:20:12,15"), H: 300, Next: 23, Floor: 7,
		Bounds: Bounds{Pairs: []Pair{{14, 100}, {21, 200}, {23, 300}}, Raised: []Raised{{15, 250}}},
	}
	for _, c := range []struct {
		name, snapshot string
		low            int64
	}{
		{"none has ended", "12:20:12,15", 300},
		{"only transactions that began later", "12:25:12,15,20,21,22", 300},
		{"the oldest", "15:20:15", 7},
		{"a raised one", "12:20:12", 250},
		{"both", "20:20:", 7},
		{"one above xmax without an own pair", "12:25:12,15,21,22", 100},
		{"one above xmax with one", "12:25:12,15,20,22", 200},
		{"all above xmax", "12:25:12,15", 100},
	} {
		next, low := p.Advance(Reading{Snapshot: snapshot(t, c.snapshot), H: 400, Next: 30})
		if low != c.low {
			t.Errorf("%s: low is %d, want %d", c.name, low, c.low)
		}
		if next.Floor != 7 || next.H != 400 || next.Next != 30 || next.ID <= 0 || next.ID == p.ID {
			t.Errorf("%s: next position is %+v", c.name, next)
		}
	}
}

// A raised bound says nothing of the transactions after it.
func TestAdvanceLooksBeyondARaisedOne(t *testing.T) {
	p := &Position{
		Snapshot: snapshot(t, "20:20:"), H: 300, Next: 23,
		Bounds: Bounds{Pairs: []Pair{{14, 100}, {21, 200}, {23, 300}}, Raised: []Raised{{20, 280}}},
	}
	if _, low := p.Advance(Reading{Snapshot: snapshot(t, "21:25:21"), H: 400, Next: 30}); low != 200 {
		t.Errorf("low is %d, want 200, the bound of 22", low)
	}
}

func TestAdvanceForgetsWhatNobodyNeeds(t *testing.T) {
	p := &Position{
		Snapshot: snapshot(t, "12:20:12,15"), H: 300, Next: 23,
		Bounds: Bounds{Pairs: []Pair{{5, 10}, {11, 50}, {13, 60}, {14, 100}, {21, 200}, {23, 300}}, Raised: []Raised{{12, 250}, {15, 280}}},
	}
	next, _ := p.Advance(Reading{Snapshot: snapshot(t, "15:30:15,22"), H: 400, Next: 31})
	// 15 needs the pair of 14, 22 that of 21, and 30 that of 23.
	if want := []Pair{{14, 100}, {21, 200}, {23, 300}, {31, 400}}; !slices.Equal(next.Bounds.Pairs, want) {
		t.Errorf("pairs %v, want %v", next.Bounds.Pairs, want)
	}
	if want := []Raised{{15, 280}}; !slices.Equal(next.Bounds.Raised, want) {
		t.Errorf("raised %v, want %v", next.Bounds.Raised, want)
	}
	if len(p.Bounds.Pairs) != 6 || len(p.Bounds.Raised) != 2 {
		t.Errorf("Advance changed the position it began at: %+v", p.Bounds)
	}
	// Nothing but numbers has moved: the newer pair of the same id knows more.
	again, _ := next.Advance(Reading{Snapshot: next.Snapshot, H: 500, Next: 31})
	if want := []Pair{{14, 100}, {21, 200}, {23, 300}, {31, 500}}; !slices.Equal(again.Bounds.Pairs, want) {
		t.Errorf("pairs %v, want %v", again.Bounds.Pairs, want)
	}
}

// The bounds after pruning are the best that all readings together could give, and low is what they say.
func TestBoundsAreTheBestKnown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newModel(picker(t))
		s.quiet = true // readings are atomic, so that bounds can be told from the outside
		p := s.begin().From
		history := []Pair{{p.Next, p.H}}
		best := func(x uint64) int64 {
			h := int64(0)
			for _, pair := range history {
				if pair.Next <= x {
					h = max(h, pair.H)
				}
			}
			return h
		}
		for range rapid.IntRange(1, 40).Draw(t, "readings") {
			s.steps(s.pick(12))
			r := s.reading()
			next, low := p.Advance(r)

			want := p.H
			for x := min(p.Snapshot.Xmin, p.Next); x < p.Next; x++ {
				if !p.Snapshot.Ended(x) && x < s.next && r.Snapshot.Ended(x) {
					want = min(want, best(x))
				}
			}
			if low != want {
				t.Fatalf("low is %d, want %d: from %+v to %+v", low, want, p, r)
			}
			for _, row := range s.rows {
				if !p.Snapshot.Ended(row.xid) && r.Snapshot.Ended(row.xid) && (row.seq <= low || row.seq > r.H) {
					t.Fatalf("row %d of transaction %d lies outside (%d, %d]", row.seq, row.xid, low, r.H)
				}
			}
			history = append(history, Pair{r.Next, r.H})
			for x := r.Snapshot.Xmin; x < r.Next; x++ {
				if !r.Snapshot.Ended(x) && next.Bounds.of(x, 0) != best(x) {
					t.Fatalf("the bound of %d is %d, want %d: %+v of %v", x, next.Bounds.of(x, 0), best(x), next, history)
				}
			}
			p = next
		}
	})
}

// While transactions take ids and none ends, a position would grow with every reading.
func TestBoundsStaySmall(t *testing.T) {
	p := &Position{Snapshot: snapshot(t, "100:100:"), Next: 100}
	var all []Pair
	for i := range uint64(5 * maxPairs) {
		r := Reading{Snapshot: p.Snapshot, Next: 101 + i, H: int64(10 * i)}
		var low int64
		if p, low = p.Advance(r); low > r.H {
			t.Fatalf("low %d above h %d", low, r.H)
		}
		all = append(all, Pair{r.Next, r.H})
		if len(p.Bounds.Pairs) > maxPairs {
			t.Fatalf("%d pairs after %d readings, want at most %d", len(p.Bounds.Pairs), i+1, maxPairs)
		}
		if newest := p.Bounds.Pairs[len(p.Bounds.Pairs)-1]; newest != all[len(all)-1] {
			t.Fatalf("the newest pair is %v, want %v", newest, all[len(all)-1])
		}
	}
	if !slices.IsSortedFunc(p.Bounds.Pairs, func(a, b Pair) int { return int(a.H - b.H) }) {
		t.Errorf("pairs are out of order")
	}
	for _, pair := range all {
		if got := p.Bounds.of(pair.Next, 0); got > pair.H {
			t.Fatalf("the bound of %d is %d, above %d, which it may have drawn", pair.Next, got, pair.H)
		}
	}
	if got := p.Bounds.of(all[len(all)/2].Next, 0); got == 0 {
		t.Errorf("half way through nothing is known any more")
	}
}

func TestLaggingAndRaise(t *testing.T) {
	p := &Position{
		Snapshot: snapshot(t, "12:20:12,15,18"), H: 1000, Next: 23, Floor: 5, ID: 9,
		Bounds: Bounds{Pairs: []Pair{{14, 100}, {17, 900}}},
	}
	if got, want := p.Lagging(500), []uint64{12, 15}; !slices.Equal(got, want) {
		t.Errorf("Lagging: %v, want %v", got, want)
	}
	raised := p.Raise([]uint64{12})
	if got, want := raised.Lagging(500), []uint64{15}; !slices.Equal(got, want) {
		t.Errorf("Lagging after the raise: %v, want %v", got, want)
	}
	if len(p.Bounds.Raised) != 0 {
		t.Errorf("Raise changed the position it began at")
	}
	if raised.ID <= 0 || raised.ID == p.ID || raised.Floor != 5 || raised.H != 1000 || raised.Next != 23 {
		t.Errorf("the raised position is %+v; it has an id of its own, and all else as before", raised)
	}
	// Raised again later, to what was read then.
	later, low := raised.Advance(Reading{Snapshot: snapshot(t, "12:30:12"), H: 5000, Next: 30})
	if low != 100 {
		t.Errorf("low is %d, want 100, the bound of 15", low)
	}
	again := later.Raise([]uint64{12})
	if want := []Raised{{12, 5000}}; !slices.Equal(again.Bounds.Raised, want) {
		t.Errorf("raised %v, want %v", again.Bounds.Raised, want)
	}
	if _, low := again.Advance(Reading{Snapshot: snapshot(t, "30:30:"), H: 6000, Next: 30}); low != 5000 {
		t.Errorf("at its end low is %d, want 5000", low)
	}
}
