package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/window"
)

// maxBuffered bounds what a relay has read and not published, in bytes. Each lane may have one page all the same.
const maxBuffered = 32 << 20

// read reads ahead for all lanes until the session ends. Between two looks that find nothing it pauses, from PollMin growing
// to PollMax.
func (s *session) read() error {
	cfg := &s.relay.cfg
	pause := cfg.PollMin
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	told := reach{h: -1} // where the lanes know that the reader stands
	idle := false
	for {
		if s.membership() {
			told = reach{h: -1}
		}
		if s.gather.Load() {
			if lanes, at := s.reader.Together(); len(lanes) == s.width && s.giveBackAt(lanes, at) {
				<-s.ctx.Done()
				return nil
			}
		}
		s.reader.Gather(s.gather.Load())
		page, err := s.reader.Next(s.ctx, s.load)
		switch {
		case err != nil:
			return err
		case page == nil: // there is no lane, or none takes more
			select {
			case <-s.wake:
				continue
			case <-s.ctx.Done():
				return nil
			}
		case page.At == nil:
			s.hand(page)
			pause, told, idle = cfg.PollMin, reach{h: -1}, false
			continue
		}
		if at := reachOf(page.At); at != told {
			s.hand(page)
			told = at
		}
		if !idle { // others may be in the middle of a window
			idle = true
			continue
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
			pause = min(pause+pause/4+time.Millisecond, cfg.PollMax)
		case <-s.wake:
			idle = false
		case <-s.ctx.Done():
			return nil
		}
	}
}

// membership lets the reader take lanes in and let them go, as was asked for since.
func (s *session) membership() (changed bool) {
	s.mu.Lock()
	joins, leaves := s.joins, s.leaves
	s.joins, s.leaves = nil, nil
	s.mu.Unlock()
	for _, l := range leaves {
		if s.reads[l.number] == l {
			delete(s.reads, l.number)
			s.reader.Remove(l.number)
		}
	}
	for _, j := range joins {
		s.reads[j.lane.number] = j.lane
		s.reader.Add(j.lane.number, j.from)
	}
	return len(joins)+len(leaves) > 0
}

// buffered notes that so many bytes more wait to be published, or fewer.
func (s *session) buffered(bytes int) {
	s.relay.buffered.Add(int64(bytes))
	if bytes <= 0 {
		notify(s.wake)
	}
}

// readAhead is how many batches of events wait for all lanes together, so that those that are ahead of others need not part from
// them, and pageBatches how many one statement reads: to plan it costs as much as to read 800 rows.
const (
	readAhead   = 4
	pageBatches = 2
)

// batch bounds what waits for one lane, in events and bytes: its share of what is read ahead for all. The smaller the share,
// the more calls of the sink there are at once. In bytes that is one batch for all: large events cost little to read.
func (s *session) batch() (events, bytes int) {
	cfg, n := &s.relay.cfg, max(1, len(s.reads))
	return min(cfg.BatchEvents, max(readAhead*cfg.BatchEvents/n, 20)), min(cfg.BatchBytes, max(cfg.BatchBytes/n, 64<<10))
}

// load says how a lane fares with what it has been handed.
func (s *session) load(lane int) window.Load {
	load := s.reads[lane].queue.load(s.batch())
	if load == window.Some && s.relay.buffered.Load() > maxBuffered {
		load = window.Full
	}
	return load
}

// hand gives each lane of a page its part.
func (s *session) hand(page *window.Page) {
	parts := map[int]*window.Page{}
	for _, lane := range page.Lanes {
		parts[lane] = &window.Page{Lanes: []int{lane}, Window: page.Window, P: page.P, Last: page.Last, At: page.At}
	}
	if len(page.Lanes) == 1 {
		parts[page.Lanes[0]].Events = page.Events
	} else {
		for _, e := range page.Events {
			part := parts[e.Lane]
			part.Events = append(part.Events, e)
		}
	}
	for _, lane := range page.Lanes {
		l, part, most := s.reads[lane], parts[lane], s.relay.cfg.BatchEvents
		for len(part.Events) > most { // one call of the sink each
			l.offer(&window.Page{Lanes: part.Lanes, Window: part.Window, Events: part.Events[:most:most], P: part.Events[most-1].Seq})
			part.Events = part.Events[most:]
		}
		l.offer(part)
	}
}

// offer gives the lane a page. If it holds nothing and the lane has nothing to do, that is noted without waking it.
func (l *lane) offer(page *window.Page) {
	if len(page.Events) == 0 && !l.once && l.queue.skip(func() { l.pass(page) }) {
		return
	}
	events, bytes := l.batch()
	l.queue.put(page, events, bytes)
}

// bounded bounds the statements of a reader: a connection that has gone silent is given up. The probe is the first to meet
// one after a quiet time, and takes no time else.
type bounded struct {
	window.Source
	probe time.Duration
}

func (b bounded) Position(ctx context.Context) (window.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, b.probe)
	defer cancel()
	return b.Source.Position(ctx)
}

func (b bounded) Page(ctx context.Context, w *window.Window, lanes []int, p, hi int64) (events []window.Event, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return b.Source.Page(ctx, w, lanes, p, hi)
}

func (b bounded) NextSeq(ctx context.Context, p int64) (int64, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return b.Source.NextSeq(ctx, p)
}

func (b bounded) Writers(ctx context.Context) (map[uint32]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return b.Source.Writers(ctx)
}
