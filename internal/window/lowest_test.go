package window

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLowest(t *testing.T) {
	bounds := Bounds{Pairs: []Pair{{100, 10}, {110, 20}, {120, 30}}}
	for name, c := range map[string]struct {
		p    Position
		want int64
	}{
		"the beginning":            {*(&modelServer{}).begin().From, 0},
		"nothing was running":      {Position{Snapshot: Snapshot{120, 120, nil}, Next: 120, H: 30, Bounds: bounds}, 30},
		"one began before a pair":  {Position{Snapshot: Snapshot{105, 120, []uint64{105}}, Next: 120, H: 30, Bounds: bounds}, 10},
		"the first of several":     {Position{Snapshot: Snapshot{105, 120, []uint64{105, 112}}, Next: 120, H: 30, Bounds: bounds}, 10},
		"one from before all":      {Position{Snapshot: Snapshot{50, 120, []uint64{50}}, Next: 120, H: 30, Bounds: bounds}, 0},
		"above xmax":               {Position{Snapshot: Snapshot{112, 112, nil}, Next: 130, H: 40, Bounds: bounds}, 20},
		"a floor":                  {Position{Snapshot: Snapshot{50, 120, []uint64{50}}, Next: 120, H: 30, Floor: 7, Bounds: bounds}, 7},
		"a pair above the floor":   {Position{Snapshot: Snapshot{105, 120, []uint64{105}}, Next: 120, H: 30, Floor: 7, Bounds: bounds}, 10},
		"a raised one":             {Position{Snapshot: Snapshot{50, 120, []uint64{50}}, Next: 120, H: 30, Bounds: Bounds{bounds.Pairs, []Raised{{50, 25}}}}, 25},
		"raised, above xmax":       {Position{Snapshot: Snapshot{101, 101, nil}, Next: 130, H: 40, Bounds: Bounds{bounds.Pairs, []Raised{{101, 35}}}}, 10},
		"raised, the next has not": {Position{Snapshot: Snapshot{109, 109, nil}, Next: 130, H: 40, Bounds: Bounds{bounds.Pairs, []Raised{{109, 35}}}}, 20},
	} {
		if got := c.p.Lowest(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		for seq := range c.p.H + 2 {
			holders := c.p.Holders(seq, 1000)
			if (len(holders) > 0) != (seq > c.want) && seq <= c.p.H {
				t.Errorf("%s: %v hold %d, and the lowest is %d", name, holders, seq, c.want)
			}
		}
	}
	p := Position{Snapshot: Snapshot{50, 120, []uint64{50, 105, 112, 119}}, Next: 125, H: 30, Bounds: bounds}
	for seq, want := range map[int64][]uint64{0: nil, 1: {50}, 10: {50}, 11: {50, 105}, 25: {50, 105, 112, 119}, 30: {50, 105, 112, 119}, 31: {50, 105, 112, 119, 120, 121}} {
		if got := p.Holders(seq, 6); !slices.Equal(got, want) {
			t.Errorf("holders of %d: %v, want %v", seq, got, want)
		}
	}
}

// A lane counts by what is stored of it, if that continues in the server as it is.
func TestLowestOfLane(t *testing.T) {
	run := Run{System: "1", ID: "a", Sequence: 1, Filenode: 1}
	at := func(h int64) *Position {
		return &Position{Snapshot: Snapshot{120, 120, nil}, Next: 120, H: h, Run: run, ID: h}
	}
	r := Reading{Snapshot: Snapshot{200, 200, nil}, H: 50, Next: 200, Run: run}
	elsewhere, restarted := r, r
	elsewhere.Run.System, restarted.Run.Filenode = "2", 2
	back := r
	back.H = 35
	crashed := r
	crashed.Run.ID, crashed.Run.Started = "b", "later"
	window := func(c *CatchUp) Open {
		return Open{From: at(30), Window: &Window{From: at(30), To: at(40), CatchUp: c}, P: 35}
	}
	for name, c := range map[string]struct {
		open Open
		r    Reading
		want int64
	}{
		"no window":                        {Open{From: at(30)}, r, 30},
		"in a window: where it began":      {window(nil), r, 30},
		"the server has crashed meanwhile": {window(nil), crashed, 30},
		"catching up":                      {window(&CatchUp{}), r, 0},
		"another cluster":                  {Open{From: at(30)}, elsewhere, 0},
		"the sequence was restarted":       {Open{From: at(30)}, restarted, 0},
		"the sequence went back":           {window(nil), back, 0},
		"a note that it went back":         {window(nil).Renumbered(), r, 0},
	} {
		got, why := c.open.Lowest(c.r)
		if got != c.want || (why == "") != (c.want > 0) {
			t.Errorf("%s: %d, %q; want %d", name, got, why, c.want)
		}
	}
}

// checkLowest: whatever lies at or below the lowest number of a lane has arrived, and no transaction will add to it.
func (f *fleet) checkLowest(t fataler) {
	t.Helper()
	lows := make([]int64, len(f.settled))
	for lane, open := range f.settled {
		lows[lane] = reload(open).From.Lowest()
	}
	arrived := map[*modelRow]bool{}
	for _, row := range f.arrived {
		arrived[row] = true
	}
	for _, row := range f.server.rows {
		if row.seq <= lows[row.lane] && !arrived[row] {
			t.Fatalf("row %d of lane %d, with number %d, is not settled, and the lane's lowest number is %d", row.name, row.lane, row.seq, lows[row.lane])
		}
	}
	for _, tx := range f.server.open {
		for _, row := range tx.rows {
			if row.seq <= lows[row.lane] {
				t.Fatalf("row %d of lane %d, with number %d, is not committed yet, and the lane's lowest number is %d", row.name, row.lane, row.seq, lows[row.lane])
			}
		}
	}
}

func TestNothingUnsettledLiesBelowTheLowest(t *testing.T) {
	check := func(t fataler, pick func(int) int, lanes, relays, turns int) {
		t.Helper()
		s := newModel(pick)
		s.lanes = lanes
		f := newFleet(s, relays)
		for range turns {
			f.turn(t)
			f.checkLowest(t)
		}
		f.end(t)
		// When all is quiet nothing is kept.
		for lane, open := range f.settled {
			if low := open.From.Lowest(); open.Window != nil || low != s.seq {
				t.Fatalf("all has ended and is settled up to %d, and the lowest number of lane %d is %d", s.seq, lane, low)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, picker(t), rapid.IntRange(1, 8).Draw(t, "lanes"), rapid.IntRange(1, 3).Draw(t, "relays"), rapid.IntRange(1, 100).Draw(t, "turns"))
	})
	for seed := range uint64(6) {
		dice := rand.New(rand.NewPCG(seed, 11))
		if how := failing(func(t fataler) { check(t, dice.IntN, 4, 2, 300) }); how != "" {
			t.Errorf("history %d: %s", seed, how)
		}
	}
}
