package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

const (
	// retryLook is the longest pause between two looks for parked events that are due: people requeue them behind our back.
	retryLook = time.Second

	// parkedLook is the longest time for which a key stays blocked in memory by events that people have taken away.
	parkedLook = 10 * time.Second
)

// parkedKeys are the keys of a lane whose events must wait.
type parkedKeys map[store.Key]*parkedKey

type parkedKey struct {
	waiting int
	dead    bool // a dead event blocks it (on_dead: block)
	flowing bool // its first event was published lately: try more than one at a time
}

func (p parkedKeys) blocks(k store.Key) bool { return p[k] != nil }

func (p parkedKeys) of(k store.Key) *parkedKey {
	if p[k] == nil {
		p[k] = &parkedKey{}
	}
	return p[k]
}

func (p parkedKeys) block(k store.Key) { p.of(k).dead = true }

// waits counts the events that wait.
func (p parkedKeys) waits() (n int) {
	for _, k := range p {
		n += k.waiting
	}
	return n
}

// add notes an event that has been parked. A dead one counts only where it blocks its key.
func (p parkedKeys) add(e *entry) {
	if e.fate != dead {
		p.of(e.key).waiting++
	}
}

// drainParked sends what is due, until nothing is.
func (d *delivery) drainParked(ctx context.Context) error {
	for ctx.Err() == nil {
		next, err := d.retry()
		if err != nil || next > 0 {
			return err
		}
	}
	return nil
}

// loadParked reads which keys must wait.
func (d *delivery) loadParked() error {
	ctx, cancel := d.statement()
	defer cancel()
	if err := d.lane.store.WakeOrphans(ctx, d.tenure.lane, d.lane.sub.OnDead == Block); err != nil {
		return err
	}
	keys, err := d.lane.store.ParkedKeys(ctx, d.tenure.lane, d.lane.sub.OnDead == Block)
	if err != nil {
		return err
	}
	was := d.parked
	d.parked = parkedKeys{}
	for _, k := range keys {
		d.parked[k.Key] = &parkedKey{waiting: k.Waiting, dead: k.Dead, flowing: was[k.Key] != nil && was[k.Key].flowing}
	}
	d.parkedAt = time.Now()
	d.countParked()
	return nil
}

func (d *delivery) countParked() {
	n := d.parked.waits()
	d.lane.relay.health.update(d.lane.index, func(h *SubscriptionHealth) { h.Parked = n })
}

// retry sends parked events that are due, two calls of the sink at most, and returns when to look again.
func (d *delivery) retry() (next time.Duration, err error) {
	if len(d.parked) > 0 && time.Since(d.parkedAt) > parkedLook {
		if err := d.loadParked(); err != nil {
			return 0, err
		}
	}
	limit := d.lane.relay.cfg.BatchEvents
	due, err := d.dueKeys(limit)
	if err != nil {
		return 0, err
	}
	// Of a key that has just failed only the first event is tried; of those that flow as many as fit.
	next = retryLook
	var first, flowing []store.Key
	for _, k := range due {
		switch {
		case k.In > 0:
			next = min(next, k.In)
		case d.parked.of(k.Key).dead:
		case d.parked[k.Key].flowing:
			flowing = append(flowing, k.Key)
		default:
			first = append(first, k.Key)
		}
	}
	if len(first) > 0 {
		next = 0
		if err := d.retryKeys(first, 1); err != nil {
			return 0, err
		}
	}
	if len(flowing) > 0 {
		next = 0
		if err := d.retryKeys(flowing, max(1, limit/len(flowing))); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// dueKeys is a probe: done every now and then, it must not be what waits for a connection that has gone silent.
func (d *delivery) dueKeys(limit int) ([]store.DueKey, error) {
	ctx, cancel := context.WithTimeout(d.tenure.ctx, d.lane.relay.cfg.probeTime())
	defer cancel()
	return d.lane.store.DueKeys(ctx, d.tenure.lane, limit)
}

// retryKeys sends the first events of keys once more and settles them.
func (d *delivery) retryKeys(keys []store.Key, perKey int) error {
	ctx, cancel := d.statement()
	defer cancel()
	claimed, err := d.lane.store.ClaimParked(ctx, d.tenure.lane, keys, perKey, d.lane.relay.cfg.BatchBytes)
	if err != nil {
		return err
	}
	entries := make([]*entry, len(claimed))
	for i := range claimed {
		// The topic is made anew: the template may have been mended since.
		topic, err := d.lane.topic.render(&claimed[i].Event.Event)
		e := newEntry(&claimed[i].Event, topic, claimed[i].Attempts)
		e.row = claimed[i].RowID
		switch {
		case d.lane.already(e):
			e.fate = confirmed
		case err != nil:
			e.die(err)
		}
		entries[i] = e
	}
	v, err := d.attempt(entries)
	if err != nil {
		return err
	}
	if v.cause != nil {
		d.lane.sinkDown(v.cause)
	}
	if err := d.settleRetried(keys, entries); err != nil || !d.once {
		return err
	}
	return v.cause
}

// settleRetried stores what became of events that were sent again. An event whose outcome is not known goes back as it
// was, and is tried again after a pause.
func (d *delivery) settleRetried(keys []store.Key, entries []*entry) error {
	var gone []int64
	var back []store.Settling
	touched := map[store.Key]bool{}
	for _, k := range keys {
		touched[k] = true
		d.parked.of(k).flowing = true
	}
	held := map[store.Key]bool{} // keys whose first event is not due at once
	for _, e := range entries {
		k := d.parked.of(e.key)
		s := store.Settling{RowID: e.row, Attempts: e.attempts, Error: e.reason()}
		switch e.fate {
		case confirmed:
			gone = append(gone, e.row)
			k.waiting--
			continue
		case dead:
			s.Dead = true
			k.waiting--
			k.dead = d.lane.sub.OnDead == Block
		case refused:
			s.Delay = &e.delay
			k.flowing, held[e.key] = false, true
		case pending:
			if e.behindDead { // the sink held it back; it is woken at once
				break
			}
			k.flowing = false
			if !held[e.key] {
				pause := sinkBackoff * 10
				s.Delay = &pause
				held[e.key] = true
			}
		case waiting:
			k.flowing = false
		}
		back = append(back, s)
	}
	var wake []store.Key
	for k := range touched {
		if !held[k] && !d.parked.of(k).dead {
			wake = append(wake, k)
		}
	}
	ctx, cancel := d.settling()
	defer cancel()
	if err := d.lane.store.SettleParked(ctx, d.tenure.lane, gone, back, wake); err != nil {
		return err
	}
	for _, e := range entries {
		delete(d.lane.retried, e.eventKey())
	}
	d.lane.tellParked(entries)
	return d.forgetKeys(ctx, touched)
}

// forgetKeys lets the keys go for which nothing waits any more. The count may not know of an event that someone has requeued,
// so the database is asked.
func (d *delivery) forgetKeys(ctx context.Context, touched map[store.Key]bool) error {
	var gone []store.Key
	for k := range touched {
		if p := d.parked[k]; p.waiting <= 0 && !p.dead {
			gone = append(gone, k)
		}
	}
	if len(gone) > 0 {
		left, err := d.lane.store.KeysLeft(ctx, d.tenure.lane, gone)
		if err != nil {
			return err
		}
		for _, k := range gone {
			if left[k] {
				d.parked[k].waiting = 1
			} else {
				delete(d.parked, k)
			}
		}
	}
	d.countParked()
	return nil
}
