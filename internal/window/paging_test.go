package window_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/commitrelay/outbox/internal/window"
)

// counted counts the statements that a reader sends.
type counted struct {
	window.Source
	pages, jumps int
	widest       int64
}

func (c *counted) Page(ctx context.Context, w *window.Window, lanes []int, p, hi int64) ([]window.Event, bool, error) {
	c.pages++
	c.widest = max(c.widest, hi-p)
	return c.Source.Page(ctx, w, lanes, p, hi)
}

func (c *counted) NextSeq(ctx context.Context, p int64) (int64, bool, error) {
	c.jumps++
	return c.Source.NextSeq(ctx, p)
}

// setval moves the sequence, as numbers do that nobody keeps.
func (o *outbox) setval(t testing.TB, seq int64) {
	t.Helper()
	o.exec(t, "SELECT setval(pg_get_serial_sequence($1, 'seq'), $2)", o.events.String(), seq)
}

func TestWindowBiggerThanAPage(t *testing.T) {
	o := newOutbox(t, cluster(t))
	s := newScene(t, o, o.store.NewReader(nil, nil, 1, 10, 1<<20))
	for i := range 5 {
		x := s.begin()
		for j := range 21 {
			x.insert(fmt.Sprintf("%d-%d", i, j))
		}
		x.commit()
	}
	s.look()
	s.mustBeComplete()
	if !slices.Equal(s.arrived, s.committed) {
		t.Errorf("arrived in the order %v", s.arrived)
	}
}

// Numbers that nobody keeps cost a statement for 100,000 of them, and then a jump.
func TestEmptyStretchesAreJumped(t *testing.T) {
	o := newOutbox(t, cluster(t))
	src := &counted{Source: o.source()}
	s := newScene(t, o, src)
	s.write("before")
	for i, seq := range []int64{99_999, 100_001, 1_000_000, 1_100_000, 50_000_000_000} {
		o.setval(t, seq)
		s.write(fmt.Sprint("after ", i))
	}
	rolledBack := s.begin().insert("never")
	o.setval(t, 60_000_000_000)
	rolledBack.release()
	s.look()
	s.mustBeComplete()
	if !slices.Equal(s.arrived, s.committed) {
		t.Errorf("arrived in the order %v", s.arrived)
	}
	if src.pages > 20 || src.jumps > 10 || src.widest > 100_000 {
		t.Errorf("%d page statements over up to %d numbers, and %d jumps; want at most 20 over 100000, and 10", src.pages, src.widest, src.jumps)
	}
}

// A window can be left anywhere and continued from what is stored, and what comes then is exactly the rest.
func TestWindowContinuesAnywhere(t *testing.T) {
	o := newOutbox(t, cluster(t))
	lane := o.lane(t, "rest")
	s := newScene(t, o, o.source())
	open := s.begin().insert("straggler 1")
	for i := range 20 {
		x := s.begin().insert(fmt.Sprintf("%d-a", i)).insert(fmt.Sprintf("%d-b", i))
		if i == 10 {
			o.setval(t, 300_000)
		}
		x.commit()
	}
	s.look() // a position with bounds
	o.setval(t, 700_000)
	for i := range 20 {
		s.begin().insert(fmt.Sprintf("later %d-a", i)).insert(fmt.Sprintf("later %d-b", i)).commit()
	}
	open.insert("straggler 2").commit()
	want := s.committed

	rapid.Check(t, func(rt *rapid.T) {
		var arrived []string
		settled := o.beginning(t)
		for idle := 0; idle < 3; {
			// A new tenure, with pages of another size.
			settled = o.storeAndLoad(t, lane, settled)
			rows := rapid.IntRange(1, 60).Draw(rt, "rows of a page")
			reader := newReader(t, o.store.NewReader(nil, nil, 1, rows, 1<<20), settled)
			for range rapid.IntRange(1, 8).Draw(rt, "pages") {
				page, err := reader.Next(t.Context(), nil)
				if err != nil {
					rt.Fatalf("Next: %v", err)
				}
				if page.At != nil {
					settled = window.Open{From: page.At}
					idle++
					continue
				}
				for _, e := range page.Events {
					arrived = append(arrived, e.AggregateID)
				}
				settled = window.Open{From: page.Window.From, Window: page.Window, P: page.P}
				if page.Last {
					settled = window.Open{From: page.Window.To}
				}
			}
		}
		if len(arrived) != len(want) {
			rt.Fatalf("%d events arrived, want %d: %v", len(arrived), len(want), arrived)
		}
		for _, name := range want {
			if !slices.Contains(arrived, name) {
				rt.Fatalf("%s did not arrive", name)
			}
		}
		if a, b := slices.Index(arrived, "straggler 1"), slices.Index(arrived, "straggler 2"); a > b {
			rt.Fatalf("events of one transaction arrived at %d and %d", a, b)
		}
	})
}

func TestFilters(t *testing.T) {
	o := newOutbox(t, cluster(t))
	types := []string{"user", "users", "user_x", "userax", "user%", "user%y", `user\`, `user\z`, `us"er`, "us,er", "{user}", "User", "", "é", "NULL", "*"}
	for _, a := range types {
		o.exec(t, "INSERT INTO "+o.events.String()+" (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'x', $1, '1')", a)
	}
	for _, c := range []struct {
		filter []string
		want   []string
	}{
		{nil, types},
		{[]string{"user"}, []string{"user"}},
		{[]string{"user", "User"}, []string{"user", "User"}},
		{[]string{"user*"}, []string{"user", "users", "user_x", "userax", "user%", "user%y", `user\`, `user\z`}},
		{[]string{"user_*"}, []string{"user_x"}},
		{[]string{"user_x"}, []string{"user_x"}},
		{[]string{"user%"}, []string{"user%"}},
		{[]string{"user%*"}, []string{"user%", "user%y"}},
		{[]string{`user\`}, []string{`user\`}},
		{[]string{`user\*`}, []string{`user\`, `user\z`}},
		{[]string{`us"er`, "us,er", "{user}"}, []string{`us"er`, "us,er", "{user}"}},
		{[]string{""}, []string{""}},
		{[]string{"é"}, []string{"é"}},
		{[]string{"NULL"}, []string{"NULL"}},
		{[]string{"*"}, types},
		{[]string{"nobody"}, nil},
	} {
		for _, by := range []string{"aggregate types", "event types", "both"} {
			var aggregates, events []string
			if by != "event types" {
				aggregates = c.filter
			}
			if by != "aggregate types" {
				events = c.filter
			}
			s := newScene(t, o, o.store.NewReader(aggregates, events, 1, 4, 1<<20))
			var got []string
			for idle := 0; idle < 3; {
				page, err := s.reader.Next(t.Context(), nil)
				if err != nil {
					t.Fatalf("filter %q: %v", c.filter, err)
				}
				if page.At != nil {
					idle++
					continue
				}
				for _, e := range page.Events {
					got = append(got, e.AggregateType)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s like %q: %q, want %q", by, c.filter, got, c.want)
			}
		}
	}
}

// A transaction that has been open for long costs its end a scan of all that was written since, unless it has written none.
func TestLongTransactions(t *testing.T) {
	o := newOutbox(t, cluster(t))
	src := &counted{Source: o.source()}
	s := newScene(t, o, src)
	s.write("first")
	s.look()

	elsewhere := s.begin()
	idle := elsewhere.xid()
	elsewhere.exec("CREATE TEMP TABLE elsewhere (x int)")
	wrote := s.begin().insert("early")
	writer := wrote.xid()
	undone := s.begin().exec("SAVEPOINT a").insert("never").exec("ROLLBACK TO a")
	undone.names = nil
	rolledBack := undone.xid()
	prepared := s.begin().insert("prepared").exec("PREPARE TRANSACTION 'long'")
	inSubtransaction := s.begin().exec("SAVEPOINT a").insert("in a subtransaction").exec("RELEASE a")

	s.write("meanwhile")
	o.setval(t, 1_000_000)
	s.write("much later")
	s.look()

	at := s.position()
	bound := func(x uint64) int64 { return raisedTo(at, x) }
	if bound(idle) != at.H || bound(rolledBack) != at.H {
		t.Errorf("transactions without a number are raised to %d and %d, want %d: %+v", bound(idle), bound(rolledBack), at.H, at.Bounds)
	}
	for _, x := range []uint64{writer, inSubtransaction.xid()} {
		if bound(x) != 0 {
			t.Errorf("transaction %d has written, and is raised to %d", x, bound(x))
		}
	}
	if len(at.Bounds.Raised) != 2 {
		t.Errorf("raised are %+v, want 2 transactions", at.Bounds.Raised)
	}

	// It survives the database.
	lane := o.lane(t, "long")
	loaded := o.storeAndLoad(t, lane, window.Open{From: at})
	if fmt.Sprint(loaded.From.Bounds) != fmt.Sprint(at.Bounds) {
		t.Errorf("bounds come back as %+v, want %+v", loaded.From.Bounds, at.Bounds)
	}
	s.reader = newReader(t, src, loaded)

	src.pages = 0
	elsewhere.commit()
	s.look()
	if src.pages != 0 {
		t.Errorf("the end of a transaction that has written nothing cost %d page statements", src.pages)
	}
	undone.insert("after all").commit() // what it writes now has higher numbers
	s.look()
	wrote.insert("late").commit()
	s.look()
	inSubtransaction.commit()
	s.look()
	prepared.exec("COMMIT PREPARED 'long'")
	s.committed = append(s.committed, "prepared")
	prepared.release()
	s.look()
	s.mustBeComplete()
}

// position is where the reader stands.
func (s *scene) position() *window.Position {
	s.t.Helper()
	for {
		page, err := s.reader.Next(s.t.Context(), nil)
		if err != nil {
			s.t.Fatal(err)
		}
		if page.At != nil {
			return page.At
		}
		for _, e := range page.Events {
			s.arrived = append(s.arrived, e.AggregateID)
		}
	}
}

func raisedTo(p *window.Position, x uint64) int64 {
	for _, r := range p.Bounds.Raised {
		if r.XID == x {
			return r.H
		}
	}
	return 0
}
