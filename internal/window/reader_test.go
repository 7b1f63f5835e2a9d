package window

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// picker lets rapid choose what happens, so that it can look for the shortest history that fails.
func picker(t *rapid.T) func(int) int {
	return func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") }
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// consumer reads a model's events as a relay does: it settles page after page, and begins again from what is stored.
type consumer struct {
	server  *modelServer
	src     Source
	reader  *Reader
	settled Open
	arrived []*modelRow
	mangle  func(*Position) // what a broken reader does to each of its positions
}

func newConsumer(s *modelServer, src Source) *consumer {
	c := &consumer{server: s, src: src, settled: s.begin()}
	c.restart()
	return c
}

// restart goes on from the settled state, as it comes back from the database.
func (c *consumer) restart() {
	c.settled = reload(c.settled)
	r, err := c.src.Position(context.Background())
	if err != nil {
		panic(err)
	}
	c.read(r)
}

func (c *consumer) read(r Reading) {
	c.reader = NewReader(c.src, r)
	c.reader.Add(0, c.settled)
}

// next reads a page and settles it. It returns where the reader stands if there was none.
func (c *consumer) next(t fataler) (at *Position) {
	t.Helper()
	c.reader.looked = time.Time{}
	page, err := c.reader.Next(context.Background(), nil)
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	if at := page.At; at != nil {
		c.settled = Open{From: at}
		if c.mangle != nil {
			c.mangle(at)
		}
		return at
	}
	for i, e := range page.Events {
		if e.Seq > page.P || i > 0 && e.Seq <= page.Events[i-1].Seq || page.P > page.Window.To.H {
			t.Fatalf("page up to %d of a window up to %d has seq %d at %d, not ascending or beyond the end", page.P, page.Window.To.H, e.Seq, i)
		}
		row := c.server.named(e.Type)
		if row == nil {
			t.Fatalf("row %s arrived and is not committed", e.Type)
		}
		c.arrived = append(c.arrived, row)
	}
	c.settled = Open{From: page.Window.From, Window: page.Window, P: page.P, Ahead: c.settled.Ahead}
	if page.Last {
		c.settled = Open{From: page.Window.To}
		if c.mangle != nil {
			c.mangle(page.Window.To)
		}
	}
	return nil
}

// drain reads until a reading taken from now on has nothing more. The first look that finds nothing may only have ended a
// window, and the second one may have used a reading that was there.
func (c *consumer) drain(t fataler) {
	t.Helper()
	for idle := 0; idle < 3; {
		if c.next(t) != nil {
			idle++
		} else {
			idle = 0
		}
	}
}

// reload writes an Open down as the store does and reads it back: Low is not kept.
func reload(o Open) Open {
	o.From = reloadPosition(o.From)
	if o.Window != nil {
		w := *o.Window
		w.From, w.To, w.Low = o.From, reloadPosition(w.To), o.P
		o.Window = &w
	}
	return o
}

func reloadPosition(p *Position) *Position {
	text, err := json.Marshal(p.Bounds)
	if err != nil {
		panic(err)
	}
	q := *p
	q.Bounds = Bounds{}
	if err := json.Unmarshal(text, &q.Bounds); err != nil {
		panic(err)
	}
	if q.Snapshot, err = ParseSnapshot(p.Snapshot.String()); err != nil {
		panic(err)
	}
	return &q
}

// run lets a server and its consumer work side by side, until every transaction has ended and all is read.
func run(t fataler, s *modelServer, c *consumer, turns int) {
	t.Helper()
	for range turns {
		switch s.pick(8) {
		case 0:
			c.restart()
		case 1, 2:
			s.steps(s.pick(10))
		default:
			if at := c.next(t); at != nil {
				checkBounds(t, s, at)
			}
		}
	}
	s.endAll()
	s.quiet = true
	c.drain(t)
}

// checkBounds looks at I2 itself: no running transaction has a number at or below its bound.
func checkBounds(t fataler, s *modelServer, at *Position) {
	t.Helper()
	for _, tx := range s.open {
		if tx.xid == 0 || at.Snapshot.Ended(tx.xid) || tx.xid >= at.Next || len(tx.rows) == 0 {
			continue
		}
		if first := tx.rows[0].seq; first <= at.Bounds.of(tx.xid, at.Floor) {
			t.Fatalf("transaction %d has number %d, and its bound is %d: %+v", tx.xid, first, at.Bounds.of(tx.xid, at.Floor), at)
		}
	}
	most := len(at.Snapshot.Xip) + 1
	for _, p := range at.Bounds.Pairs {
		if p.Next > at.Snapshot.Xmax {
			most++
		}
	}
	if len(at.Bounds.Pairs) > most {
		t.Fatalf("%d pairs are kept, %d can be needed: %+v", len(at.Bounds.Pairs), most, at)
	}
	for _, r := range at.Bounds.Raised {
		if at.Snapshot.Ended(r.XID) {
			t.Fatalf("transaction %d has ended and is still among the raised: %+v", r.XID, at)
		}
	}
}

func TestReaderLosesInventsAndReordersNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newModel(picker(t))
		c := newConsumer(s, s)
		run(t, s, c, rapid.IntRange(1, 60).Draw(t, "turns"))
		if wrong := s.check(c.arrived); wrong != "" {
			t.Fatal(wrong)
		}
	})
}

// The model is worth nothing if it does not catch readers that are wrong. The histories are the same in each run.
func TestModelCatchesBrokenReaders(t *testing.T) {
	play := func(seed uint64, breakIt func(*modelServer, *consumer)) (wrong string) {
		dice := rand.New(rand.NewPCG(seed, 1))
		s := newModel(dice.IntN)
		c := newConsumer(s, s)
		breakIt(s, c)
		if wrong := failing(func(t fataler) { run(t, s, c, 60) }); wrong != "" {
			return wrong
		}
		return s.check(c.arrived)
	}
	const histories = 60
	for seed := range uint64(histories) {
		if wrong := play(seed, func(*modelServer, *consumer) {}); wrong != "" {
			t.Fatalf("the right reader, history %d: %s", seed, wrong)
		}
	}
	for name, breakIt := range map[string]func(*modelServer, *consumer){
		"no N": func(s *modelServer, c *consumer) {
			c.src = edited{s, func(r *Reading) { r.Next = r.Snapshot.Xmax }}
		},
		"h read too late": func(s *modelServer, c *consumer) {
			c.src = edited{s, func(r *Reading) { s.meanwhile(); r.H = s.seq }}
		},
		"snapshot read last": func(s *modelServer, c *consumer) {
			c.src = edited{s, func(r *Reading) { s.meanwhile(); r.Snapshot = s.snapshot() }}
		},
		"bounds one position too late": func(_ *modelServer, c *consumer) {
			c.mangle = func(p *Position) {
				if n := len(p.Bounds.Pairs); n > 1 {
					p.Bounds.Pairs[n-2].H = p.Bounds.Pairs[n-1].H
				}
			}
		},
		"raised without a look at the locks": func(_ *modelServer, c *consumer) {
			c.mangle = func(p *Position) { *p = *p.Raise(p.Snapshot.Xip) }
		},
	} {
		seed, wrong := uint64(0), ""
		for ; seed < histories && wrong == ""; seed++ {
			wrong = play(seed, func(s *modelServer, c *consumer) { breakIt(s, c); c.restart() })
		}
		if wrong == "" {
			t.Errorf("%s: none of %d histories caught it", name, histories)
		}
		t.Logf("%s: caught by history %d: %s", name, seed-1, wrong)
	}
}

// failing returns how a test that is to fail failed, or "".
func failing(test func(fataler)) (how string) {
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			how = string(f)
		default:
			panic(f)
		}
	}()
	test(failure(""))
	return ""
}

type failure string

func (failure) Helper() {}
func (failure) Fatalf(format string, args ...any) {
	panic(failure(fmt.Sprintf(format, args...)))
}

// edited changes what the position statement says.
type edited struct {
	*modelServer
	edit func(*Reading)
}

func (e edited) Position(ctx context.Context) (Reading, error) {
	r, err := e.modelServer.Position(ctx)
	e.edit(&r)
	return r, err
}

// scripted answers with fixed readings.
type scripted struct {
	Source
	readings []Reading
	writers  map[uint32]bool
	looks    int
}

func (s *scripted) Position(context.Context) (Reading, error) {
	r := s.readings[0]
	s.readings = s.readings[1:]
	return r, nil
}

func (s *scripted) Writers(context.Context) (map[uint32]bool, error) {
	s.looks++
	return s.writers, nil
}

func (s *scripted) Page(context.Context, *Window, []int, int64, int64) ([]Event, bool, error) {
	return nil, false, nil
}

func (s *scripted) NextSeq(context.Context, int64) (int64, bool, error) { return 0, false, nil }

func snapshot(t testing.TB, text string) Snapshot {
	t.Helper()
	s, err := ParseSnapshot(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReaderStopsWhenTheRunChanges(t *testing.T) {
	run := Run{System: "1", ID: "a", Sequence: 1, Filenode: 1}
	restarted := run
	restarted.Started = "later"
	start := Reading{Snapshot: snapshot(t, "10:10:"), H: 50, Next: 12, Run: run}
	for name, c := range map[string]struct {
		next       Reading
		regression bool
		says       string
	}{
		"another run":             {next: Reading{Snapshot: snapshot(t, "20:20:"), H: 60, Next: 20, Run: restarted}, says: "the server was restarted"},
		"the sequence went back":  {next: Reading{Snapshot: snapshot(t, "20:20:"), H: 49, Next: 20, Run: run}, regression: true, says: "from 50 to 49"},
		"the next id went back":   {next: Reading{Snapshot: snapshot(t, "10:10:"), H: 60, Next: 11, Run: run}, regression: true, says: "from 12 to 11"},
		"during a look at a page": {next: Reading{Snapshot: snapshot(t, "20:20:"), H: 49, Next: 20, Run: run}, regression: true, says: "from 50 to 49"},
	} {
		src := &scripted{readings: []Reading{start, c.next}}
		from := &Position{Snapshot: snapshot(t, "10:10:"), H: 50, Next: 12, Run: run}
		open := Open{From: from}
		if name == "during a look at a page" {
			from = &Position{Snapshot: snapshot(t, "9:9:"), H: 40, Next: 11, Run: run}
			to := &Position{Snapshot: start.Snapshot, H: start.H, Next: start.Next, Run: run}
			open = Open{From: from, Window: &Window{From: from, To: to, Low: 40}, P: 40}
			src.readings = []Reading{c.next}
		}
		r := NewReader(src, start)
		r.Add(0, open)
		var err error
		for range 2 {
			if _, err = r.Next(t.Context(), nil); err != nil {
				break
			}
		}
		var regression *RegressionError
		if !errors.Is(err, ErrRunChanged) || errors.As(err, &regression) != c.regression || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v; want ErrRunChanged that says %q, a RegressionError: %v", name, err, c.says, c.regression)
		}
	}
}

// A transaction that never touches the outbox is raised, be there something to read at that moment or not, and one that
// holds a writer's lock is not.
func TestReaderRaisesIdleTransactions(t *testing.T) {
	run := Run{System: "1"}
	for name, h := range map[string]int64{"nothing else to read": 0, "under load": 1} {
		src := &scripted{
			writers: map[uint32]bool{6: true},
			readings: []Reading{
				{Snapshot: snapshot(t, "5:20:5,6"), H: 2*far + h, Next: 20, Run: run},
				{Snapshot: snapshot(t, "5:21:5,6"), H: 2*far + 2*h, Next: 21, Run: run},
				{Snapshot: snapshot(t, "5:22:5,6"), H: 2*far + 3*h, Next: 22, Run: run},
				{Snapshot: snapshot(t, "5:22:5,6"), H: 2*far + 3*h, Next: 22, Run: run},
				{Snapshot: snapshot(t, "5:22:5,6"), H: 2*far + 3*h, Next: 22, Run: run},
			},
		}
		from := &Position{
			Snapshot: snapshot(t, "5:19:5,6"), H: 2 * far, Next: 19, Run: run,
			Bounds: Bounds{Pairs: []Pair{{4, 10}, {19, 2 * far}}},
		}
		r := NewReader(src, src.readings[0])
		r.Add(0, Open{From: from})
		var at *Position
		for at == nil {
			page, err := r.Next(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			at = page.At
		}
		if src.looks != 1 {
			t.Errorf("%s: looked at the locks %d times, want once", name, src.looks)
		}
		if got := at.Bounds.of(5, 0); got != 2*far+h {
			t.Errorf("%s: the bound of the idle transaction is %d, want %d", name, got, 2*far+h)
		}
		if got := at.Bounds.of(6, 0); got != 10 {
			t.Errorf("%s: the bound of the writer is %d, want 10", name, got)
		}
	}
}
