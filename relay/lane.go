package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// lane is one lane in this relay's hands, from its acquisition until it is given back or lost. One goroutine works on it.
type lane struct {
	*session
	number int
	tenure *tenure
	log    *slog.Logger
	queue  *queue
	due    chan []store.Key // keys with parked events that are due
	stop   chan struct{}    // closed: give the lane back
	halts  sync.Once

	parked   parkedKeys
	parkedAt time.Time // when parked was read

	mu     sync.Mutex
	open   window.Open // settled
	moved  int         // how often open has moved
	kept   int         // moved, when it was stored last
	stored reach       // where it stood then
	memory *memory
}

// reach is what is worth storing of a position where nothing is to be read: how far it reaches, and up to where all is settled
// for good, which moves on when a transaction ends that was running.
type reach struct{ h, lowest int64 }

func reachOf(p *window.Position) reach { return reach{p.H, p.Lowest()} }

// newLane begins with the acquisition, which was sent at the given time.
func (s *session) newLane(held store.Lane, sent time.Time) *lane {
	return &lane{
		session: s,
		number:  held.Lane,
		tenure:  newTenure(s.hard, held, sent, s.relay.cfg.Lease),
		log:     s.log.With("lane", held.Lane),
		queue:   newQueue(s.buffered),
		due:     make(chan []store.Key, 1),
		stop:    make(chan struct{}),
		memory:  s.of(held.Lane),
	}
}

// halt asks for the lane to be given back, as soon as what is in flight is settled.
func (l *lane) halt() { l.halts.Do(func() { close(l.stop) }) }

func (l *lane) halted() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// work delivers from the lane until it is halted or lost, or the session ends, and gives it back.
func (l *lane) work() {
	err := l.begin()
	if err == nil {
		l.log.Info("lane taken", "epoch", l.tenure.lane.Epoch)
		err = l.loop()
	} else if errors.Is(err, errHalted) {
		_, err = l.over()
	} else if l.tenure.ctx.Err() != nil && l.hard.Err() == nil {
		err = context.Cause(l.tenure.ctx)
	}
	l.leave(l)
	l.queue.drop()
	if err == nil {
		err = l.part()
	}
	l.relay.held.remove(l.tenure)
	l.tenure.close()
	l.sink.forget(l)
	l.mu.Lock()
	if err != nil {
		l.memory.carry()
	}
	l.mu.Unlock()
	l.left(l.number)
	switch {
	case err == nil || errors.Is(err, errSessionOver):
	case errors.Is(err, store.ErrFenced), errors.Is(err, errLeaseOver):
		l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.Fenced++ })
		l.log.Warn("lane lost", "reason", err)
	default:
		l.fail(err)
	}
}

// begin loads what is settled, and the keys that must wait. The epoch has been taken before.
func (l *lane) begin() error {
	ctx, cancel := l.statement()
	defer cancel()
	open, lanes, err := l.store.Load(ctx, l.tenure.lane)
	if err != nil {
		return err
	}
	if lanes != l.width {
		return errLanesChanged
	}
	l.storeMu.Lock()
	l.foreign[open.From.ID], l.foreign[end(open).ID] = true, true
	l.storeMu.Unlock()
	reading, err := l.store.Position(ctx)
	if err != nil {
		return err
	}
	if reading.Run != l.run {
		return window.ErrRunChanged
	}
	if reason := l.void(open, reading); reason != "" {
		if open, err = l.recover(open, reading, reason); err != nil {
			return err
		}
	}
	if err := l.loadParked(); err != nil {
		return err
	}
	l.mu.Lock()
	l.open, l.stored = open, reachOf(open.From)
	l.mu.Unlock()
	l.join(l, open)
	return nil
}

// void says why what is stored does not continue at r, or "".
func (l *lane) void(open window.Open, r window.Reading) string {
	if l.broken != "" {
		return l.broken
	}
	return open.Void(r)
}

// recover plans the way on after a break of the counters, and stores it before anything is published.
func (l *lane) recover(open window.Open, reading window.Reading, reason string) (window.Open, error) {
	if l.broken != "" || open.Regressed(reading) {
		// Nothing will show it any more, once the sequence has been set right. That may take as long as a person takes.
		open = open.Renumbered()
		if err := l.storeOpen(open); err != nil {
			return open, err
		}
	}
	quiet, err := l.quietPosition(l.ctx, l, reason)
	if err != nil {
		return open, err
	}
	next := window.Recover(open, quiet)
	l.log.Info("catching up from the table", "settled_up_to", next.Window.CatchUp.H, "from_seq", next.P, "to_seq", next.Window.To.H)
	return next, l.storeOpen(next)
}

// loop publishes what the reader hands over and retries what is due.
func (l *lane) loop() error {
	for {
		select {
		case keys := <-l.due:
			if err := l.retry(keys); err != nil {
				return err
			}
		default:
		}
		if over, err := l.over(); over {
			return err
		}
		if page := l.queue.take(); page != nil {
			done, err := l.settle(page)
			if err != nil || done {
				return err
			}
			continue
		}
		select {
		case <-l.queue.ready:
		case keys := <-l.due:
			if err := l.retry(keys); err != nil {
				return err
			}
		case <-l.stop:
		case <-l.soft.Done():
		case <-l.tenure.ctx.Done():
		case <-l.ctx.Done():
		}
	}
}

// over says whether the lane's work has ended, and with which error.
func (l *lane) over() (bool, error) {
	switch {
	case l.tenure.ctx.Err() != nil && l.hard.Err() == nil:
		return true, context.Cause(l.tenure.ctx)
	case l.soft.Err() != nil, l.halted():
		return true, nil
	case l.ctx.Err() != nil:
		return true, errSessionOver
	}
	return false, nil
}

// settle settles a page, or notes where the reader stands. done says that a Drain has come to its end.
func (l *lane) settle(page *window.Page) (done bool, err error) {
	if page.At == nil && len(page.Events) > 0 {
		return false, l.publishPage(page)
	}
	l.pass(page)
	if page.At == nil || !l.once {
		return false, nil
	}
	return true, l.drainParked()
}

// pass moves on over a page that holds nothing for the lane.
func (l *lane) pass(page *window.Page) {
	if page.At != nil {
		l.stand(page.At)
	} else {
		l.moveTo(l.after(page))
	}
	l.sink.idle(l)
}

// after is what is settled once a page is.
func (l *lane) after(page *window.Page) window.Open {
	if page.Last {
		return window.Open{From: page.Window.To}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return window.Open{From: page.Window.From, Window: page.Window, P: page.P, Ahead: above(l.open.Ahead, page.P)}
}

func above(seqs []int64, p int64) (left []int64) {
	for _, seq := range seqs {
		if seq > p {
			left = append(left, seq)
		}
	}
	return left
}

// moveTo notes what is settled, to be stored soon.
func (l *lane) moveTo(open window.Open) {
	l.mu.Lock()
	l.open = open
	l.moved++
	l.memory.settle()
	l.forget()
	l.mu.Unlock()
	notify(l.dirty)
}

// stand notes a place where nothing was to be read. That is stored only if it says more than the last one: others come again and again.
func (l *lane) stand(at *window.Position) {
	l.mu.Lock()
	news := l.open.Window != nil || reachOf(at) != l.stored || l.moved != l.kept
	l.open = window.Open{From: at}
	if news {
		l.moved++
	}
	l.forget()
	l.mu.Unlock()
	if news {
		notify(l.dirty)
	}
}

// forget lets go of what was sent before a fault, once all of it has been passed again. The lane's mutex is held.
func (l *lane) forget() {
	if l.open.Window == nil && l.open.From.Next >= l.memory.upTo {
		l.memory.carried = nil
	}
}

// part stores what is settled, of other lanes too as they often part together, and gives the lane back.
func (l *lane) part() error {
	ctx, cancel := l.settling()
	defer cancel()
	if err := l.save(ctx, append(l.all(), l)); err != nil {
		l.log.Warn("lane not given back, what was sent of it since it was stored may be sent again", "error", err)
		return err
	}
	return l.store.Release(ctx, l.tenure.lane)
}

// pause waits; false: the lane's work ended first.
func (l *lane) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.stop:
	case <-l.soft.Done():
	case <-l.tenure.ctx.Done():
	case <-l.ctx.Done():
	}
	return false
}

// statement bounds one use of the database by the tenure.
func (l *lane) statement() (context.Context, context.CancelFunc) {
	return context.WithTimeout(l.tenure.ctx, statementTime)
}

// settling bounds a write of what became of events. It may outlast the tenure a little: the epoch keeps it from harm (I5),
// and what the sink has confirmed need not be sent again.
func (l *lane) settling() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.tenure.ctx))
	grace := time.AfterFunc(statementTime, cancel)
	stop := context.AfterFunc(l.tenure.ctx, func() { grace.Reset(partingTime) })
	return ctx, func() { stop(); grace.Stop(); cancel() }
}

// wait pauses; false: ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
