package window

import (
	"context"
	"slices"
	"testing"
)

// watched is a source that does as it is told, one statement after the other.
type watched struct {
	Source
	position func() Reading
	events   []Event
	asked    [][]int
}

func (w *watched) Position(context.Context) (Reading, error) { return w.position(), nil }

func (w *watched) Page(_ context.Context, _ *Window, lanes []int, p, hi int64) ([]Event, bool, error) {
	w.asked = append(w.asked, slices.Clone(lanes))
	for i, e := range w.events {
		if e.Seq > p && e.Seq <= hi && slices.Contains(lanes, e.Lane) {
			return slices.Clone(w.events[i : i+1]), true, nil
		}
	}
	return nil, false, nil
}

func (w *watched) NextSeq(context.Context, int64) (int64, bool, error) { return 0, false, nil }

// A lane comes from another relay that has read later than this one has.
func TestLaneNewerThanTheReader(t *testing.T) {
	run := Run{System: "1"}
	old := Reading{Snapshot: snapshot(t, "10:10:"), H: 100, Next: 10, Run: run}
	src := &watched{position: func() Reading { return old }}
	r := NewReader(src, old)
	from := &Position{ID: 1, Snapshot: snapshot(t, "5:5:"), H: 40, Next: 5, Run: run}
	to := &Position{ID: 2, Snapshot: snapshot(t, "10:10:"), H: 100, Next: 10, Run: run}
	r.Add(0, Open{From: from, Window: &Window{From: from, To: to, Low: 40}, P: 40})
	page, err := r.Next(t.Context(), nil) // the reader has looked after it, too
	if err != nil || !page.Last {
		t.Fatalf("page %+v, %v", page, err)
	}

	newer := &Position{
		ID: 3, Snapshot: snapshot(t, "20:20:"), H: 200, Next: 22, Run: run,
		Bounds: Bounds{Pairs: []Pair{{19, 150}, {22, 200}}, Raised: []Raised{{21, 190}}},
	}
	r.Add(1, Open{From: newer})
	src.position = func() Reading {
		return Reading{Snapshot: snapshot(t, "20:24:20"), H: 300, Next: 24, Run: run}
	}
	for {
		page, err := r.Next(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if page.At == nil {
			if page.Window.To.H < 200 {
				t.Fatalf("lanes %v are read up to %d", page.Lanes, page.Window.To.H)
			}
			continue
		}
		if slices.Contains(page.Lanes, 1) && page.At.H < newer.H {
			t.Fatalf("lane 1 stood at %d, and goes back to %d", newer.H, page.At.H)
		}
		if _, together := r.Together(); together != nil {
			if got := together.Bounds.of(20, 0); got != 150 {
				t.Errorf("what the other relay knew of transaction 20 is forgotten: its bound is %d, want 150", got)
			}
			break
		}
	}

	// A counter that goes back behind what the other relay has read is noticed, whatever this one has read itself.
	for _, back := range []Reading{
		{Snapshot: snapshot(t, "30:30:"), H: 199, Next: 30, Run: run},
		{Snapshot: snapshot(t, "20:20:"), H: 300, Next: 21, Run: run},
	} {
		r := NewReader(&watched{position: func() Reading { return back }}, old)
		r.Add(1, Open{From: newer})
		if page, err := r.Next(t.Context(), nil); err == nil {
			t.Errorf("from h %d, next id %d the counters have gone back to %d, %d, and the reader returns %+v", newer.H, newer.Next, back.H, back.Next, page)
		}
	}
}

// somewhere is a window, with lanes that are to stand in it.
func somewhere(t testing.TB) (*watched, Reading, *Window) {
	t.Helper()
	run := Run{System: "1"}
	now := Reading{Snapshot: snapshot(t, "30:30:"), H: 200_000, Next: 30, Run: run}
	from := &Position{ID: 1, Snapshot: snapshot(t, "5:5:"), H: 40, Next: 5, Run: run}
	to := &Position{ID: 2, Snapshot: snapshot(t, "20:20:"), H: 100_000, Next: 20, Run: run}
	return &watched{position: func() Reading { return now }}, now, &Window{From: from, To: to}
}

func open(w *Window, p int64) Open { return reload(Open{From: w.From, Window: w, P: p}) }

// Lanes of one window that are near each other are read together from the lowest place, and none is served twice.
func TestLanesNearEachOtherAreReadTogether(t *testing.T) {
	src, now, w := somewhere(t)
	for seq := int64(5000); seq <= 100_000; seq += 500 {
		for lane := range 3 {
			src.events = append(src.events, Event{Seq: seq + int64(lane), Lane: lane})
		}
	}
	r := NewReader(src, now)
	at := map[int]int64{0: 12_000, 1: 6_000, 2: 50_000}
	for lane, p := range at {
		r.Add(lane, open(w, p))
	}
	together := false
	for at[0] < w.To.H || at[1] < w.To.H || at[2] < w.To.H {
		page, err := r.Next(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if page.At != nil || page.Window.To.ID != w.To.ID {
			continue // lanes that are through
		}
		for _, e := range page.Events {
			if e.Seq <= at[e.Lane] {
				t.Fatalf("lane %d stands at %d, and is handed %d", e.Lane, at[e.Lane], e.Seq)
			}
		}
		for _, lane := range page.Lanes {
			if page.P < at[lane] {
				t.Fatalf("lane %d stands at %d, and a page up to %d is said to be for it", lane, at[lane], page.P)
			}
			// All of the lane's events in between are in the page.
			for _, e := range src.events {
				if e.Lane == lane && e.Seq > at[lane] && e.Seq <= page.P && !slices.ContainsFunc(page.Events, func(o Event) bool { return o.Seq == e.Seq }) {
					t.Fatalf("lane %d goes on from %d to %d, and %d is left out", lane, at[lane], page.P, e.Seq)
				}
			}
			at[lane] = page.P
		}
		asked := src.asked[len(src.asked)-1]
		together = together || slices.Equal(asked, []int{0, 1})
		if slices.Contains(asked, 2) && len(asked) > 1 {
			t.Errorf("lane 2 is far away, and is read together with others: %v", asked)
		}
	}
	if !together {
		t.Errorf("lanes 0 and 1 were never read together: %v", src.asked)
	}
}

// The lane that is furthest behind leaves: the others go on from where they are.
func TestTheLastLaneLeaves(t *testing.T) {
	src, now, w := somewhere(t)
	src.events = []Event{{Seq: 8000, Lane: 1}, {Seq: 13_000, Lane: 0}}
	r := NewReader(src, now)
	r.Add(0, open(w, 12_000))
	r.Add(1, open(w, 6_000))
	r.Remove(1)
	page, err := r.Next(t.Context(), nil)
	if err != nil || !slices.Equal(page.Lanes, []int{0}) || len(page.Events) != 1 || page.Events[0].Seq != 13_000 {
		t.Fatalf("page %+v, %v; want event 13000 for lane 0", page, err)
	}
	r.Remove(0)
	r.Remove(7) // not there
	if page, err := r.Next(t.Context(), nil); page != nil || err != nil {
		t.Errorf("with no lane: page %+v, %v", page, err)
	}
}

// A lane that takes no more does not hold up one that has nothing left, and holds up nobody else; it joins again.
func TestAFullLaneLeavesTheGroup(t *testing.T) {
	src, now, w := somewhere(t)
	for i := range int64(20) {
		src.events = append(src.events, Event{Seq: 100 + i, Lane: int(i % 2)})
	}
	r := NewReader(src, now)
	r.Add(0, open(w, 0))
	r.Add(1, open(w, 0))
	loads := []Load{Some, Full}
	load := func(lane int) Load { return loads[lane] }
	next := func() *Page {
		t.Helper()
		page, err := r.Next(t.Context(), load)
		if err != nil {
			t.Fatal(err)
		}
		return page
	}
	if page := next(); page != nil {
		t.Fatalf("lane 1 is full and lane 0 is busy, and there is a page: %+v", page)
	}
	loads[0] = Dry
	for i := range 3 {
		if page := next(); !slices.Equal(page.Lanes, []int{0}) || page.Events[0].Seq != 100+2*int64(i) {
			t.Fatalf("page %d is %+v; want one of lane 0 alone", i, page)
		}
	}
	loads[1] = Dry
	seen := map[int64]bool{}
	for range 40 {
		page := next()
		for _, e := range page.Events {
			if e.Lane == 1 && seen[e.Seq] {
				t.Fatalf("event %d was handed out twice", e.Seq)
			}
			seen[e.Seq] = true
		}
	}
	for seq := int64(101); seq < 120; seq += 2 {
		if !seen[seq] {
			t.Errorf("event %d of the lane that was full is lost", seq)
		}
	}
	if together, _ := r.Together(); together == nil {
		t.Errorf("they do not stand together in the end")
	}
}

// Lanes whose windows end at different moments fall in step, though there is always something to read.
func TestLanesFallInStep(t *testing.T) {
	src, now, w := somewhere(t)
	src.position = func() Reading {
		now.H += 10
		return now
	}
	r := NewReader(src, now)
	r.Add(0, Open{From: w.To})
	r.Add(1, open(w, w.To.H-10))
	for range 50 {
		if _, err := r.Next(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if together, _ := r.Together(); len(together) == 2 {
			return
		}
	}
	t.Error("the lanes take turns for ever")
}
