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
func (p parkedKeys) add(e *entry, onDead OnDead) {
	switch {
	case e.fate != dead:
		p.of(e.key).waiting++
	case onDead == Block:
		p.block(e.key)
	}
}

// loadParked reads which keys must wait.
func (l *lane) loadParked() error {
	ctx, cancel := l.statement()
	defer cancel()
	if err := l.store.WakeOrphans(ctx, l.tenure.lane, l.sub.OnDead == Block); err != nil {
		return err
	}
	keys, err := l.store.ParkedKeys(ctx, l.tenure.lane, l.sub.OnDead == Block)
	if err != nil {
		return err
	}
	was := l.parked
	l.parked = parkedKeys{}
	for _, k := range keys {
		l.parked[k.Key] = &parkedKey{waiting: k.Waiting, dead: k.Dead, flowing: was[k.Key] != nil && was[k.Key].flowing}
	}
	l.parkedAt = time.Now()
	l.countParked()
	return nil
}

func (l *lane) countParked() { l.sink.parked(l, l.parked.waits()) }

// lookForDue hands parked events that are due to their lanes, until the session ends.
func (s *session) lookForDue() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	looked := time.Now()
	for {
		select {
		case <-timer.C:
		case <-s.due:
		case <-s.ctx.Done():
			return nil
		}
		all := time.Since(looked) >= parkedLook
		if all {
			looked = time.Now()
		}
		next, err := s.handDue(all)
		if err != nil {
			if s.ctx.Err() != nil {
				return nil
			}
			return err
		}
		timer.Reset(next)
	}
}

// handDue looks for parked events that are due and returns when to look again. all lanes are to look even if they have none: someone
// may have taken away what their keys wait for.
func (s *session) handDue(all bool) (next time.Duration, err error) {
	byLane := map[int]*lane{}
	var numbers []int
	for _, l := range s.owned() {
		byLane[l.number] = l
		numbers = append(numbers, l.number)
	}
	next = retryLook
	if len(numbers) == 0 {
		return next, nil
	}
	// A probe: done every now and then, it must not be what waits for a connection that has gone silent.
	ctx, cancel := context.WithTimeout(s.ctx, s.relay.cfg.probeTime())
	defer cancel()
	keys, err := s.store.DueKeys(ctx, s.sub.Name, numbers, s.relay.cfg.BatchEvents)
	if err != nil {
		return 0, err
	}
	due := map[*lane][]store.Key{}
	if all {
		for _, l := range byLane {
			due[l] = nil
		}
	}
	for _, k := range keys {
		if k.In > 0 {
			next = min(next, k.In)
			continue
		}
		due[byLane[k.Lane]] = append(due[byLane[k.Lane]], k.Key)
	}
	for l, keys := range due {
		select { // these are newer than those that it has not taken yet
		case <-l.due:
		default:
		}
		l.due <- keys
	}
	return next, nil
}

// drainParked sends what is due, until nothing is.
func (l *lane) drainParked() error {
	for {
		ctx, cancel := l.statement()
		due, err := l.store.DueKeys(ctx, l.sub.Name, []int{l.number}, l.relay.cfg.BatchEvents)
		cancel()
		if err != nil {
			return err
		}
		var keys []store.Key
		for _, k := range due {
			if k.In <= 0 && !l.parked.of(k.Key).dead {
				keys = append(keys, k.Key)
			}
		}
		if over, _ := l.over(); over || len(keys) == 0 {
			return nil
		}
		if err := l.retry(keys); err != nil {
			return err
		}
	}
}

// retry sends parked events of keys that are due, in two calls of the sink at most.
func (l *lane) retry(keys []store.Key) error {
	if len(l.parked) > 0 && time.Since(l.parkedAt) >= parkedLook {
		if err := l.loadParked(); err != nil {
			return err
		}
	}
	// Of a key that has just failed only the first event is tried; of those that flow as many as fit.
	var first, flowing []store.Key
	for _, k := range keys {
		switch p := l.parked.of(k); {
		case p.dead:
		case p.flowing:
			flowing = append(flowing, k)
		default:
			first = append(first, k)
		}
	}
	if len(first)+len(flowing) > 0 {
		defer notify(l.session.due)
	}
	if len(first) > 0 {
		if err := l.retryKeys(first, 1); err != nil {
			return err
		}
	}
	if len(flowing) > 0 {
		return l.retryKeys(flowing, max(1, l.relay.cfg.BatchEvents/len(flowing)))
	}
	return nil
}

// retryKeys sends the first events of keys once more and settles them.
func (l *lane) retryKeys(keys []store.Key, perKey int) error {
	ctx, cancel := l.statement()
	defer cancel()
	claimed, err := l.store.ClaimParked(ctx, l.tenure.lane, keys, perKey, l.relay.cfg.BatchBytes)
	if err != nil {
		return err
	}
	all := make([]entry, len(claimed))
	entries := make([]*entry, len(claimed))
	for i := range claimed {
		// The topic is made anew: the template may have been mended since.
		topic, err := l.topic.render(&claimed[i].Event.Event)
		e := &all[i]
		*e = newEntry(&claimed[i].Event, topic, claimed[i].Attempts)
		e.row = claimed[i].RowID
		switch {
		case l.already(e):
			e.fate = confirmed
		case err != nil:
			e.die(err)
		}
		entries[i] = e
	}
	v, err := l.attempt(entries)
	if err != nil {
		return err
	}
	if v.cause != nil {
		l.sink.bad(l, v.cause)
	} else if len(claimed) > 0 {
		l.sink.fine(l)
	}
	if err := l.settleRetried(keys, entries); err != nil || !l.once {
		return err
	}
	return v.cause
}

// settleRetried stores what became of events that were sent again. An event whose outcome is not known goes back as it
// was, and is tried again after a pause.
func (l *lane) settleRetried(keys []store.Key, entries []*entry) error {
	var gone []int64
	var back []store.Settling
	touched := map[store.Key]bool{}
	for _, k := range keys {
		touched[k] = true
		l.parked.of(k).flowing = true
	}
	held := map[store.Key]bool{} // keys whose first event is not due at once
	for _, e := range entries {
		k := l.parked.of(e.key)
		s := store.Settling{RowID: e.row, Attempts: e.attempts, Error: e.reason()}
		switch e.fate {
		case confirmed:
			gone = append(gone, e.row)
			k.waiting--
			continue
		case dead:
			s.Dead = true
			k.waiting--
			k.dead = l.sub.OnDead == Block
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
		if !held[k] && !l.parked.of(k).dead {
			wake = append(wake, k)
		}
	}
	ctx, cancel := l.settling()
	defer cancel()
	if err := l.store.SettleParked(ctx, l.tenure.lane, gone, back, wake); err != nil {
		return err
	}
	l.mu.Lock()
	for _, e := range entries {
		delete(l.memory.retried, e.eventKey())
	}
	l.mu.Unlock()
	l.tellParked(entries)
	return l.forgetKeys(ctx, touched)
}

// forgetKeys lets the keys go for which nothing waits any more. The count may not know of an event that someone has requeued,
// so the database is asked.
func (l *lane) forgetKeys(ctx context.Context, touched map[store.Key]bool) error {
	var gone []store.Key
	for k := range touched {
		if p := l.parked[k]; p.waiting <= 0 && !p.dead {
			gone = append(gone, k)
		}
	}
	if len(gone) > 0 {
		left, err := l.store.KeysLeft(ctx, l.tenure.lane, gone)
		if err != nil {
			return err
		}
		for _, k := range gone {
			if left[k] {
				l.parked[k].waiting = 1
			} else {
				delete(l.parked, k)
			}
		}
	}
	l.countParked()
	return nil
}
