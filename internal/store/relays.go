package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// RelayInfo is what a relay says of itself.
type RelayInfo struct {
	ID            string
	Host          string
	PID           int
	Version       string
	Subscriptions []string
	Lease         time.Duration
	Health        []byte // JSON
}

// Heartbeat says that the relay lives.
func (s *Store) Heartbeat(ctx context.Context, r RelayInfo) error {
	return s.exec(ctx, s.pool, "heartbeat", r.ID, r.Host, r.PID, r.Version, r.Subscriptions, r.Lease.Seconds(), string(r.Health))
}

// Goodbye says that the relay has stopped, and gives back the lanes that are still in its name.
func (s *Store) Goodbye(ctx context.Context, id string) error {
	return s.exec(ctx, s.pool, "goodbye", id)
}

// Subscription is what is stored of a subscription.
type Subscription struct {
	Name                       string
	Lanes                      int
	AggregateTypes, EventTypes []string
	Sink, Topic, OnDead        string
}

// ErrLanesDiffer says that a subscription was made with another number of lanes.
var ErrLanesDiffer = errors.New("the number of lanes cannot change")

// Subscribe makes a subscription and its lanes known, or brings them up to date; changed says that another configuration
// was stored before. A new subscription begins at the first retained event.
func (s *Store) Subscribe(ctx context.Context, sub Subscription) (changed bool, err error) {
	for _, list := range []*[]string{&sub.AggregateTypes, &sub.EventTypes} {
		if *list == nil {
			*list = []string{} // not NULL
		}
	}
	var lanes int
	_, err = s.row(ctx, s.pool, "subscribe",
		[]any{sub.Name, sub.Lanes, sub.AggregateTypes, sub.EventTypes, sub.Sink, sub.Topic, sub.OnDead}, &lanes, &changed)
	if err != nil {
		return false, err
	}
	if lanes != 0 && lanes != sub.Lanes {
		return false, fmt.Errorf("subscription %q has %d lanes in the database and %d in the configuration: %w: configure %d",
			sub.Name, lanes, sub.Lanes, ErrLanesDiffer, lanes)
	}
	err = s.exec(ctx, s.pool, "subscribe_lanes", sub.Name, sub.Lanes)
	return changed, err
}
