package window

import (
	"context"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// breakage is what may happen to a server's counters.
type breakage struct {
	name   string
	happen func(s *modelServer, settled Open)
	atOnce bool // seen only if a relay looks before the sequence is where it was
}

var breakages = []breakage{
	{name: "dump and restore into a cluster with higher ids", happen: func(s *modelServer, _ Open) {
		s.kill()
		s.run.System += "'"
		s.run.Sequence++
		s.next += uint64(1000 + s.pick(1000))
		s.ended = s.next - 1
	}},
	{name: "dump and restore into a cluster with lower ids", happen: func(s *modelServer, _ Open) {
		s.kill()
		s.run.System += "'"
		s.run.Sequence++
		s.next = uint64(650 + s.pick(100))
		s.ended = s.next - 1
	}},
	{name: "upgrade that keeps the ids", happen: func(s *modelServer, _ Open) {
		s.kill()
		s.run.System += "'"
		s.ended = s.next - 1
	}},
	{name: "truncate with restart identity", happen: func(s *modelServer, _ Open) {
		s.endAll()
		s.rows = nil
		s.seq = 0
		s.run.Filenode++
		s.id(&modelTx{})
		s.ended = s.next - 1
	}},
	{name: "sequence set back to the highest number in the table", atOnce: true, happen: func(s *modelServer, _ Open) {
		s.endAll()
		s.seq = s.highest()
	}},
	{name: "crash", happen: func(s *modelServer, settled Open) {
		// What was there when the position was stored has reached the disk, and so have all commits. Ids that left no
		// trace, and numbers that nobody committed, may be handed out again.
		newest := settled.Newest()
		s.kill()
		s.run.ID += "'"
		low := max(s.ended+1, newest.Snapshot.Xmax)
		s.next = low + uint64(s.pick(int(s.next-low)+1))
		s.ended = s.next - 1
		least := max(s.highest(), newest.H)
		s.seq = least + int64(s.pick(int(min(s.seq-least, 30))+1))
	}},
}

// kill ends every transaction without a trace.
func (s *modelServer) kill() { s.open, s.locks = nil, map[string]*modelTx{} }

func (s *modelServer) highest() int64 {
	if len(s.rows) == 0 {
		return 0
	}
	return s.rows[len(s.rows)-1].seq
}

// recover goes on after a break as a relay does. again says that what was settled cannot be told from what was not: numbers
// have started over, and it was settled by number alone, below a floor or while catching up; or ids cannot be compared.
func (c *consumer) recover() (again bool) {
	s := c.server
	c.settled = reload(c.settled)
	r, err := c.src.Position(context.Background())
	if err != nil {
		panic(err)
	}
	if c.settled.Newest().Void(r) == "" {
		c.read(r)
		return false
	}
	// The table is locked: writers end, and none begins.
	defer func(was bool) { s.quiet = was }(s.quiet)
	s.endAll()
	s.quiet = true
	quiet := s.reading()
	was := c.settled
	c.settled = reload(Recover(c.settled, Quiet(quiet)))
	c.read(quiet)
	byNumber := was.From.Floor
	if w := was.Window; w != nil && w.CatchUp != nil {
		byNumber = max(byNumber, was.P)
	}
	nothing := emptySnapshot.String()
	return c.settled.P < byNumber || c.settled.Window.CatchUp.Snapshot == nothing && was.From.Snapshot.String() != nothing
}

func TestRecoverSkipsNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newModel(picker(t))
		c := newConsumer(s, s)
		again := false
		var names []string
		for range rapid.IntRange(1, 4).Draw(t, "breaks") {
			for range rapid.IntRange(0, 15).Draw(t, "turns") {
				if s.pick(3) == 0 {
					s.steps(s.pick(15))
				} else {
					c.next(t)
				}
			}
			b := breakages[s.pick(len(breakages))]
			names = append(names, b.name)
			b.happen(s, c.settled)
			if !b.atOnce {
				s.steps(s.pick(15))
			}
			s.quiet = b.atOnce
			again = c.recover() || again
			s.quiet = false
		}
		s.steps(s.pick(15))
		s.endAll()
		s.quiet = true
		c.drain(t)

		seen := map[int]int{}
		for _, row := range c.arrived {
			seen[row.name]++
			if seen[row.name] > 1 && !again {
				t.Fatalf("after %q row %d (seq %d, transaction %d) arrived twice", names, row.name, row.seq, row.xid)
			}
		}
		for _, row := range s.rows {
			if seen[row.name] == 0 {
				t.Fatalf("after %q row %d (seq %d, transaction %d) is lost", names, row.name, row.seq, row.xid)
			}
		}
	})
}

func TestVoid(t *testing.T) {
	p := &Position{H: 50, Next: 100, Run: Run{
		System: "1", Timeline: 1, Database: 5, Started: "monday", ID: "a", Sequence: 7, Filenode: 8,
	}}
	for _, c := range []struct {
		name   string
		change func(*Reading)
		void   bool
	}{
		{"nothing has happened", func(*Reading) {}, false},
		{"time has passed", func(r *Reading) { r.H++; r.Next++ }, false},
		{"restarted", func(r *Reading) { r.Run.Started = "tuesday" }, false},
		{"crashed, and the counters went on", func(r *Reading) { r.Run.Started, r.Run.ID = "tuesday", "b" }, false},
		{"promoted with everything", func(r *Reading) { r.Run.Timeline++ }, false},
		{"another cluster", func(r *Reading) { r.Run.System = "2" }, true},
		{"another database", func(r *Reading) { r.Run.Database = 6 }, true},
		{"another sequence", func(r *Reading) { r.Run.Sequence++ }, true},
		{"restarted sequence", func(r *Reading) { r.Run.Filenode++; r.H = 60 }, true},
		{"number went back", func(r *Reading) { r.H-- }, true},
		{"id went back", func(r *Reading) { r.Next-- }, true},
	} {
		r := Reading{H: 50, Next: 100, Run: p.Run}
		c.change(&r)
		if reason := p.Void(r); (reason != "") != c.void {
			t.Errorf("%s: void because %q, want void %v", c.name, reason, c.void)
		}
	}
}

// What a lane had settled of the window that was open is not delivered again, though only P comes back from the database.
func TestRecoverKeepsWhatAnOpenWindowHadSettled(t *testing.T) {
	run := Run{System: "1", Sequence: 1, Filenode: 1}
	other := Run{System: "2", Sequence: 1, Filenode: 1}
	from := &Position{Snapshot: snapshot(t, "10:10:"), H: 100, Next: 10, Run: run, Floor: 20}
	to := &Position{Snapshot: snapshot(t, "30:30:"), H: 900, Next: 30, Run: run, Floor: 20}
	open := reload(Open{From: from, Window: &Window{From: from, To: to, Low: 80}, P: 500, Ahead: []int64{600, 700}})
	got := Recover(open, Quiet(Reading{Snapshot: snapshot(t, "40:40:"), H: 950, Next: 40, Run: other}))
	want := CatchUp{Snapshot: "10:10:", H: 100, SettledSnapshot: "30:30:", SettledP: 500}
	if *got.Window.CatchUp != want {
		t.Errorf("catch-up %+v, want %+v", *got.Window.CatchUp, want)
	}
	if got.P != 20 || got.Window.Low != 20 || !slices.Equal(got.Ahead, []int64{600, 700}) || got.From != open.From {
		t.Errorf("open is %+v with window %+v; want it to begin at the floor, 20, with what was settled ahead", got, got.Window)
	}
	if end := got.Window.To; end.Floor != 950 || end.H != 950 || end.Next != 40 || end.Run != other || end.ID <= 0 {
		t.Errorf("the window ends at %+v", end)
	}
}

// The counters break while the lane catches up with an earlier break. The floor is that of the numbering before the first
// one, and says nothing of the numbers that started over.
func TestRecoverInTheMiddleOfCatchingUp(t *testing.T) {
	run := Run{System: "1", Sequence: 1, Filenode: 1}
	from := &Position{Snapshot: snapshot(t, "10:10:"), H: 5000, Next: 10, Run: run, Floor: 4000}
	restarted := run
	restarted.Filenode++
	first := Recover(Open{From: from}, Quiet(Reading{Snapshot: snapshot(t, "20:20:"), H: 8, Next: 20, Run: restarted}))
	if first.P != 0 {
		t.Fatalf("catching up with numbers that started over begins above %d, want 0", first.P)
	}
	first.P = 3 // delivered so far
	first.Ahead = []int64{5}
	again := restarted
	again.System = "2"
	second := Recover(reload(first), Quiet(Reading{Snapshot: snapshot(t, "30:30:"), H: 12, Next: 30, Run: again}))
	if second.P != 3 || second.Window.Low != 3 || second.Window.To.H != 12 || !slices.Equal(second.Ahead, []int64{5}) {
		t.Errorf("catching up goes on from %d (ahead %v) to %d, want from 3 (ahead [5]) to 12", second.P, second.Ahead, second.Window.To.H)
	}
	if *second.Window.CatchUp != *first.Window.CatchUp {
		t.Errorf("catch-up %+v, want that of the first break, %+v", *second.Window.CatchUp, *first.Window.CatchUp)
	}
}

// Where nothing can be compared everything is delivered again.
func TestRecoverWhenNumbersAndIdsStartOver(t *testing.T) {
	run := Run{System: "1", Sequence: 1, Filenode: 1}
	other := Run{System: "2", Sequence: 1, Filenode: 1}
	restarted := Run{System: "1", Sequence: 1, Filenode: 2}
	from := &Position{Snapshot: snapshot(t, "10:10:"), H: 100, Next: 10, Run: run, Floor: 20}
	to := &Position{Snapshot: snapshot(t, "30:30:"), H: 900, Next: 30, Run: run, Floor: 20}
	open := Open{From: from, Window: &Window{From: from, To: to, Low: 80}, P: 500, Ahead: []int64{600}}
	catching := open
	catching.Window = &Window{From: from, To: to, Low: 80, CatchUp: &CatchUp{Snapshot: "5:5:", H: 70}}
	for _, c := range []struct {
		name string
		open Open
		r    Reading
		want CatchUp
	}{
		{"another cluster", open, Reading{H: 50, Next: 40, Run: other}, CatchUp{Snapshot: "3:3:"}},
		{"another cluster, set right after it had handed out numbers", open.Renumbered(), Reading{H: 1000, Next: 40, Run: other}, CatchUp{Snapshot: "3:3:"}},
		{"ids went back with the sequence", open, Reading{H: 50, Next: 29, Run: run}, CatchUp{Snapshot: "3:3:"}},
		{"ids went back with a restarted sequence", open, Reading{H: 1000, Next: 29, Run: restarted}, CatchUp{Snapshot: "3:3:"}},
		{"restarted while catching up", catching, Reading{H: 50, Next: 40, Run: restarted}, CatchUp{Snapshot: "3:3:"}},
		{
			"restarted", open,
			Reading{H: 50, Next: 40, Run: restarted},
			CatchUp{Snapshot: "10:10:", H: 50, SettledSnapshot: "30:30:", SettledP: 50},
		},
		{
			"restarted, and gone beyond", open,
			Reading{H: 1000, Next: 40, Run: restarted},
			CatchUp{Snapshot: "10:10:", H: 100, SettledSnapshot: "30:30:", SettledP: 500},
		},
	} {
		got := Recover(c.open, Quiet(c.r))
		if got.P != 0 || got.Window.Low != 0 || len(got.Ahead) != 0 {
			t.Errorf("%s: begins above %d, ahead %v; want 0 and nothing ahead", c.name, got.P, got.Ahead)
		}
		if *got.Window.CatchUp != c.want {
			t.Errorf("%s: catch-up %+v, want %+v", c.name, *got.Window.CatchUp, c.want)
		}
	}
}

// A sequence that was not copied to another cluster, and has not been used there, has handed out nothing twice.
func TestRegressed(t *testing.T) {
	run := Run{System: "1", Sequence: 1, Filenode: 1}
	other := Run{System: "2", Sequence: 1, Filenode: 1}
	open := Open{From: &Position{H: 100, Run: run}}
	for _, c := range []struct {
		name string
		r    Reading
		want bool
	}{
		{"it goes on", Reading{H: 100, Run: run}, false},
		{"set back", Reading{H: 99, Run: run}, true},
		{"restarted", Reading{H: 0, Run: run}, true},
		{"not copied to another cluster", Reading{H: 0, Run: other}, false},
		{"not copied to another cluster, and used there", Reading{H: 1, Run: other}, true},
		{"copied to another cluster", Reading{H: 100, Run: other}, false},
	} {
		if got := open.Regressed(c.r); got != c.want {
			t.Errorf("%s: regressed %v, want %v", c.name, got, c.want)
		}
	}
	noted := open.Renumbered()
	if again := noted.Renumbered(); again.From != noted.From {
		t.Error("what has been noted is noted again, as another position")
	}
}
