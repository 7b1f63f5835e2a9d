package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

const (
	sinkBackoff    = 100 * time.Millisecond
	sinkMaxBackoff = 5 * time.Second
)

// publishPage settles every event of a page: published, parked or dead. While the sink is down it waits, and repeats what
// is not confirmed. done is false if ctx or the tenure ended first; d.open says how far it came.
func (d *delivery) publishPage(ctx context.Context, page *window.Page) (done bool, err error) {
	entries := d.entries(page)
	for tries := 1; ; tries++ {
		v, err := d.attempt(entries)
		if err != nil {
			return false, err
		}
		if err := d.settlePage(page, entries); err != nil {
			return false, err
		}
		if v.again {
			continue
		}
		if v.cause == nil {
			return true, nil
		}
		if v.confirmed > 0 {
			tries = 1
		}
		if ctx.Err() != nil || d.tenure.ctx.Err() != nil {
			return false, nil
		}
		if d.once {
			return false, v.cause
		}
		d.lane.sinkDown(v.cause)
		if !d.pause(ctx, backoff(sinkBackoff, sinkMaxBackoff, tries)) {
			return false, nil
		}
	}
}

// entries are a page's events. Some are settled before they are sent: in an earlier tenure, or because they have no topic,
// or their key must wait.
func (d *delivery) entries(page *window.Page) []*entry {
	ahead := map[int64]bool{}
	for _, seq := range d.open.Ahead {
		ahead[seq] = true
	}
	entries := make([]*entry, len(page.Events))
	for i := range page.Events {
		ev := &page.Events[i]
		topic, err := d.lane.topic.render(&ev.Event)
		e := newEntry(ev, topic, 0)
		switch {
		case ahead[ev.Seq], d.lane.already(e):
			e.fate = confirmed
		case d.parked.blocks(e.key):
			e.fate = waiting
		case err != nil:
			e.die(err)
			if d.lane.sub.OnDead == Block {
				d.parked.block(e.key) // in the database once the page is stored
			}
		}
		entries[i] = e
	}
	return entries
}

// settlePage moves d.open to what is settled of the page, and parks what must be, in one transaction (I8). Progress
// without parking is stored later, but for a page that is left half done.
func (d *delivery) settlePage(page *window.Page, entries []*entry) error {
	open := window.Open{From: page.Window.From, Window: page.Window, P: page.P}
	var parked []*entry
	left := false
	for _, e := range entries {
		switch {
		case e.fate == pending:
			if !left {
				left = true
				open.P = e.msg.Seq - 1
			}
			continue
		case left:
			open.Ahead = append(open.Ahead, e.msg.Seq)
		}
		if e.fate != confirmed && e.row == 0 {
			parked = append(parked, e)
		}
	}
	for _, seq := range d.open.Ahead {
		if seq > page.P {
			open.Ahead = append(open.Ahead, seq)
		}
	}
	if !left && page.Last {
		open = window.Open{From: page.Window.To}
	}
	before := d.open
	d.open, d.dirty = open, true
	if len(parked) == 0 && !left && time.Since(d.storedAt) < storeEvery {
		return nil
	}
	ctx, cancel := d.settling()
	defer cancel()
	if len(parked) == 0 {
		return d.save(ctx)
	}
	rows := make([]store.Parking, len(parked))
	for i, e := range parked {
		rows[i] = e.parking()
	}
	if err := d.store(ctx, rows); err != nil {
		// It moves past them only together with their rows. Whether they are there now the next owner reads.
		d.open, d.dirty = before, false
		return err
	}
	for _, e := range parked {
		e.row = storedRow
		d.parked.add(e)
	}
	d.countParked()
	d.lane.tellParked(parked)
	return nil
}

// storedRow marks an entry of a page whose parked row has been written.
const storedRow = -1

func (e *entry) parking() store.Parking {
	p := store.Parking{
		Seq: e.msg.Seq, ID: e.msg.Event.ID, Dead: e.fate == dead, Attempts: e.attempts, Topic: e.msg.Topic, Error: e.reason(),
	}
	if e.fate == refused {
		p.Delay = &e.delay
	}
	return p
}

// reason is what is stored of why the event was refused; empty if it was not tried.
func (e *entry) reason() string {
	if e.err == nil || e.fate == waiting {
		return ""
	}
	return e.err.Error()
}

// pause waits; false: ctx or the tenure ended first.
func (d *delivery) pause(ctx context.Context, dur time.Duration) bool {
	timer := time.NewTimer(dur)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-d.tenure.ctx.Done():
	}
	return false
}
