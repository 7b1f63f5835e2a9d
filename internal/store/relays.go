package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/window"
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

	// Configurations says how each subscription is configured; relays compare them.
	Configurations map[string]Subscription
}

// Register says that the relay lives, from now on.
func (s *Store) Register(ctx context.Context, r RelayInfo) error {
	configurations, err := json.Marshal(r.Configurations)
	if err != nil {
		return err
	}
	return s.exec(ctx, s.pool, "register",
		r.ID, r.Host, r.PID, r.Version, r.Subscriptions, r.Lease.Seconds(), string(r.Health), string(configurations))
}

// Heartbeat says that a registered relay still lives. registered is false if it is not, or not any more.
func (s *Store) Heartbeat(ctx context.Context, r RelayInfo) (registered bool, err error) {
	_, err = s.row(ctx, s.pool, "heartbeat", []any{r.ID, string(r.Health)}, &registered)
	return registered, err
}

// Goodbye says that the relay has stopped, and gives back the lanes that are still in its name.
func (s *Store) Goodbye(ctx context.Context, id string) error {
	return s.exec(ctx, s.pool, "goodbye", id)
}

// Subscription is what is stored of a subscription.
type Subscription struct {
	Name           string   `json:"-"`
	Lanes          int      `json:"-"` // when it is made
	AggregateTypes []string `json:"aggregate_types"`
	EventTypes     []string `json:"event_types"`
	Sink           string   `json:"sink"`
	Topic          string   `json:"topic"`
	OnDead         string   `json:"on_dead"`
}

// Subscribed is what was stored of a subscription before Subscribe.
type Subscribed struct {
	New     bool
	Changed bool // another configuration was stored
	Lanes   int  // how many there are; what is configured counts only for a new subscription
}

// Subscribe makes a subscription and its lanes known, or brings them up to date. A new subscription begins at the first
// retained event or, with now, at what commits from now on.
func (s *Store) Subscribe(ctx context.Context, sub Subscription, now bool) (was Subscribed, err error) {
	for _, list := range []*[]string{&sub.AggregateTypes, &sub.EventTypes} {
		if *list == nil {
			*list = []string{} // not NULL
		}
	}
	var begin *window.Position // alone, before the transaction has an id
	if now {
		reading, err := s.Position(ctx)
		if err != nil {
			return was, err
		}
		begin = window.Begin(reading)
	}
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		args := []any{sub.Name, sub.Lanes, sub.AggregateTypes, sub.EventTypes, sub.Sink, sub.Topic, sub.OnDead}
		found, err := s.row(ctx, tx, "subscribe", args, &was.Lanes, &was.Changed)
		if err != nil || found {
			return err
		}
		was = Subscribed{New: true, Lanes: sub.Lanes}
		from := int64(0)
		if begin != nil {
			from = begin.ID
			var edges edgeColumns
			if err := edges.add(begin); err != nil {
				return err
			}
			if err := s.exec(ctx, tx, "window_add", edges.args()...); err != nil {
				return err
			}
		}
		return s.exec(ctx, tx, "subscribe_lanes", sub.Name, sub.Lanes, from)
	})
	return was, err
}
