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
		if c.State != Delivering && c.State != Standby {
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

// state sets a lane's state; an empty err clears the error.
func (l *lane) state(s State, err error) SubscriptionHealth {
	return l.relay.health.update(l.index, func(h *SubscriptionHealth) {
		h.State, h.Error = s, ""
		if err != nil {
			h.Error = err.Error()
		}
	})
}

// sinkDown notes that the sink does not take events. It is said once, not per attempt.
func (l *lane) sinkDown(err error) {
	if was := l.state(SinkDown, err); was.State == SinkDown {
		return
	}
	l.log.Warn("sink down, events wait", "error", err)
	for _, h := range l.relay.cfg.Hooks {
		if h.SinkDown != nil {
			h.SinkDown(l.sub.Name, err)
		}
	}
}

// count notes that the sink has confirmed n events.
func (l *lane) count(n int) {
	l.relay.health.update(l.index, func(h *SubscriptionHealth) {
		h.Delivered += int64(n)
		h.LastDelivery = time.Now()
	})
}

// sinkUp notes that the sink takes events.
func (l *lane) sinkUp() {
	was := l.state(Delivering, nil)
	if was.State != SinkDown {
		return
	}
	after := time.Since(was.Since)
	l.log.Info("sink up again", "after", after.Round(time.Millisecond))
	for _, h := range l.relay.cfg.Hooks {
		if h.SinkUp != nil {
			h.SinkUp(l.sub.Name, after)
		}
	}
}

// topicDown notes that a destination inside the sink is unavailable, and returns when to try it again.
func (l *lane) topicDown(topic string, err error) time.Duration {
	l.down[topic]++
	l.relay.health.update(l.index, func(h *SubscriptionHealth) {
		if h.Topics == nil {
			h.Topics = map[string]string{}
		}
		if _, known := h.Topics[topic]; known || len(h.Topics) < maxTopics {
			h.Topics[topic] = err.Error()
		}
		h.TopicsDown = len(l.down)
	})
	if l.down[topic] == 1 && len(l.down) <= maxTopics {
		l.log.Warn("topic unavailable, its events wait", "topic", topic, "error", err)
	}
	return backoff(l.sub.Backoff, min(l.sub.MaxBackoff, topicMaxBackoff), l.down[topic])
}

// maxTopics bounds how many unavailable topics health and log name.
const maxTopics = 20

// topicMaxBackoff bounds the pause before an unavailable topic is tried again, whatever the backoff for single events is:
// nothing is wrong with the events.
const topicMaxBackoff = 15 * time.Second

// topicsUp notes that destinations have taken messages.
func (l *lane) topicsUp(batch []Message) {
	if len(l.down) == 0 {
		return
	}
	for i := range batch {
		topic := batch[i].Topic
		if l.down[topic] == 0 {
			continue
		}
		delete(l.down, topic)
		l.relay.health.update(l.index, func(h *SubscriptionHealth) {
			delete(h.Topics, topic)
			h.TopicsDown = len(l.down)
		})
		if len(l.down) < maxTopics {
			l.log.Info("topic available again", "topic", topic)
		}
	}
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
