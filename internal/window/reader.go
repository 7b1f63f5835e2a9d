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

	// Page reads events of w with numbers above p and up to hi, in order. more says that it stopped before hi.
	Page(ctx context.Context, w *Window, p, hi int64) (events []Event, more bool, err error)

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
}

// Page is a part of a window: once its events are settled, so is everything of Window with numbers up to P.
type Page struct {
	Window *Window
	Events []Event
	P      int64
	Last   bool // the window ends here: everything visible at Window.To is settled
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

// Reader reads windows page by page. It is not safe for concurrent use.
type Reader struct {
	src    Source
	run    Run
	cur    *Position // everything before it has been handed out, unless a window is open
	window *Window
	p      int64
	latest *Reading // read since the last page, and not used yet
	looked time.Time
}

// NewReader continues from what is settled. r must have been read just before, and none of the stored positions may be
// void against it.
func NewReader(src Source, from Open, r Reading) *Reader {
	return &Reader{src: src, run: r.Run, cur: from.From, window: from.Window, p: from.P}
}

// Next returns the next page, or nil if nothing is to be read now. at is then where the reader stands: everything visible
// at it has been handed out.
func (r *Reader) Next(ctx context.Context) (page *Page, at *Position, err error) {
	if r.window == nil {
		if err := r.open(ctx); err != nil {
			return nil, nil, err
		}
	}
	for r.window != nil {
		page, err := r.page(ctx)
		if err != nil || page != nil {
			return page, nil, err
		}
	}
	return nil, r.cur, nil
}

// open takes a new reading, and opens a window if something may lie between it and where the reader stands.
func (r *Reader) open(ctx context.Context) error {
	reading, err := r.take(ctx)
	if err != nil {
		return err
	}
	next, low := r.cur.Advance(reading)
	if low < next.H {
		r.window = &Window{From: r.cur, To: next, Low: low}
		r.p = low
	} else {
		r.adopt(next)
	}
	return r.raise(ctx, next)
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
	// The end of an open window is newer than its beginning, which may even belong to another run: before a break.
	known := r.cur
	if r.window != nil {
		known = r.window.To
	}
	if reading.H < known.H || reading.Next < known.Next {
		return reading, &RegressionError{known.Void(reading)}
	}
	return reading, nil
}

// page reads on in the open window. It returns nil if the window ended without another event.
//
// A page was read in this run only if a reading taken after it still belongs to it: snapshots mean nothing to a server
// that has handed out the same transaction ids twice.
func (r *Reader) page(ctx context.Context) (*Page, error) {
	w := r.window
	for r.p < w.To.H {
		hi := min(r.p+scan, w.To.H)
		events, more, err := r.src.Page(ctx, w, r.p, hi)
		if err != nil {
			return nil, err
		}
		if more && len(events) > 0 {
			hi = events[len(events)-1].Seq
		}
		if len(events) == 0 && hi < w.To.H {
			next, ok, err := r.src.NextSeq(ctx, hi)
			if err != nil {
				return nil, err
			}
			if !ok || next > w.To.H {
				next = w.To.H + 1
			}
			r.p = next - 1
			continue
		}
		reading, err := r.read(ctx)
		if err != nil {
			return nil, err
		}
		r.p, r.latest = hi, &reading
		if len(events) == 0 {
			break
		}
		page := &Page{Window: w, Events: events, P: hi, Last: hi == w.To.H}
		if page.Last {
			r.adopt(w.To)
		}
		return page, nil
	}
	r.adopt(w.To)
	return nil, nil
}

func (r *Reader) adopt(p *Position) { r.cur, r.window, r.p = p, nil, 0 }

// raise looks whether transactions that were running at p, the newest position, and would cost a long scan at their end,
// have drawn any number at all. Most have never touched the outbox.
func (r *Reader) raise(ctx context.Context, p *Position) error {
	lagging := p.Lagging(far)
	if len(lagging) == 0 || time.Since(r.looked) < lockLook {
		return nil
	}
	r.looked = time.Now()
	writers, err := r.src.Writers(ctx)
	if err != nil {
		return err
	}
	// Only one that still runs now held, at that moment, every lock it ever took in what it has not rolled back.
	after, err := r.read(ctx)
	if err != nil {
		return err
	}
	var idle []uint64
	for _, x := range lagging {
		if !writers[uint32(x)] && !after.Snapshot.Ended(x) {
			idle = append(idle, x)
		}
	}
	r.latest = &after
	switch {
	case len(idle) == 0:
	case r.window != nil:
		r.window.To = p.Raise(idle)
	default:
		r.cur = p.Raise(idle)
	}
	return nil
}
