package store

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"
)

// Status is what the database tells of delivery.
type Status struct {
	Relays        []RelayStatus
	Subscriptions []SubscriptionStatus
}

// RelayStatus is a relay that has not said goodbye. Times are in seconds, by the database's clock.
type RelayStatus struct {
	ID            string          `json:"id"`
	Host          string          `json:"host"`
	PID           int             `json:"pid"`
	Version       string          `json:"version"`
	Subscriptions []string        `json:"subscriptions"`
	Up            float64         `json:"up_seconds"`
	HeartbeatAge  float64         `json:"heartbeat_age_seconds"`
	Alive         bool            `json:"alive"`
	Health        json.RawMessage `json:"health"`
}

// SubscriptionStatus is a subscription and its lanes.
type SubscriptionStatus struct {
	Name, Sink, Topic, OnDead  string
	AggregateTypes, EventTypes []string
	Lanes                      []LaneStatus
}

// LaneStatus is where a lane stands, and what waits in it.
type LaneStatus struct {
	Lane     int     `json:"lane"`
	Owner    string  `json:"owner,omitempty"` // id of a relay
	Epoch    int64   `json:"epoch"`
	Lease    float64 `json:"lease_seconds"` // what is left of it
	Position int64   `json:"position"`      // events up to this number are settled, but for late ones
	Window   int64   `json:"window_end"`    // of the window in progress; the position if there is none
	Stored   float64 `json:"stored_seconds_ago"`
	Pending  int64   `json:"pending"`      // events that were committed and are not settled
	More     bool    `json:"pending_more"` // Pending is only what was counted
	Lag      float64 `json:"lag_seconds"`  // how long the oldest of them has waited
	Parked   int64   `json:"parked"`
	Dead     int64   `json:"dead"`
}

// ReadStatus reads the whole of it, in short statements.
func (s *Store) ReadStatus(ctx context.Context) (Status, error) {
	var st Status
	var err error
	st.Relays, err = collect(ctx, s, s.pool, "status_relays", nil, func(row pgx.CollectableRow) (r RelayStatus, err error) {
		var health string
		err = row.Scan(&r.ID, &r.Host, &r.PID, &r.Version, &r.Subscriptions, &r.Up, &r.HeartbeatAge, &r.Alive, &health)
		r.Health = json.RawMessage(health)
		return r, err
	})
	if err != nil {
		return Status{}, err
	}
	st.Subscriptions, err = collect(ctx, s, s.pool, "status_subscriptions", nil, func(row pgx.CollectableRow) (u SubscriptionStatus, err error) {
		return u, row.Scan(&u.Name, &u.Sink, &u.Topic, &u.OnDead, &u.AggregateTypes, &u.EventTypes)
	})
	if err != nil {
		return Status{}, err
	}
	return st, s.readLanes(ctx, st.Subscriptions)
}

type laneRow struct {
	subscription string
	LaneStatus
}

func (s *Store) readLanes(ctx context.Context, subs []SubscriptionStatus) error {
	lanes, err := collect(ctx, s, s.pool, "status_lanes", nil, func(row pgx.CollectableRow) (l laneRow, err error) {
		return l, row.Scan(&l.subscription, &l.Lane, &l.Owner, &l.Epoch, &l.Lease, &l.Window, &l.Position, &l.Stored)
	})
	if err != nil {
		return err
	}
	parked, err := collect(ctx, s, s.pool, "status_parked", nil, func(row pgx.CollectableRow) (l laneRow, err error) {
		return l, row.Scan(&l.subscription, &l.Lane, &l.Parked, &l.Dead)
	})
	if err != nil {
		return err
	}
	for i := range subs {
		for _, l := range lanes {
			if l.subscription != subs[i].Name {
				continue
			}
			_, err := s.row(ctx, s.pool, "status_waiting", []any{l.subscription, l.Lane}, &l.Pending, &l.More, &l.Lag)
			if err != nil {
				return err
			}
			for _, p := range parked {
				if p.subscription == l.subscription && p.Lane == l.Lane {
					l.Parked, l.Dead = p.Parked, p.Dead
				}
			}
			subs[i].Lanes = append(subs[i].Lanes, l.LaneStatus)
		}
	}
	return nil
}
