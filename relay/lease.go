package relay

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

var errLeaseOver = errors.New("the lease is over")

// tenure is a lane in our hands, for as long as its lease is renewed. Publishing stops a margin before the database would
// let another relay take the lane (I6): at the time before the renewal was sent, plus the lease, less the margin.
type tenure struct {
	lane store.Lane

	// ctx ends with the tenure: when the lease runs out, or the lane is lost.
	ctx context.Context
	end context.CancelCauseFunc

	mu       sync.Mutex
	renewed  time.Time // before the last renewal was sent
	usable   time.Duration
	deadline *time.Timer
}

// newTenure begins when the acquisition was sent. It must be closed.
func newTenure(ctx context.Context, lane store.Lane, sent time.Time, lease time.Duration) *tenure {
	t := &tenure{lane: lane, renewed: sent, usable: lease - lease/5}
	t.ctx, t.end = context.WithCancelCause(ctx)
	t.deadline = time.AfterFunc(time.Until(sent.Add(t.usable)), func() { t.end(errLeaseOver) })
	return t
}

func (t *tenure) close() {
	t.deadline.Stop()
	t.end(context.Canceled)
}

// extend notes a renewal that was sent at the given time and has been confirmed.
func (t *tenure) extend(sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed = sent
	t.deadline.Reset(time.Until(sent.Add(t.usable)))
}

// check says whether the lane may be published from right now. A process that was frozen finds out here: its timers have
// not run yet. The wall clock is asked too, as the monotonic one stands still while a machine sleeps.
func (t *tenure) check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.renewed) >= t.usable || now.Round(0).Sub(t.renewed.Round(0)) >= t.usable {
		t.end(errLeaseOver)
	}
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	return nil
}

// holdings are the lanes in this relay's hands. One goroutine renews them all.
type holdings struct {
	mu   sync.Mutex
	held map[*tenure]bool
}

func (h *holdings) add(t *tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held == nil {
		h.held = map[*tenure]bool{}
	}
	h.held[t] = true
}

func (h *holdings) remove(t *tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, t)
}

func (h *holdings) list() []*tenure {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*tenure, 0, len(h.held))
	for t := range h.held {
		list = append(list, t)
	}
	return list
}

// heartbeats renews leases and says that the relay lives, until ctx ends.
func (r *Relay) heartbeats(ctx context.Context, st *store.Store) {
	every := r.cfg.Lease / 3
	tick := time.NewTicker(every)
	defer tick.Stop()
	var swept time.Time
	for {
		r.heartbeat(ctx, st, every)
		if time.Since(swept) > sweepEvery {
			swept = time.Now()
			r.sweep(ctx, st, every)
		}
		if !wait(ctx, min(every, time.Second)) { // a state that flaps is no reason to write more often
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-r.health.changed:
		}
	}
}

// sweepEvery is the pause between two looks for positions that nobody refers to.
const sweepEvery = 10 * time.Minute

// sweep removes what relays that died have left behind. If it fails the next one does it.
func (r *Relay) sweep(ctx context.Context, st *store.Store, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := st.Sweep(ctx); err != nil {
		r.log.Debug("remove positions of the past", "error", err)
	}
}

// heartbeat renews every lease. Whatever fails is tried again at the next beat; a lease that cannot be renewed runs out.
func (r *Relay) heartbeat(ctx context.Context, st *store.Store, within time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := r.renew(ctx, st); err != nil {
		r.databaseDown(ctx, err)
		return
	}
	info := r.info
	info.Health = r.health.json()
	registered, err := st.Heartbeat(ctx, info)
	if err == nil && !registered { // it has just begun, or was forgotten
		err = st.Register(ctx, info)
	}
	if err != nil {
		r.databaseDown(ctx, err)
		return
	}
	r.databaseUp()
}

// renew prolongs all leases in one statement.
func (r *Relay) renew(ctx context.Context, st *store.Store) error {
	held := r.held.list()
	if len(held) == 0 {
		return nil
	}
	lanes := make([]store.Lane, len(held))
	for i, t := range held {
		lanes[i] = t.lane
	}
	sent := time.Now()
	ours, err := st.Renew(ctx, r.info.ID, lanes, r.cfg.Lease)
	if err != nil {
		return err
	}
	for _, t := range held {
		if ours[t.lane] {
			t.extend(sent)
		} else {
			t.end(store.ErrFenced)
		}
	}
	return nil
}
