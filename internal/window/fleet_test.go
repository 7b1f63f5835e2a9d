package window

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// fleet is some relays that share the lanes of one subscription. What is settled of a lane is stored at once, so nothing is to
// arrive twice, whatever becomes of the lane.
type fleet struct {
	server  *modelServer
	relays  []*member
	free    []int  // lanes that no relay has
	settled []Open // by lane
	at      []*Position
	arrived []*modelRow
}

// member is one relay. Each of its lanes has a queue of what it was handed and has not settled.
type member struct {
	reader *Reader
	lanes  map[int]*[]*Page
}

func newFleet(s *modelServer, relays int) *fleet {
	f := &fleet{server: s, at: make([]*Position, s.lanes)}
	for lane := range s.lanes {
		f.settled = append(f.settled, s.begin())
		f.free = append(f.free, lane)
	}
	for range relays {
		f.relays = append(f.relays, f.member())
	}
	return f
}

func (f *fleet) member() *member {
	r, err := f.server.Position(context.Background())
	if err != nil {
		panic(err)
	}
	return &member{reader: NewReader(f.server, r), lanes: map[int]*[]*Page{}}
}

// take gives a free lane to a relay, as it comes back from the database.
func (f *fleet) take(m *member, i int) {
	lane := f.free[i]
	f.free = slices.Delete(f.free, i, i+1)
	f.settled[lane] = reload(f.settled[lane])
	f.server.meanwhile()
	m.reader.Add(lane, f.settled[lane])
	m.lanes[lane] = new([]*Page)
}

// leave lets a lane go. What it was handed and has not settled is forgotten.
func (f *fleet) leave(m *member, lane int) {
	m.reader.Remove(lane)
	delete(m.lanes, lane)
	f.free = append(f.free, lane)
}

// crash replaces a relay by a new one.
func (f *fleet) crash(i int) {
	for _, lane := range f.relays[i].owned() {
		f.leave(f.relays[i], lane)
	}
	f.relays[i] = f.member()
}

func (m *member) owned() (lanes []int) {
	for lane := range m.lanes {
		lanes = append(lanes, lane)
	}
	slices.Sort(lanes)
	return lanes
}

// queueFull is how many pages fill a lane.
const queueFull = 3

func (m *member) load(lane int) Load {
	switch n := len(*m.lanes[lane]); {
	case n == 0:
		return Dry
	case n < queueFull:
		return Some
	}
	return Full
}

// next lets a relay read on. It returns the page, nil if it has no lane, or all are busy.
func (f *fleet) next(t fataler, m *member) *Page {
	t.Helper()
	m.reader.looked = time.Time{}
	page, err := m.reader.Next(context.Background(), m.load)
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	if page == nil {
		for lane := range m.lanes {
			if m.load(lane) == Dry {
				t.Fatalf("there is no page, and lane %d has nothing to do", lane)
			}
		}
		return nil
	}
	if page.At != nil {
		checkBounds(t, f.server, page.At)
	} else {
		checkPage(t, page)
	}
	if len(page.Lanes) == 0 {
		t.Fatalf("a page of no lane: %+v", page)
	}
	parts := map[int]*Page{}
	for _, lane := range page.Lanes {
		if m.lanes[lane] == nil {
			t.Fatalf("a page for lane %d, which the relay does not have", lane)
		}
		if page.At == nil && m.load(lane) == Full {
			t.Fatalf("a page for lane %d, which is full", lane)
		}
		parts[lane] = &Page{Window: page.Window, P: page.P, Last: page.Last, At: page.At}
	}
	for _, e := range page.Events {
		row := f.server.named(e.Type)
		if row == nil {
			t.Fatalf("row %s arrived and is not committed", e.Type)
		}
		if e.Lane != row.lane || parts[e.Lane] == nil {
			t.Fatalf("row %d of lane %d came as one of lane %d in a page for %v", row.name, row.lane, e.Lane, page.Lanes)
		}
		parts[e.Lane].Events = append(parts[e.Lane].Events, e)
	}
	for lane, part := range parts {
		*m.lanes[lane] = append(*m.lanes[lane], part)
	}
	return page
}

// checkPage looks at the order within a page.
func checkPage(t fataler, page *Page) {
	t.Helper()
	for i, e := range page.Events {
		if e.Seq > page.P || i > 0 && e.Seq <= page.Events[i-1].Seq || page.P > page.Window.To.H {
			t.Fatalf("page up to %d of a window up to %d has seq %d at %d, not ascending or beyond the end", page.P, page.Window.To.H, e.Seq, i)
		}
	}
	if page.Last != (page.P == page.Window.To.H) {
		t.Fatalf("page up to %d of a window up to %d says of itself that it is the last: %v", page.P, page.Window.To.H, page.Last)
	}
}

// settle publishes the first page of a lane's queue.
func (f *fleet) settle(t fataler, m *member, lane int) {
	t.Helper()
	queue := m.lanes[lane]
	if len(*queue) == 0 {
		return
	}
	page := (*queue)[0]
	*queue = (*queue)[1:]
	for _, e := range page.Events {
		f.arrived = append(f.arrived, f.server.named(e.Type))
	}
	was, is := f.settled[lane], Open{}
	switch {
	case page.At != nil:
		is = Open{From: page.At}
	case page.Last:
		is = Open{From: page.Window.To}
	default:
		is = Open{From: page.Window.From, Window: page.Window, P: page.P}
	}
	if how := goesBack(was, is); how != "" {
		t.Fatalf("lane %d went back: %s\nfrom %+v %+v\nto %+v %+v", lane, how, was, was.Window, is, is.Window)
	}
	f.settled[lane] = is
}

// goesBack says how is settles less than was, or "".
func goesBack(was, is Open) string {
	if a, b := was.From, is.From; a.ID != b.ID {
		switch {
		case was.Window != nil && b.ID != was.Window.To.ID:
			return "the window was left before its end"
		case b.H < a.H || b.Next < a.Next || b.Floor < a.Floor:
			return fmt.Sprintf("h from %d to %d, next id from %d to %d, floor from %d to %d", a.H, b.H, a.Next, b.Next, a.Floor, b.Floor)
		}
		for x := a.Snapshot.Xmin; x < a.Snapshot.Xmax; x++ {
			if a.Snapshot.Ended(x) && !b.Snapshot.Ended(x) {
				return fmt.Sprintf("transaction %d had ended", x)
			}
		}
		return ""
	}
	if was.Window == nil {
		return ""
	}
	switch {
	case is.Window == nil || is.Window.To.ID != was.Window.To.ID:
		return "the window is another one"
	case is.P < was.P:
		return fmt.Sprintf("from %d to %d within a window", was.P, is.P)
	}
	return ""
}

// drain gives all lanes to relays and reads until nothing more is to come for any.
func (f *fleet) drain(t fataler) {
	t.Helper()
	for i := 0; len(f.free) > 0; i++ {
		f.take(f.relays[i%len(f.relays)], 0)
	}
	for _, m := range f.relays {
		owned := m.owned()
		for idle := 0; idle < 3 && len(owned) > 0; {
			for _, lane := range owned {
				for len(*m.lanes[lane]) > 0 {
					f.settle(t, m, lane)
				}
			}
			page := f.next(t, m)
			if page.At == nil {
				idle = 0
			} else if slices.Equal(page.Lanes, owned) {
				if together, _ := m.reader.Together(); !slices.Equal(together, owned) {
					t.Fatalf("lanes %v have nothing to read, and do not stand together", owned)
				}
				idle++
			}
		}
	}
}

// handOver lets a relay read on and settle all of a lane, and give it to another one, which has been idle meanwhile.
func (f *fleet) handOver(t fataler, from *member, lane int, to *member) {
	t.Helper()
	f.server.steps(f.server.pick(12))
	for range f.server.pick(6) {
		f.next(t, from)
		for len(*from.lanes[lane]) > 0 {
			f.settle(t, from, lane)
		}
	}
	f.leave(from, lane)
	f.take(to, len(f.free)-1)
	f.next(t, to)
}

// play lets a server and its relays work side by side, until every transaction has ended and all is read.
func (f *fleet) play(t fataler, turns int) {
	t.Helper()
	for range turns {
		f.turn(t)
	}
	f.end(t)
}

// turn lets one thing happen.
func (f *fleet) turn(t fataler) {
	t.Helper()
	s := f.server
	i := s.pick(len(f.relays))
	m := f.relays[i]
	owned := m.owned()
	switch what := s.pick(16); {
	case what == 0:
		f.crash(i)
	case what == 1 && len(owned) > 0:
		f.leave(m, owned[s.pick(len(owned))])
	case what <= 3 && len(f.free) > 0:
		for range 1 + s.pick(len(f.free)) {
			f.take(m, s.pick(len(f.free)))
		}
	case what == 4 && len(owned) > 0:
		f.handOver(t, m, owned[s.pick(len(owned))], f.relays[s.pick(len(f.relays))])
	case what <= 6:
		s.steps(s.pick(12))
	case what <= 10 && len(owned) > 0:
		lane := owned[s.pick(len(owned))]
		for range 1 + s.pick(queueFull) {
			f.settle(t, m, lane)
		}
	default:
		f.next(t, m)
	}
}

// end lets every transaction end, and reads all.
func (f *fleet) end(t fataler) {
	t.Helper()
	f.server.endAll()
	f.server.quiet = true
	f.drain(t)
}

func TestManyLanesAndRelays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newModel(picker(t))
		s.lanes = rapid.IntRange(1, 16).Draw(t, "lanes")
		f := newFleet(s, rapid.IntRange(1, 3).Draw(t, "relays"))
		f.play(t, rapid.IntRange(1, 120).Draw(t, "turns"))
		if wrong := s.check(f.arrived); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// Long histories with dice: lanes drift far apart, and windows of many positions are open at once.
func TestManyLanesForLong(t *testing.T) {
	for seed := range uint64(24) {
		dice := rand.New(rand.NewPCG(seed, 7))
		s := newModel(dice.IntN)
		s.lanes = []int{4, 8, 16}[seed%3]
		f := newFleet(s, 2+int(seed%2))
		how := failing(func(t fataler) { f.play(t, 400) })
		if how = cmp.Or(how, s.check(f.arrived)); how != "" {
			t.Errorf("history %d: %s", seed, how)
		}
	}
}
