package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// delivery is one tenure's work on a lane: what is settled, what waits, what is to be stored.
type delivery struct {
	lane     *lane
	tenure   *tenure
	run      window.Run
	open     window.Open // settled
	parked   parkedKeys
	parkedAt time.Time // when parked was read
	once     bool      // end when nothing is due

	dirty     bool // open has moved since it was stored
	stored    int64
	storedAt  time.Time
	delivered int
}

// loop publishes what the reader hands over, retries what is due and stores, until ctx or the tenure ends, or with d.once
// until the reader ends and nothing is due.
func (d *delivery) loop(ctx context.Context, items <-chan item) error {
	storeDue := time.NewTimer(0)
	defer storeDue.Stop()
	retryDue := time.NewTimer(0) // parked events that an earlier owner left behind may be due
	defer retryDue.Stop()
	for {
		select {
		case it, ok := <-items:
			if !ok {
				if d.once {
					return d.drainParked(ctx)
				}
				return nil // the reader failed
			}
			if err := d.take(ctx, it); err != nil {
				return err
			}
		case <-retryDue.C:
			next, err := d.retry()
			if err != nil {
				return err
			}
			retryDue.Reset(next)
		case <-storeDue.C:
			if err := d.save(d.tenure.ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-d.tenure.ctx.Done():
			return context.Cause(d.tenure.ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if d.dirty {
			storeDue.Reset(max(0, storeEvery-time.Since(d.storedAt)))
		}
	}
}

// take settles a page, or notes where the reader stands.
func (d *delivery) take(ctx context.Context, it item) error {
	if it.page == nil {
		d.open = window.Open{From: it.at}
		d.dirty = d.dirty || it.at.H != d.stored
		d.lane.carried = nil // all that could be read again has been
		if was := d.lane.relay.health.update(d.lane.index, func(h *SubscriptionHealth) {
			if h.State != SinkDown {
				h.State, h.Error = Delivering, ""
			}
		}); was.State == Standby || was.State == Starting {
			d.lane.log.Debug("caught up")
		}
		return nil
	}
	_, err := d.publishPage(ctx, it.page)
	return err
}

// save stores what is settled, if it has moved.
func (d *delivery) save(ctx context.Context) error {
	if !d.dirty {
		return nil
	}
	return d.store(ctx, nil)
}

// store stores what is settled together with the events it moved past without publishing (I8).
func (d *delivery) store(ctx context.Context, parked []store.Parking) error {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	if err := d.lane.store.StoreLane(ctx, d.tenure.lane, d.run, d.open, parked); err != nil {
		return err
	}
	d.dirty = false
	d.stored = d.open.From.H
	d.storedAt = time.Now()
	clear(d.lane.sent)
	for _, h := range d.lane.relay.cfg.Hooks {
		if h.Stored != nil {
			h.Stored(d.lane.sub.Name, []int{0})
		}
	}
	return nil
}

// unstored forgets which rows hold what is settled. A store that failed may have happened even so, and have removed them.
func (d *delivery) unstored() {
	d.open.From.Stored = -1
	if d.open.Window != nil {
		d.open.Window.To.Stored = -1
	}
}
