package relay

import (
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

const (
	sinkBackoff    = 100 * time.Millisecond
	sinkMaxBackoff = 5 * time.Second
)

// publishPage settles every event of a page: published, parked or dead. While the sink is down it waits, and repeats what
// is not confirmed, until the lane's work ends; l.open then says how far it came.
func (l *lane) publishPage(page *window.Page) error {
	entries := l.entries(page)
	l.mu.Lock()
	l.memory.sending(page.Window)
	l.mu.Unlock()
	for tries := 1; ; tries++ {
		v, err := l.attempt(entries)
		if err != nil {
			return err
		}
		if err := l.settlePage(page, entries); err != nil {
			return err
		}
		if v.again {
			continue
		}
		if v.cause == nil {
			return nil
		}
		if v.confirmed > 0 {
			tries = 1
		}
		if over, _ := l.over(); over {
			return nil
		}
		if l.once {
			return v.cause
		}
		l.sink.bad(l, v.cause)
		if v.confirmed > 0 {
			if err := l.saveNow(); err != nil {
				return err
			}
		}
		if !l.pause(backoff(sinkBackoff, sinkMaxBackoff, tries)) {
			return nil
		}
	}
}

// entries are a page's events. Some are settled before they are sent: in an earlier tenure, or because they have no topic,
// or their key must wait.
func (l *lane) entries(page *window.Page) []*entry {
	ahead := map[int64]bool{}
	for _, seq := range l.open.Ahead {
		ahead[seq] = true
	}
	all := make([]entry, len(page.Events))
	entries := make([]*entry, len(page.Events))
	for i := range page.Events {
		ev := &page.Events[i]
		topic, err := l.topic.render(&ev.Event)
		e := &all[i]
		*e = newEntry(ev, topic, 0)
		switch {
		case ahead[ev.Seq], l.already(e):
			e.fate = confirmed
		case l.parked.blocks(e.key):
			e.fate = waiting
		case err != nil:
			e.die(err)
			if l.sub.OnDead == Block {
				l.parked.block(e.key) // in the database once the page is stored
			}
		}
		entries[i] = e
	}
	return entries
}

// settlePage moves l.open to what is settled of the page, and parks what must be, in one transaction (I8). Progress without
// parking is stored later.
func (l *lane) settlePage(page *window.Page, entries []*entry) error {
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
	for _, seq := range l.open.Ahead {
		if seq > page.P {
			open.Ahead = append(open.Ahead, seq)
		}
	}
	if !left && page.Last {
		open = window.Open{From: page.Window.To}
	}
	if len(parked) == 0 {
		l.moveTo(open)
		return nil
	}
	rows := make([]store.Parking, len(parked))
	for i, e := range parked {
		rows[i] = e.parking()
	}
	if err := l.storeParking(open, rows); err != nil {
		return err
	}
	for _, e := range parked {
		e.row = storedRow
		l.parked.add(e, l.sub.OnDead)
	}
	l.countParked()
	l.tellParked(parked)
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
