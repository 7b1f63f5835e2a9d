package relay

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

// watch keeps a relay's health. It is safe for concurrent use.
type watch struct {
	mu       sync.Mutex
	patience time.Duration // after which a call of a sink that has not returned counts as a failure
	subs     []*SubscriptionHealth
	changed  chan struct{} // a state has changed: the next heartbeat is due
}

func newWatch(subs []Subscription, patience time.Duration) *watch {
	w := &watch{patience: patience, changed: make(chan struct{}, 1)}
	for _, s := range subs {
		w.subs = append(w.subs, &SubscriptionHealth{Name: s.Name, Sink: s.SinkName, State: Starting, Since: time.Now()})
	}
	return w
}

// update lets fn change the health of subscription i. It reports the states before and after.
func (w *watch) update(i int, fn func(h *SubscriptionHealth)) (was SubscriptionHealth) {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.subs[i]
	was = *h
	fn(h)
	if h.State != was.State {
		h.Since = time.Now()
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	return was
}

func (w *watch) health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := Health{Ready: true}
	for _, s := range w.subs {
		c := *s
		c.Topics = maps.Clone(s.Topics)
		if s.State == Delivering && !s.calling.IsZero() && time.Since(s.calling) > w.patience {
			c.State, c.Since, c.Error = SinkDown, s.calling, "the sink has not answered a call since then"
		}
		h.Subscriptions = append(h.Subscriptions, c)
		if c.State != Delivering && c.State != Standby && c.State != Paused {
			h.Ready = false
		}
	}
	return h
}

func (w *watch) json() []byte {
	b, err := json.Marshal(w.health())
	if err != nil {
		return []byte("{}") // times beyond year 9999 only
	}
	return b
}

// database keeps whether PostgreSQL answers, for all lanes: each of them notices.
type database struct {
	mu    sync.Mutex
	since time.Time // zero: it answers
	fault string    // the last one that needs a person
}

func (r *Relay) databaseDown(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // we are stopping
	}
	r.db.mu.Lock()
	defer r.db.mu.Unlock()
	if !store.Transient(err) { // it does answer
		if r.db.fault != err.Error() {
			r.db.fault = err.Error()
			r.log.Error("leases cannot be renewed, trying again", "error", err)
		}
		return
	}
	if r.db.since.IsZero() {
		r.db.since = time.Now()
		r.log.Warn("PostgreSQL does not answer, trying again", "error", err)
	}
}

func (r *Relay) databaseUp() {
	r.db.mu.Lock()
	defer r.db.mu.Unlock()
	r.db.fault = ""
	if !r.db.since.IsZero() {
		r.log.Info("PostgreSQL answers again", "after", time.Since(r.db.since).Round(time.Millisecond))
		r.db.since = time.Time{}
	}
}
