package store

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

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

	// Configurations says how the relay has configured each subscription.
	Configurations map[string]Subscription `json:"-"`
}

// Serves says whether the relay is configured for the subscription.
func (r RelayStatus) Serves(subscription string) bool {
	return slices.Contains(r.Subscriptions, subscription)
}

// SubscriptionStatus is a subscription and its lanes.
type SubscriptionStatus struct {
	Name, Sink, Topic, OnDead  string
	AggregateTypes, EventTypes []string
	Wanted                     int // the number of lanes that is being brought about; 0: none is
	Paused                     bool
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
	if st.Relays, err = s.Relays(ctx); err != nil {
		return Status{}, err
	}
	st.Subscriptions, err = collect(ctx, s, s.pool, "status_subscriptions", nil, func(row pgx.CollectableRow) (u SubscriptionStatus, err error) {
		return u, row.Scan(&u.Name, &u.Sink, &u.Topic, &u.OnDead, &u.AggregateTypes, &u.EventTypes, &u.Wanted, &u.Paused)
	})
	if err != nil {
		return Status{}, err
	}
	return st, s.readLanes(ctx, st.Subscriptions)
}

// Relays returns the relays that have not said goodbye, the oldest first.
func (s *Store) Relays(ctx context.Context) ([]RelayStatus, error) {
	return s.relays(ctx, s.pool)
}

func (s *Store) relays(ctx context.Context, db querier) ([]RelayStatus, error) {
	return collect(ctx, s, db, "status_relays", nil, func(row pgx.CollectableRow) (r RelayStatus, err error) {
		var health, configurations string
		err = row.Scan(&r.ID, &r.Host, &r.PID, &r.Version, &r.Subscriptions, &r.Up, &r.HeartbeatAge, &r.Alive, &health, &configurations)
		r.Health = json.RawMessage(health)
		if err == nil {
			_ = json.Unmarshal([]byte(configurations), &r.Configurations) // another version may write them otherwise
		}
		return r, err
	})
}

// Lanes returns where the lanes of a subscription stand, or of all for "". It leaves out what waits in them.
func (s *Store) Lanes(ctx context.Context, subscription string) (map[string][]LaneStatus, error) {
	return s.lanes(ctx, s.pool, subscription)
}

func (s *Store) lanes(ctx context.Context, db querier, subscription string) (map[string][]LaneStatus, error) {
	var name *string
	if subscription != "" {
		name = &subscription
	}
	lanes := map[string][]LaneStatus{}
	_, err := collect(ctx, s, db, "status_lanes", []any{name}, func(row pgx.CollectableRow) (_ struct{}, err error) {
		var subscription string
		var l LaneStatus
		if err = row.Scan(&subscription, &l.Lane, &l.Owner, &l.Epoch, &l.Lease, &l.Window, &l.Position, &l.Stored); err == nil {
			lanes[subscription] = append(lanes[subscription], l)
		}
		return struct{}{}, err
	})
	return lanes, err
}

func (s *Store) readLanes(ctx context.Context, subs []SubscriptionStatus) error {
	lanes, err := s.Lanes(ctx, "")
	if err != nil {
		return err
	}
	type place struct {
		subscription string
		lane         int
	}
	type count struct{ parked, dead int64 }
	parked := map[place]count{}
	_, err = collect(ctx, s, s.pool, "status_parked", nil, func(row pgx.CollectableRow) (p place, err error) {
		var n count
		err = row.Scan(&p.subscription, &p.lane, &n.parked, &n.dead)
		parked[p] = n
		return p, err
	})
	if err != nil {
		return err
	}
	for i := range subs {
		name := subs[i].Name
		subs[i].Lanes = lanes[name]
		err := pgx.BeginTxFunc(ctx, s.pool, oneMoment, func(tx pgx.Tx) error { return s.readWaiting(ctx, tx, name, subs[i].Lanes) })
		if err != nil {
			return err
		}
		for k := range subs[i].Lanes {
			l := &subs[i].Lanes[k]
			n := parked[place{name, l.Lane}]
			l.Parked, l.Dead = n.parked, n.dead
		}
	}
	return nil
}

// oneMoment has statements see positions and events as they were at one moment.
var oneMoment = pgx.TxOptions{IsoLevel: pgx.RepeatableRead}

// Bounds of how many events are looked at to find out what waits in the lanes that stand close to each other.
const (
	lookAtMost  = 10_000
	lookAtLeast = 1_000
	lookInAll   = 160_000 // by a subscription, if each of its lanes stands alone
)

// readWaiting fills in what waits in the lanes of a subscription.
func (s *Store) readWaiting(ctx context.Context, tx pgx.Tx, subscription string, lanes []LaneStatus) error {
	if err := s.exec(ctx, tx, "status_plan"); err != nil {
		return err
	}
	look := max(lookAtLeast, min(lookAtMost, lookInAll/max(len(lanes), 1)))
	left := map[int]*LaneStatus{}
	for i := range lanes {
		left[lanes[i].Lane] = &lanes[i]
	}
	for len(left) > 0 {
		before := len(left)
		if err := s.readNear(ctx, tx, subscription, left, look); err != nil || len(left) == before { // the subscription is gone
			return err
		}
	}
	return nil
}

// near is a lane that stands close to the one furthest behind, and where to look for what waits in them.
type near struct {
	lane                      int
	edge                      float64 // how long ago it began its window
	base, upTo, low, lateUpTo int64
	more                      bool
}

// readNear fills in what waits in those lanes that stand close to the one furthest behind, and takes them out.
func (s *Store) readNear(ctx context.Context, tx pgx.Tx, subscription string, left map[int]*LaneStatus, look int) error {
	args := []any{subscription, int32s(slices.Collect(maps.Keys(left))), look}
	group, err := collect(ctx, s, tx, "status_near", args, func(row pgx.CollectableRow) (n near, err error) {
		return n, row.Scan(&n.lane, &n.edge, &n.base, &n.upTo, &n.low, &n.lateUpTo, &n.more)
	})
	if err != nil || len(group) == 0 {
		return err
	}
	type waiting struct {
		n   int64
		age float64
	}
	found := map[int]waiting{}
	count := func(after, upTo int64) error {
		if after >= upTo {
			return nil
		}
		_, err := collect(ctx, s, tx, "status_waiting", []any{subscription, after, upTo}, func(row pgx.CollectableRow) (lane int, err error) {
			var w waiting
			err = row.Scan(&lane, &w.n, &w.age)
			found[lane] = waiting{found[lane].n + w.n, max(found[lane].age, w.age)}
			return lane, err
		})
		return err
	}
	all := group[0]
	if err := errors.Join(count(all.base, all.upTo), count(all.low, all.lateUpTo)); err != nil {
		return err
	}
	for _, n := range group {
		l, w := left[n.lane], found[n.lane]
		// Nothing can have waited for longer than since the window's edge, at which it was not visible.
		l.Pending, l.More, l.Lag = w.n, n.more, min(w.age, n.edge)
		delete(left, n.lane)
	}
	return nil
}
