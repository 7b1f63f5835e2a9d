package window

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/commitrelay/outbox"
)

// Source is the outbox, seen by one reader.
type Source interface {
	// Position reads a position, alone and autocommitted.
	Position(ctx context.Context) (Reading, error)

	// Page reads events of w that belong to the given lanes, with numbers above p and up to hi, in order. more says that it
	// stopped before hi.
	Page(ctx context.Context, w *Window, lanes []int, p, hi int64) (events []Event, more bool, err error)

	// NextSeq returns the lowest number above p, visible or not to any window, or false.
	NextSeq(ctx context.Context, p int64) (int64, bool, error)

	// Writers returns the low halves of the ids of transactions that hold a writer's lock on the events table.
	Writers(ctx context.Context) (map[uint32]bool, error)
}

// Event is a row of the outbox.
type Event struct {
	outbox.Event
	Seq       int64
	CreatedAt time.Time
	Lane      int
}

// Page is a part of a window, for some lanes: once its events are settled, so is everything of Window with numbers up to P.
type Page struct {
	Lanes  []int
	Window *Window
	Events []Event
	P      int64
	Last   bool // the window ends here: everything visible at Window.To is settled

	// At is set alone, on a page of no window: nothing is to be read now, and everything visible at it has been handed out.
	At *Position
}

// ErrRunChanged says that the counters may have been broken since the position was read: the server restarted, or the
// sequence was touched. What is only in memory counts no more; go back to what is stored.
var ErrRunChanged = errors.New("the server's run has changed")

// RegressionError says that a counter went back within one run: someone has set the sequence. It is an ErrRunChanged.
type RegressionError struct{ Reason string }

func (e *RegressionError) Error() string { return ErrRunChanged.Error() + ": " + e.Reason }
func (e *RegressionError) Unwrap() error { return ErrRunChanged }

const (
	// scan bounds the numbers that one statement looks at, so that none runs long however few rows it returns.
	scan = 100_000

	// far is the length of a scan that is worth a look at the locks to shorten.
	far = 100_000

	// lockLook is the least time between two looks at the locks.
	lockLook = time.Second
)

// Load says how much of what was handed out to a lane still waits.
type Load int

// The loads of a lane.
const (
	Dry  Load = iota // nothing, and it has nothing to do
	Some             // it is at work, and would take more
	Full             // it takes no more
)

// Reader reads windows page by page for the lanes of one subscription. Lanes that stand at the same place are read
// together. It is not safe for concurrent use.
type Reader struct {
	src     Source
	run     Run
	head    *Position // the newest, and all that is known of the server; lanes at the end of a window go on from here together
	cursors []*cursor
	edge    bool     // cursors without a window come next, not those with one
	gather  bool     // no window begins before all lanes stand at the end of one
	latest  *Reading // read since the last page, and not used yet
	looked  time.Time
}

// NewReader reads in the server run of r, which must have been read just before.
func NewReader(src Source, r Reading) *Reader {
	return &Reader{src: src, run: r.Run, head: Begin(r)}
}

// Add takes a lane in, which goes on from what is settled. That must not be void against the reader's run.
func (r *Reader) Add(lane int, from Open) {
	// Another relay may have read it later than this one has read anything: what comes next must not be older.
	known := from.Newest()
	r.latest = nil
	r.head = &Position{
		ID: newPositionID(), Snapshot: r.head.Snapshot, Run: r.head.Run,
		H:      max(r.head.H, known.H),
		Next:   max(r.head.Next, known.Next),
		Floor:  max(r.head.Floor, known.Floor),
		Bounds: r.head.Bounds.and(known.Bounds),
	}
	c := &cursor{lanes: map[int]int64{lane: from.P}, cur: from.From, window: from.Window}
	for _, other := range r.cursors {
		if other.join(c) {
			return
		}
	}
	r.cursors = append(r.cursors, c)
}

// Remove lets a lane go.
func (r *Reader) Remove(lane int) {
	for i, c := range r.cursors {
		if _, ok := c.lanes[lane]; !ok {
			continue
		}
		delete(c.lanes, lane)
		if len(c.lanes) == 0 {
			r.cursors = append(r.cursors[:i:i], r.cursors[i+1:]...)
		}
		return
	}
}

// Together returns all lanes if they stand at one position, with no window open, and that position.
func (r *Reader) Together() (lanes []int, at *Position) {
	if len(r.cursors) != 1 || r.cursors[0].window != nil {
		return nil, nil
	}
	return r.cursors[0].appendLanes(nil), r.cursors[0].cur
}

// Gather has all lanes come together at the end of a window: until then, no lane begins one before the others have ended theirs.
func (r *Reader) Gather(on bool) { r.gather = on }

// Next returns the next page, or nil if no lane takes any that there are. A page that has only At set says that nothing is to
// be read now for its lanes. load says how a lane fares; nil: all are dry.
func (r *Reader) Next(ctx context.Context, load func(lane int) Load) (*Page, error) {
	if load == nil {
		load = func(int) Load { return Dry }
	}
	// Lanes at the edge and those in the middle of a window take turns, so that neither waits for the other's backlog.
	// (Three, as a turn at the edge may do no more than open windows.)
	for range 3 {
		var page *Page
		var err error
		if r.edge = !r.edge; r.edge && !r.closing(load) {
			page, err = r.atEdge(ctx)
		} else {
			page, err = r.inWindow(ctx, load)
		}
		if page != nil || err != nil {
			return page, err
		}
	}
	return nil, nil
}

// closing says that lanes will come to the end of their window in a moment: those at the edge wait for them, so that all go on
// together, with one statement for all and not one for each.
func (r *Reader) closing(load func(int) Load) bool {
	for _, c := range r.cursors {
		if c.window != nil && c.window.To.H-c.p() <= near && c.readable(load) {
			return true
		}
	}
	return false
}

// atEdge takes a new reading and opens a window for every lane that has none, if something may lie in it. They all end at
// the same position, and go on together from there.
func (r *Reader) atEdge(ctx context.Context) (*Page, error) {
	var edge []*cursor
	for _, c := range r.cursors {
		if c.window == nil {
			edge = append(edge, c)
		}
	}
	if len(edge) == 0 || r.gather && len(edge) < len(r.cursors) {
		return nil, nil
	}
	reading, err := r.take(ctx)
	if err != nil {
		return nil, err
	}
	// What bounds the head is true of the server, whoever found it out: its successor is the end of everyone's window.
	to := r.head.next(reading)
	if to, err = r.raise(ctx, to); err != nil {
		return nil, err
	}
	r.head = to
	idle := &Page{At: to}
	for _, c := range edge {
		if low := c.cur.low(reading); low < to.H {
			c.open(&Window{From: c.cur, To: to, Low: low}, low)
		} else {
			c.end(to)
			idle.Lanes = c.appendLanes(idle.Lanes)
		}
	}
	r.merge()
	if len(idle.Lanes) == 0 {
		return nil, nil
	}
	return idle, nil
}

// merge brings lanes together that stand at the same place.
func (r *Reader) merge() {
	kept := r.cursors[:0]
next:
	for _, c := range r.cursors {
		for _, other := range kept {
			if other.join(c) {
				continue next
			}
		}
		kept = append(kept, c)
	}
	clear(r.cursors[len(kept):])
	r.cursors = kept
}

// inWindow returns the next page of the first cursor that can be read; it is the last one to be asked the next time.
func (r *Reader) inWindow(ctx context.Context, load func(int) Load) (*Page, error) {
	for i := range len(r.cursors) {
		c := r.cursors[i]
		if c.window == nil {
			continue
		}
		if split := c.split(load); split != nil {
			r.cursors = append(r.cursors, split)
		}
		if !c.readable(load) {
			continue
		}
		page, err := r.page(ctx, c)
		if err != nil {
			return nil, err
		}
		r.cursors = append(append(r.cursors[:i:i], r.cursors[i+1:]...), c)
		if page.Last {
			r.merge()
		}
		return page, nil
	}
	return nil, nil
}

// take returns the reading that followed the last page, or a new one.
func (r *Reader) take(ctx context.Context) (Reading, error) {
	if r.latest != nil {
		reading := *r.latest
		r.latest = nil
		return reading, nil
	}
	return r.read(ctx)
}

// read takes a reading and makes sure that it continues those before it.
func (r *Reader) read(ctx context.Context) (Reading, error) {
	reading, err := r.src.Position(ctx)
	if err != nil {
		return reading, err
	}
	if reading.Run != r.run {
		return reading, fmt.Errorf("%w: %s", ErrRunChanged, r.run.change(reading.Run))
	}
	if reading.H < r.head.H || reading.Next < r.head.Next {
		return reading, &RegressionError{r.head.Void(reading)}
	}
	return reading, nil
}

// page reads on in a cursor's window, to its next event or its end.
//
// A page was read in this run only if a reading taken after it still belongs to it: snapshots mean nothing to a server
// that has handed out the same transaction ids twice.
func (r *Reader) page(ctx context.Context, c *cursor) (*Page, error) {
	w := c.window
	page := &Page{Window: w}
	lanes := c.appendLanes(nil)
	q := c.p()
	p := q
	for len(page.Events) == 0 && p < w.To.H {
		hi := min(p+scan, w.To.H)
		events, more, err := r.src.Page(ctx, w, lanes, p, hi)
		if err != nil {
			return nil, err
		}
		switch {
		case more && len(events) > 0:
			hi = events[len(events)-1].Seq
		case len(events) == 0 && hi < w.To.H: // jump over what is not there
			next, ok, err := r.src.NextSeq(ctx, hi)
			if err != nil {
				return nil, err
			}
			if !ok || next > w.To.H {
				next = w.To.H + 1
			}
			hi = next - 1
		}
		page.Events, p = events, hi
	}
	reading, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	r.latest = &reading
	page.Lanes, page.Events = c.advance(page.Events, q, p)
	page.P, page.Last = p, p >= w.To.H
	if page.Last {
		c.end(w.To)
	}
	return page, nil
}

// raise looks whether transactions that were running at p, the newest position, and would cost a long scan at their end,
// have drawn any number at all. Most have never touched the outbox.
func (r *Reader) raise(ctx context.Context, p *Position) (*Position, error) {
	lagging := p.Lagging(far)
	if len(lagging) == 0 || time.Since(r.looked) < lockLook {
		return p, nil
	}
	r.looked = time.Now()
	writers, err := r.src.Writers(ctx)
	if err != nil {
		return nil, err
	}
	// Only one that still runs now held, at that moment, every lock it ever took in what it has not rolled back.
	after, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	var idle []uint64
	for _, x := range lagging {
		if !writers[uint32(x)] && !after.Snapshot.Ended(x) {
			idle = append(idle, x)
		}
	}
	r.latest = &after
	if len(idle) == 0 {
		return p, nil
	}
	return p.Raise(idle), nil
}
