package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

const (
	storeEvery = 100 * time.Millisecond // least time between two stores under load

	// shareEvery is the pause between two looks at who else is there. A dead relay's lanes are taken over within its lease
	// and this.
	shareEvery = time.Second

	databaseBackoff    = 100 * time.Millisecond
	databaseMaxBackoff = 5 * time.Second

	// partingTime is what remains, after the time for shutdown is over, to store positions and give lanes back.
	partingTime = 2 * time.Second

	// statementTime bounds a statement, so that a connection that has gone silent is given up.
	statementTime = 30 * time.Second
)

// session delivers a subscription within one server run. It ends when the relay stops, when the run ends, or when PostgreSQL
// fails; a lane that is lost ends alone. Its goroutines: this one shares out the lanes, one reads for all lanes, one stores
// their positions, one looks for parked events that are due, and one per lane publishes.
type session struct {
	*group
	soft   context.Context // ends when the relay is asked to stop
	hard   context.Context // ends when the time for that is over
	ctx    context.Context // ends with the session
	fail   context.CancelCauseFunc
	once   bool // end when nothing is due
	run    window.Run
	width  int            // how many lanes the subscription has
	reader *window.Reader // of read alone, and so is
	reads  map[int]*lane  // whom it reads for: a page is for the lane whose place it was read from, not for a later one of that number

	mu     sync.Mutex
	lanes  map[int]*lane
	parts  map[int]bool // lanes that work no more and are being given back
	joins  []join       // lanes that the reader is to take in, and
	leaves []*lane      // to let go
	wake   chan struct{}

	foreign map[int64]bool // positions that were loaded: they may be in use elsewhere

	quietMu sync.Mutex
	quiet   *window.Position // where lanes go on whose positions are void

	storeMu sync.Mutex     // one store at a time
	edges   map[int64]bool // positions that this session has stored
	dirty   chan struct{}  // something is to be stored
	due     chan struct{}  // parked events may be due

	gather   atomic.Bool // lanes are to come to one place, where their number changes
	gathered atomic.Bool // they have
	other    string      // a relay that is configured differently, and has been told of

	working   sync.WaitGroup // lanes
	delivered atomic.Int64
}

type join struct {
	lane *lane
	from window.Open
}

var (
	errSessionOver  = errors.New("the session is over")
	errHalted       = errors.New("the lane is to be given back")
	errLanesChanged = errors.New("the number of lanes has changed")
	errPaused       = errors.New("the subscription is paused: `commitrelay subscriptions resume` it")
)

// session runs one session and returns the number of events that the sink has confirmed.
func (g *group) session(ctx, hard context.Context, once bool) (n int, err error) {
	reading, width, err := g.look(ctx)
	if err != nil {
		return 0, err
	}
	cfg := &g.relay.cfg
	src := g.store.NewReader(g.sub.Filter.AggregateTypes, g.sub.Filter.EventTypes, width,
		pageBatches*cfg.BatchEvents, cfg.BatchBytes)
	s := &session{
		group: g, soft: ctx, hard: hard, once: once, run: reading.Run, width: width,
		reader: window.NewReader(bounded{src, cfg.probeTime()}, reading),
		lanes:  map[int]*lane{}, reads: map[int]*lane{}, parts: map[int]bool{}, edges: map[int64]bool{}, foreign: map[int64]bool{},
		wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1), due: make(chan struct{}, 1),
	}
	s.ctx, s.fail = context.WithCancelCause(hard)
	var helpers sync.WaitGroup
	for _, help := range []func() error{s.read, s.storeDirty, s.lookForDue} {
		helpers.Go(func() {
			if err := help(); err != nil {
				s.fail(err)
			}
		})
	}
	s.relay.databaseUp()
	err = s.shareOut()
	for _, l := range s.owned() {
		l.halt()
	}
	s.working.Wait()
	s.fail(errSessionOver)
	helpers.Wait()
	if cause := context.Cause(s.ctx); err == nil && ctx.Err() == nil && !errors.Is(cause, errSessionOver) {
		err = cause
	}
	var back *window.RegressionError
	if g.broken = ""; errors.As(err, &back) {
		// The stored positions, which are older, may not show it.
		g.broken = back.Reason
	}
	return int(s.delivered.Load()), err
}

// owned are the lanes that are not being given back, by number.
func (s *session) owned() []*lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owned []*lane
	for _, l := range s.lanes {
		if !l.halted() {
			owned = append(owned, l)
		}
	}
	slices.SortFunc(owned, func(a, b *lane) int { return a.number - b.number })
	return owned
}

// all are the lanes at work, those that are being given back too.
func (s *session) all() []*lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	lanes := make([]*lane, 0, len(s.lanes))
	for _, l := range s.lanes {
		lanes = append(lanes, l)
	}
	return lanes
}

// join has the reader take a lane in; leave has it let go.
func (s *session) join(l *lane, from window.Open) {
	s.mu.Lock()
	s.joins = append(s.joins, join{l, from})
	s.mu.Unlock()
	notify(s.wake)
}

func (s *session) leave(l *lane) {
	s.mu.Lock()
	delete(s.lanes, l.number)
	s.parts[l.number] = true
	s.joins = slices.DeleteFunc(s.joins, func(j join) bool { return j.lane == l })
	s.leaves = append(s.leaves, l)
	s.mu.Unlock()
	notify(s.wake)
}

// left notes that a lane has been given back, or is not ours any more.
func (s *session) left(lane int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.parts, lane)
}

// notify makes sure that whoever waits on the channel looks again.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// runOver says whether the server has begun another run; a store that wrote nothing may mean that.
func (s *session) runOver(ctx context.Context) error {
	reading, err := s.store.Position(ctx)
	if err != nil {
		return err
	}
	if reading.Run != s.run {
		return window.ErrRunChanged
	}
	return nil
}

// quietPosition is where every lane goes on whose stored position is void: one for all of them.
func (s *session) quietPosition(ctx context.Context, l *lane, reason string) (*window.Position, error) {
	s.quietMu.Lock()
	defer s.quietMu.Unlock()
	if s.quiet != nil {
		return s.quiet, nil
	}
	s.log.Warn("stored positions are void, catching up from the table", "reason", reason)
	for n := 1; ; n++ {
		sctx, cancel := context.WithTimeout(ctx, statementTime)
		reading, err := s.store.QuietPosition(sctx)
		cancel()
		var held *store.HeldError
		switch {
		case errors.As(err, &held):
			if was := s.state(Starting, held); was.Error != held.Error() {
				s.log.Warn("waiting for writers to end before catching up", "reason", reason, "held_by", held.Holders)
			}
			if !l.pause(backoff(50*time.Millisecond, 2*time.Second, n)) {
				return nil, errHalted
			}
		case err != nil:
			return nil, err
		case reading.Run != s.run:
			return nil, window.ErrRunChanged
		default:
			s.quiet = window.Quiet(reading)
			return s.quiet, nil
		}
	}
}
