package window

import (
	"maps"
	"math"
	"slices"
)

// cursor is where some lanes stand: at cur, with or without a window open.
type cursor struct {
	lanes  map[int]int64 // each with the number up to which it has been served in the window
	cur    *Position
	window *Window
}

// p is where the lane stands that is furthest behind in the window.
func (c *cursor) p() int64 {
	p := int64(math.MaxInt64)
	for _, served := range c.lanes {
		p = min(p, served)
	}
	return p
}

// near is how far apart lanes of one window may be to be read together, from the place of the last of them.
const near = 10_000

func (c *cursor) appendLanes(to []int) []int {
	at := len(to)
	for lane := range c.lanes {
		to = append(to, lane)
	}
	slices.Sort(to[at:])
	return to
}

func (c *cursor) open(w *Window, p int64) {
	c.window = w
	for lane := range c.lanes {
		c.lanes[lane] = p
	}
}

func (c *cursor) end(at *Position) { c.cur, c.window = at, nil }

// join takes in the lanes of another cursor that stands at the same place, or near it in the same window.
func (c *cursor) join(other *cursor) bool {
	switch p, q := c.p(), other.p(); {
	case c.cur.ID != other.cur.ID:
		return false
	case c.window == nil && other.window == nil:
	case c.window == nil || other.window == nil || !c.window.same(other.window):
		return false
	case max(p, q)-min(p, q) > near:
		return false
	}
	maps.Copy(c.lanes, other.lanes)
	return true
}

// same says that two windows have the same content.
func (w *Window) same(o *Window) bool {
	if w.From.ID != o.From.ID || w.To.ID != o.To.ID || (w.CatchUp == nil) != (o.CatchUp == nil) {
		return false
	}
	return w.CatchUp == nil || *w.CatchUp == *o.CatchUp
}

// advance notes that everything from q up to p has been read. It returns the lanes that had not been served beyond p before,
// and the events that are new to theirs.
func (c *cursor) advance(events []Event, q, p int64) (lanes []int, fresh []Event) {
	ahead := false
	for lane, served := range c.lanes {
		ahead = ahead || served > q
		if served <= p {
			lanes = append(lanes, lane)
		}
	}
	slices.Sort(lanes)
	if ahead {
		events = slices.DeleteFunc(events, func(e Event) bool { return e.Seq <= c.lanes[e.Lane] })
	}
	for lane, served := range c.lanes {
		c.lanes[lane] = max(served, p)
	}
	return lanes, events
}

// readable says that no lane is full: what is read is for all of them.
func (c *cursor) readable(load func(int) Load) bool {
	for lane := range c.lanes {
		if load(lane) == Full {
			return false
		}
	}
	return true
}

// split parts with the lanes that are full, if others have run dry because of them. They go on by themselves, and join again
// at the end of a window.
func (c *cursor) split(load func(int) Load) *cursor {
	full, dry := map[int]int64{}, false
	for lane, served := range c.lanes {
		switch load(lane) {
		case Full:
			full[lane] = served
		case Dry:
			dry = true
		}
	}
	if len(full) == 0 || !dry {
		return nil
	}
	for lane := range full {
		delete(c.lanes, lane)
	}
	return &cursor{lanes: full, cur: c.cur, window: c.window}
}
