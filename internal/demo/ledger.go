package demo

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/commitrelay/outbox"
)

// event is what a writer wrote and what a consumer must get, exactly. One that arrives altered is
// another event: that one is invented, and the one that was written is lost.
type event struct {
	ID      outbox.ID
	User    int64 // the key: whose events keep their order
	Version int   // the user's row counts its changes under its lock: the order of the commits
}

// entry is what became of one event. Times are since the ledger's start.
type entry struct {
	committed   time.Duration // when COMMIT had returned
	isCommitted bool
	received    time.Duration // when the first copy arrived
	arrival     int           // the first copy's place among all first copies
	copies      int
}

// ledger keeps what was committed and what arrived, and compares the two at the end. Writers and the
// consumer use it concurrently. A copy may arrive before its writer has heard of its COMMIT.
type ledger struct {
	start   time.Time
	changed chan struct{} // holds a token after an arrival or a commit

	mu         sync.Mutex
	entries    map[event]*entry
	uncertain  map[event]time.Duration // COMMIT failed, and may have happened
	committed  int
	rolledBack int
	delivered  int
	arrivals   int // events that arrived, the committed and the invented
	unreadable int
	missing    int             // committed and not arrived
	lastNew    time.Duration   // when something last arrived for the first time
	recent     []time.Duration // the newest latencies, for the progress line; a ring
	next       int
}

const recentLatencies = 1024

func newLedger() *ledger {
	return &ledger{
		start:     time.Now(),
		changed:   make(chan struct{}, 1),
		entries:   map[event]*entry{},
		uncertain: map[event]time.Duration{},
	}
}

// Start sets the time from which all is measured. To be called before anything is recorded.
func (l *ledger) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = time.Now()
}

// Committed records that e's COMMIT returned just now.
func (l *ledger) Committed(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Since(l.start)
	l.commit(e, at)
}

func (l *ledger) commit(e event, at time.Duration) {
	n := l.entry(e)
	n.committed, n.isCommitted = at, true
	l.committed++
	if n.copies == 0 {
		l.missing++
	} else {
		l.note(n)
	}
	l.wake()
}

// RolledBack records a transaction that was given up: its event must not arrive.
func (l *ledger) RolledBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rolledBack++
}

// Uncertain records that e's COMMIT failed in a way that leaves open whether it happened.
func (l *ledger) Uncertain(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Since(l.start)
	l.uncertain[e] = at
}

// Resolve settles the uncertain events by asking which of them the table holds. To be called when
// nobody writes any more.
func (l *ledger) Resolve(exist func([]outbox.ID) (map[outbox.ID]bool, error)) error {
	l.mu.Lock()
	var ids []outbox.ID
	for e := range l.uncertain {
		ids = append(ids, e.ID)
	}
	l.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	found, err := exist(ids)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for e, at := range l.uncertain {
		if found[e.ID] {
			l.commit(e, at)
		} else {
			l.rolledBack++
		}
	}
	clear(l.uncertain)
	return nil
}

// Received records that a copy of e arrived just now.
func (l *ledger) Received(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Since(l.start)
	l.delivered++
	n := l.entry(e)
	n.copies++
	if n.copies > 1 {
		return
	}
	n.received, n.arrival = at, l.arrivals
	l.arrivals++
	l.lastNew = at
	if n.isCommitted {
		l.missing--
		l.note(n)
	}
	l.wake()
}

// Unreadable records the arrival of a message that is no event of ours.
func (l *ledger) Unreadable() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered++
	l.unreadable++
}

func (l *ledger) entry(e event) *entry {
	n := l.entries[e]
	if n == nil {
		n = &entry{}
		l.entries[e] = n
	}
	return n
}

// note keeps the latency of an event that is committed and has arrived.
func (l *ledger) note(n *entry) {
	if len(l.recent) < recentLatencies {
		l.recent = append(l.recent, n.latency())
		return
	}
	l.recent[l.next] = n.latency()
	l.next = (l.next + 1) % recentLatencies
}

// latency is the time from COMMIT returning to the first arrival: 0 if that came first.
func (n *entry) latency() time.Duration { return max(n.received-n.committed, 0) }

func (l *ledger) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// state is the ledger at one moment, for the progress line.
type state struct {
	Committed, Delivered, Missing int
	P50                           time.Duration // of the newest latencies
}

func (l *ledger) State() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	recent := slices.Clone(l.recent)
	slices.Sort(recent)
	return state{Committed: l.committed, Delivered: l.delivered, Missing: l.missing, P50: percentile(recent, 50)}
}

// AwaitArrivals returns when all that was committed has arrived, or when nothing new has for that long.
func (l *ledger) AwaitArrivals(ctx context.Context, silence time.Duration) error {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for seen := -1; ; {
		l.mu.Lock()
		missing, arrivals := l.missing, l.arrivals
		l.mu.Unlock()
		if missing == 0 {
			return nil
		}
		if arrivals != seen {
			seen = arrivals
			timer.Reset(silence)
		}
		select {
		case <-l.changed:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Check compares the two sides of the ledger. Every figure comes from what was recorded.
func (l *ledger) Check() Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Result{
		Committed:  l.committed,
		RolledBack: l.rolledBack,
		Delivered:  l.delivered,
		Distinct:   l.arrivals + l.unreadable,
		Invented:   l.unreadable,
	}
	r.Duplicates = r.Delivered - r.Distinct

	type arrived struct {
		event
		*entry
	}
	var firsts []arrived
	var latencies []time.Duration
	for e, n := range l.entries {
		switch {
		case n.copies == 0:
			r.Lost++
		case !n.isCommitted:
			r.Invented++
		default:
			firsts = append(firsts, arrived{e, n})
			latencies = append(latencies, n.latency())
		}
	}

	slices.SortFunc(firsts, func(a, b arrived) int { return a.arrival - b.arrival })
	newest := map[int64]int{}
	for _, a := range firsts {
		if a.Version < newest[a.User] {
			r.OrderViolations++
			continue
		}
		newest[a.User] = a.Version
	}

	slices.Sort(latencies)
	r.P50MS, r.P99MS = milliseconds(percentile(latencies, 50)), milliseconds(percentile(latencies, 99))
	if l.lastNew > 0 {
		r.EventsPerSecond = float64(len(firsts)) / l.lastNew.Seconds()
	}
	return r
}

// percentile is the smallest of the sorted values that p percent of them do not exceed; 0 of none.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)*p+99)/100-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
