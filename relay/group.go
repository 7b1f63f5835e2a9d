package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// group is a subscription on this relay. One goroutine runs its sessions, one after the other.
type group struct {
	relay  *Relay
	index  int // of the subscription, in the configuration
	sub    Subscription
	topic  topicTemplate
	store  *store.Store
	log    *slog.Logger
	sink   *sinkState
	memory map[int]*memory // by lane, over sessions; only the goroutine that runs them touches the map

	broken string // why stored positions do not count, found while reading
}

// memory is what the sink has confirmed of a lane and is not stored. After a fault the stored position counts; what is in
// here is read again but not sent again.
type memory struct {
	fresh   []eventKey        // by the call that is not settled yet
	sent    []eventKey        // since the last store
	storing []eventKey        // being stored
	carried map[eventKey]bool // from before a fault; nil once all from there has been read again, which it has
	upTo    uint64            // at the end of a window that ends here or later: the newest end of one whose events were sent
	retried map[eventKey]bool // parked events whose rows are not gone yet
}

type eventKey struct {
	id  [16]byte
	seq int64
}

func newMemory() *memory {
	return &memory{retried: map[eventKey]bool{}}
}

// sending notes that events of a window are about to be sent.
func (m *memory) sending(w *window.Window) { m.upTo = max(m.upTo, w.To.Next) }

// settle notes that what is settled of the lane now includes what was sent last.
func (m *memory) settle() {
	m.sent = append(m.sent, m.fresh...)
	m.fresh = m.fresh[:0]
}

// carry keeps what was confirmed but not stored, over a fault.
func (m *memory) carry() {
	if m.carried == nil {
		m.carried = map[eventKey]bool{}
	}
	for _, keys := range [][]eventKey{m.fresh, m.sent, m.storing} {
		for _, k := range keys {
			m.carried[k] = true
		}
	}
	m.fresh, m.sent, m.storing = nil, nil, nil
}

// run delivers the subscription's share of lanes until ctx ends. hard ends when the time for shutdown is over.
func (g *group) run(ctx, hard context.Context) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		n, err := g.session(ctx, hard, false)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			continue
		case errors.Is(err, errLanesChanged):
			g.memory = map[int]*memory{}
			g.log.Info("the number of lanes has changed")
			failures = g.again(ctx, failures, n)
			continue
		case errors.Is(err, window.ErrRunChanged):
			g.log.Warn("back to the stored positions", "reason", err)
			failures = g.again(ctx, failures, n)
			continue
		case store.Transient(err):
			g.relay.databaseDown(ctx, err)
			g.state(DatabaseOut, err)
		default:
			// It needs a person, who may mend it while we run.
			if was := g.state(Stopped, err); was.Error != err.Error() {
				g.log.Error("delivery stopped, trying again", "error", err)
			}
		}
		if n > 0 || time.Since(began) > databaseMaxBackoff {
			failures = 0 // it went well for a while
		}
		failures++
		wait(ctx, g.backoff(failures))
	}
}

// backoff is the pause after a session that failed: not as long as a lease, as others leave lanes to a relay that lives.
func (g *group) backoff(failures int) time.Duration {
	longest := min(databaseMaxBackoff, max(g.relay.cfg.Lease/4, 500*time.Millisecond))
	return backoff(databaseBackoff, longest, failures)
}

// again pauses after a session that ended early: not after the first, and longer as long as none delivers anything.
func (g *group) again(ctx context.Context, failures, delivered int) int {
	if delivered > 0 || failures == 0 {
		return 1
	}
	wait(ctx, g.backoff(failures))
	return failures + 1
}

// of returns what is remembered of a lane.
func (g *group) of(lane int) *memory {
	if g.memory[lane] == nil {
		g.memory[lane] = newMemory()
	}
	return g.memory[lane]
}
