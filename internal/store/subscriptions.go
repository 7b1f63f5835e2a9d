package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// SubscriptionInfo is a subscription as an operator sees it.
type SubscriptionInfo struct {
	Name, Sink, Topic, OnDead  string
	AggregateTypes, EventTypes []string
	Lanes                      int
	Wanted                     int // another number than Lanes: it is being changed
	Paused                     bool
	CreatedAt                  time.Time
	Parked, Dead               int64
}

// Subscriptions returns every subscription that was ever configured, by name.
func (s *Store) Subscriptions(ctx context.Context) ([]SubscriptionInfo, error) {
	return collect(ctx, s, s.pool, "subscriptions", nil, func(row pgx.CollectableRow) (u SubscriptionInfo, err error) {
		return u, row.Scan(&u.Name, &u.Sink, &u.Topic, &u.OnDead, &u.AggregateTypes, &u.EventTypes, &u.Lanes, &u.Wanted, &u.Paused,
			&u.CreatedAt, &u.Parked, &u.Dead)
	})
}

// Pause has the relays give the lanes of a subscription back, or take them again, and returns whether it was paused before.
func (s *Store) Pause(ctx context.Context, subscription string, paused bool) (was, found bool, err error) {
	found, err = s.row(ctx, s.pool, "subscription_pause", []any{subscription, paused}, &was)
	return was, found, err
}

// WantLanes asks for another number of lanes, which relays bring about, and returns the present one. The present number takes
// back what was asked for.
func (s *Store) WantLanes(ctx context.Context, subscription string, lanes int) (present int, found bool, err error) {
	found, err = s.row(ctx, s.pool, "lanes_want", []any{subscription, lanes}, &present)
	return present, found, err
}

// Dropping is what goes with a subscription.
type Dropping struct {
	Relays       []RelayStatus // that live and are configured for it
	Pending      int64         // events that it has not delivered
	More         bool          // Pending is only what was counted
	Parked, Dead int64
}

// Drop removes a subscription if may, which is told what goes with it, returns nil.
func (s *Store) Drop(ctx context.Context, subscription string, may func(Dropping) error) (found bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		var d Dropping
		if found, err = s.row(ctx, tx, "subscription_lock", []any{subscription}, &d.Parked, &d.Dead); err != nil || !found {
			return err
		}
		relays, err := s.relays(ctx, tx)
		if err != nil {
			return err
		}
		for _, r := range relays {
			if r.Alive && r.Serves(subscription) {
				d.Relays = append(d.Relays, r)
			}
		}
		lanes, err := s.lanes(ctx, tx, subscription)
		if err != nil {
			return err
		}
		list := lanes[subscription]
		if err := s.readWaiting(ctx, tx, subscription, list); err != nil {
			return err
		}
		for _, l := range list {
			d.Pending += l.Pending
			d.More = d.More || l.More
		}
		if err := may(d); err != nil {
			return err
		}
		return s.exec(ctx, tx, "subscription_drop", subscription)
	})
	return found, err
}
