package relay

import (
	"sync"
	"time"
)

// topicMaxBackoff bounds the pause before an unavailable topic is tried again, whatever the backoff for single events is:
// nothing is wrong with the events.
const topicMaxBackoff = 15 * time.Second

// sinkState keeps what a subscription's lanes find out of its sink, and tells it once, not per lane and attempt.
type sinkState struct {
	mu     sync.Mutex
	down   map[*lane]bool // lanes whose last call failed
	since  time.Time      // the first of them did
	topics map[string]int // unavailable ones, with the number of refusals in a row
	waits  map[*lane]int  // parked events that wait, by lane

	calls map[*lane]time.Time // when a call of the sink began that has not returned
}

func newSinkState() *sinkState {
	return &sinkState{down: map[*lane]bool{}, topics: map[string]int{}, waits: map[*lane]int{}, calls: map[*lane]time.Time{}}
}

// state sets the subscription's state; a nil err clears the error.
func (g *group) state(s State, err error) SubscriptionHealth {
	return g.relay.health.update(g.index, func(h *SubscriptionHealth) {
		h.State, h.Error = s, ""
		if err != nil {
			h.Error = err.Error()
		}
	})
}

// bad notes that the sink did not take all that a lane had.
func (st *sinkState) bad(l *lane, err error) {
	st.mu.Lock()
	first := len(st.down) == 0
	st.down[l] = true
	if first {
		st.since = time.Now()
	}
	l.state(SinkDown, err)
	st.mu.Unlock()
	if !first {
		return
	}
	l.session.log.Warn("sink down, events wait", "error", err)
	for _, h := range l.relay.cfg.Hooks {
		if h.SinkDown != nil {
			h.SinkDown(l.sub.Name, err)
		}
	}
}

// fine notes that the sink took all that a lane had.
func (st *sinkState) fine(l *lane) {
	st.mu.Lock()
	was := len(st.down)
	delete(st.down, l)
	up := was > 0 && len(st.down) == 0
	after := time.Since(st.since)
	if len(st.down) == 0 {
		l.state(Delivering, nil)
	}
	st.mu.Unlock()
	if !up {
		return
	}
	l.session.log.Info("sink up again", "after", after.Round(time.Millisecond))
	for _, h := range l.relay.cfg.Hooks {
		if h.SinkUp != nil {
			h.SinkUp(l.sub.Name, after)
		}
	}
}

// idle notes that a lane has nothing for the sink. What it found of it before stands until the sink takes something.
func (st *sinkState) idle(l *lane) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.down) == 0 {
		l.state(Delivering, nil)
	}
}

// forget forgets a lane that is not ours any more.
func (st *sinkState) forget(l *lane) {
	st.parked(l, 0)
	st.mu.Lock()
	defer st.mu.Unlock()
	delete(st.down, l)
}

// parked notes how many events of a lane wait.
func (st *sinkState) parked(l *lane, n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.waits[l] = n; n == 0 {
		delete(st.waits, l)
	}
	total := 0
	for _, n := range st.waits {
		total += n
	}
	l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.Parked = total })
}

// sinkPatience is the least time after which health calls a sink down whose call has not returned.
const sinkPatience = 30 * time.Second

// calling notes when a lane's call of the sink began, or that none is under way.
func (st *sinkState) calling(l *lane, since time.Time) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if since.IsZero() {
		delete(st.calls, l)
	} else {
		st.calls[l] = since
	}
	oldest := time.Time{}
	for _, t := range st.calls {
		if oldest.IsZero() || t.Before(oldest) {
			oldest = t
		}
	}
	l.relay.health.update(l.index, func(h *SubscriptionHealth) { h.calling = oldest })
}

// count notes that the sink has confirmed n events.
func (l *lane) count(n int) {
	l.relay.health.update(l.index, func(h *SubscriptionHealth) {
		h.Delivered += int64(n)
		h.LastDelivery = time.Now()
	})
}

// maxTopics bounds how many unavailable topics health and log name.
const maxTopics = 20

// topicDown notes that a destination inside the sink is unavailable, and returns when to try it again.
func (l *lane) topicDown(topic string, err error) time.Duration {
	st := l.sink
	st.mu.Lock()
	st.topics[topic]++
	n, down := st.topics[topic], len(st.topics)
	l.relay.health.update(l.index, func(h *SubscriptionHealth) {
		if h.Topics == nil {
			h.Topics = map[string]string{}
		}
		if _, known := h.Topics[topic]; known || len(h.Topics) < maxTopics {
			h.Topics[topic] = err.Error()
		}
		h.TopicsDown = down
	})
	st.mu.Unlock()
	if n == 1 && down <= maxTopics {
		l.session.log.Warn("topic unavailable, its events wait", "topic", topic, "error", err)
	}
	return backoff(l.sub.Backoff, min(l.sub.MaxBackoff, topicMaxBackoff), n)
}

// topicsUp notes that destinations have taken messages.
func (l *lane) topicsUp(batch []Message) {
	st := l.sink
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.topics) == 0 {
		return
	}
	for i := range batch {
		topic := batch[i].Topic
		if st.topics[topic] == 0 {
			continue
		}
		delete(st.topics, topic)
		l.relay.health.update(l.index, func(h *SubscriptionHealth) {
			delete(h.Topics, topic)
			h.TopicsDown = len(st.topics)
		})
		if len(st.topics) < maxTopics {
			l.session.log.Info("topic available again", "topic", topic)
		}
	}
}
