package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

const (
	readAhead  = 2                      // pages read while one is being published
	storeEvery = 100 * time.Millisecond // least time between two stores under load

	databaseBackoff    = 100 * time.Millisecond
	databaseMaxBackoff = 5 * time.Second

	// partingTime is what remains, after the time for shutdown is over, to store the position and give the lane back.
	partingTime = 2 * time.Second

	// statementTime bounds a statement, so that a connection that has gone silent is given up.
	statementTime = 30 * time.Second
)

// lane is one lane of a subscription, and what this relay does with it: acquire, deliver, give back. One goroutine runs
// it; a second one reads ahead.
type lane struct {
	relay *Relay
	index int // of the subscription, in the configuration
	sub   Subscription
	topic topicTemplate
	store *store.Store
	log   *slog.Logger

	// What the sink has confirmed since the position was stored last, by event. After a fault the stored position
	// counts, and these are read again but not sent again.
	sent    map[eventKey]bool // since the last store
	carried map[eventKey]bool // from before the fault; nil once all from there has been read again
	retried map[eventKey]bool // parked events whose rows are not gone yet

	down   map[string]int // topics that are unavailable, with the number of refusals in a row
	broken string         // why the stored position does not count, found while reading
}

type eventKey struct {
	id  [16]byte
	seq int64
}

// run owns the lane whenever it can, until ctx ends. hard ends when the time for shutdown is over.
func (l *lane) run(ctx, hard context.Context) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		held, n, err := l.own(ctx, hard, false)
		pause := time.Duration(0)
		if err == nil && !held {
			err = l.exists(ctx)
		}
		switch {
		case err == nil && !held:
			l.state(Standby, nil)
			pause = backoff(min(l.relay.cfg.Lease/10, time.Second), time.Second, 1)
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, window.ErrRunChanged):
			l.log.Warn("back to the stored position", "reason", err)
			failures, pause = again(failures, n)
		case errors.Is(err, store.ErrFenced), errors.Is(err, errLeaseOver):
			l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.Fenced++ })
			l.log.Warn("lane lost", "reason", err)
			failures, pause = again(failures, n)
		default:
			if !store.Transient(err) {
				// It needs a person, who may mend it while we run.
				if was := l.state(Stopped, err); was.Error != err.Error() {
					l.log.Error("delivery stopped, trying again", "error", err)
				}
			} else {
				l.relay.databaseDown(ctx, err)
				l.state(DatabaseOut, err)
			}
			if n > 0 || time.Since(began) > databaseMaxBackoff {
				failures = 0 // it went well for a while
			}
			failures++
			pause = backoff(databaseBackoff, databaseMaxBackoff, failures)
		}
		if pause > 0 {
			wait(ctx, pause)
		}
	}
}

// exists makes sure that a lane that cannot be had is in the database at all.
func (l *lane) exists(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.relay.cfg.probeTime())
	defer cancel()
	_, err := l.store.Load(ctx, store.Lane{Subscription: l.sub.Name})
	return err
}

// again is the pause after a tenure that ended early: none after the first, growing as long as none delivers anything.
func again(failures, delivered int) (int, time.Duration) {
	if delivered > 0 || failures == 0 {
		return 1, 0
	}
	return failures + 1, backoff(databaseBackoff, databaseMaxBackoff, failures)
}

// own takes the lane and delivers from it until ctx ends, the lane is lost, or something fails. held is false if another
// relay has it. With once it ends when nothing is due.
func (l *lane) own(ctx, hard context.Context, once bool) (held bool, n int, err error) {
	me := store.Lane{Subscription: l.sub.Name, Owner: l.relay.info.ID}
	sent := time.Now()
	held, err = l.acquire(hard, &me) // not ctx: a statement that is broken off may take the lane all the same
	if err != nil || !held {
		return held, 0, err
	}
	t := newTenure(hard, me, sent, l.relay.cfg.Lease)
	l.relay.held.add(t)
	n, err = l.deliver(ctx, t, once)
	l.relay.held.remove(t)
	t.close()

	parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
	defer cancel()
	if releaseErr := l.store.Release(parting, me); err == nil {
		err = releaseErr // otherwise the lease runs out
	}
	return true, n, err
}

func (l *lane) acquire(ctx context.Context, me *store.Lane) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.relay.cfg.probeTime())
	defer cancel()
	return l.store.Acquire(ctx, me, l.relay.cfg.Lease)
}

// deliver reads and publishes until ctx ends (then it finishes what is in flight), the tenure ends, or something fails.
func (l *lane) deliver(ctx context.Context, t *tenure, once bool) (n int, err error) {
	d := &delivery{lane: l, tenure: t, once: once}
	reader, err := d.begin(ctx)
	if err != nil {
		if t.ctx.Err() != nil {
			err = context.Cause(t.ctx)
		}
		return 0, err
	}
	l.relay.databaseUp()
	l.log.Info("lane taken", "epoch", t.lane.Epoch)

	feedCtx, stop := context.WithCancel(t.ctx)
	items := make(chan item, readAhead)
	fed := make(chan error, 1)
	go func() { fed <- l.feed(feedCtx, reader, items, once) }()
	err = d.loop(ctx, items)
	stop()
	for range items { // let the reader go
	}
	feedErr := <-fed
	switch {
	case ctx.Err() != nil:
	case t.ctx.Err() != nil:
		err = context.Cause(t.ctx)
	case err == nil:
		err = feedErr
	}

	if err != nil {
		l.carry()
		d.unstored()
	}
	// What is settled is stored even so, if the lane still is ours to write to: the epoch decides.
	parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
	defer cancel()
	switch {
	case errors.Is(err, window.ErrRunChanged):
		l.broken = d.regression(err)
	case errors.Is(err, store.ErrFenced):
	default:
		err = errors.Join(err, d.save(parting))
	}
	return d.delivered, err
}

// carry keeps what was confirmed but not stored, over a fault.
func (l *lane) carry() {
	if l.carried == nil {
		l.carried = map[eventKey]bool{}
	}
	for k := range l.sent {
		l.carried[k] = true
	}
	clear(l.sent)
}

// begin loads what is settled, and the keys that must wait. The epoch has been taken before.
func (d *delivery) begin(ctx context.Context) (*window.Reader, error) {
	sctx, cancel := d.statement()
	defer cancel()
	l := d.lane
	open, err := l.store.Load(sctx, d.tenure.lane)
	if err != nil {
		return nil, err
	}
	reading, err := l.store.Position(sctx)
	if err != nil {
		return nil, err
	}
	if reason := void(open, reading, l.broken); reason != "" {
		if open, reading, err = d.recover(ctx, open, reading, reason); err != nil {
			return nil, err
		}
	}
	l.broken = ""
	d.run = reading.Run
	d.open = open
	d.stored = open.From.H
	if err := d.loadParked(); err != nil {
		return nil, err
	}
	src := l.store.NewReader(l.sub.Filter.AggregateTypes, l.sub.Filter.EventTypes, l.relay.cfg.BatchEvents, l.relay.cfg.BatchBytes)
	return window.NewReader(bounded{src, l.relay.cfg.probeTime()}, open, reading), nil
}

// void says why what is stored does not continue at r, or "".
func void(open window.Open, r window.Reading, broken string) string {
	if broken != "" {
		return broken
	}
	return open.Newest().Void(r)
}

// recover plans the way on after a break of the counters, and stores it before anything is published. It waits for writers
// to leave the events table for a moment, as long as it takes, and says who they are.
func (d *delivery) recover(ctx context.Context, open window.Open, reading window.Reading, reason string) (window.Open, window.Reading, error) {
	l := d.lane
	if l.broken != "" || reading.H < open.Newest().H {
		// Nothing will show it any more, once the sequence has been set right. That may take as long as a person takes.
		open = open.Renumbered()
		if err := d.storeOpen(reading.Run, open); err != nil {
			return open, reading, err
		}
	}
	for n := 1; ; n++ {
		reading, err := l.quietPosition(d)
		if held, ok := errors.AsType[*store.HeldError](err); ok {
			if was := l.state(Starting, held); was.Error != held.Error() {
				l.log.Warn("waiting for writers to end before catching up", "reason", reason, "held_by", held.Holders)
			}
			if !d.pause(ctx, backoff(50*time.Millisecond, 2*time.Second, n)) {
				return open, reading, held
			}
			continue
		}
		if err != nil {
			return open, reading, err
		}
		next := window.Recover(open, reading)
		l.log.Warn("stored position is void, catching up from the table",
			"reason", reason, "settled_up_to", next.Window.CatchUp.H, "from_seq", next.P, "to_seq", next.Window.To.H)
		return next, reading, d.storeOpen(reading.Run, next)
	}
}

func (d *delivery) storeOpen(run window.Run, open window.Open) error {
	ctx, cancel := d.statement()
	defer cancel()
	return d.lane.store.StoreLane(ctx, d.tenure.lane, run, open, nil)
}

func (l *lane) quietPosition(d *delivery) (window.Reading, error) {
	ctx, cancel := d.statement()
	defer cancel()
	return l.store.QuietPosition(ctx)
}

// regression says what ErrRunChanged told of a sequence that went back in the same run: the stored position, which is
// older, may not show it.
func (d *delivery) regression(err error) string {
	if back, ok := errors.AsType[*window.RegressionError](err); ok {
		return back.Reason
	}
	return ""
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
