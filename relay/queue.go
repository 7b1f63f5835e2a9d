package relay

import (
	"sync"

	"github.com/commitrelay/outbox/internal/window"
)

// queue holds what has been read for a lane and not been published yet. The reader puts, the lane takes.
type queue struct {
	mu     sync.Mutex
	pages  []*window.Page
	events int
	bytes  int
	busy   bool          // the lane is at work on what it has taken
	closed bool          // the lane takes no more: what comes is for nobody
	ready  chan struct{} // something can be taken
	moved  func(bytes int)
}

// newQueue calls moved whenever something has been put, with its size, or has been taken, with its size below zero; with zero
// when the lane has done all that it took and finds nothing more.
func newQueue(moved func(bytes int)) *queue {
	return &queue{ready: make(chan struct{}, 1), moved: moved}
}

// put appends a page. What follows in the same window, or finds nothing to read after nothing to read, joins the last page
// while that stays within the bounds of a batch.
func (q *queue) put(page *window.Page, maxEvents, maxBytes int) {
	size := pageBytes(page)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.moved(size)
	q.events += len(page.Events)
	q.bytes += size
	if n := len(q.pages); n > 0 {
		last := q.pages[n-1]
		switch {
		case last.At != nil && page.At != nil:
			last.At = page.At
			return
		case last.Window != nil && last.Window == page.Window && len(last.Events)+len(page.Events) <= maxEvents && pageBytes(last)+size <= maxBytes:
			last.Events = append(last.Events, page.Events...)
			last.P, last.Last = page.P, page.Last
			return
		}
	}
	q.pages = append(q.pages, page)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take returns the next page, or nil. The lane is at work until it takes again.
func (q *queue) take() *window.Page {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.busy
	q.busy = len(q.pages) > 0
	if !q.busy {
		if was {
			q.moved(0) // the lane would take more at once
		}
		return nil
	}
	page := q.pages[0]
	q.pages[0] = nil
	q.pages = q.pages[1:]
	size := pageBytes(page)
	q.events -= len(page.Events)
	q.bytes -= size
	q.moved(-size)
	return page
}

// drop forgets everything, and whatever comes.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.moved(-q.bytes)
	q.pages, q.events, q.bytes, q.closed = nil, 0, 0, true
}

// skip calls fn, which moves on over a page that holds nothing, if nothing waits before that page and the lane is not at work.
func (q *queue) skip(fn func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pages) > 0 || q.busy || q.closed {
		return false
	}
	fn()
	return true
}

// idle says that nothing waits and the lane is not at work.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.pages) == 0 && !q.busy
}

// load says how full the queue is, for bounds of a lane's share.
func (q *queue) load(maxEvents, maxBytes int) window.Load {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.pages) == 0 && !q.busy:
		return window.Dry
	case q.events >= maxEvents || q.bytes >= maxBytes:
		return window.Full
	}
	return window.Some
}

// pageBytes is what the events of a page take up, give or take.
func pageBytes(page *window.Page) (n int) {
	for i := range page.Events {
		e := &page.Events[i]
		n += 200 + len(e.AggregateID) + len(e.Payload)
		for k, v := range e.Headers {
			n += len(k) + len(v) + 32
		}
	}
	return n
}
