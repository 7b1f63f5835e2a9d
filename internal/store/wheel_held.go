package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/window"
)

// HeldSlot is a slot of the wheel that takes up room, and why it does. Times are in seconds, by the database's clock.
type HeldSlot struct {
	Slot    int     `json:"slot"`
	Bytes   int64   `json:"bytes"`              // indexes included
	Current bool    `json:"current"`            // new events go there
	Over    float64 `json:"over_seconds"`       // since its latest turn ended; 0: it lasts
	Oldest  float64 `json:"oldest_seconds_ago"` // when its first event was written
	Lowest  int64   `json:"lowest"`             // number of that; 0: no event in it is visible
	Highest int64   `json:"highest"`
	Lapped  bool    `json:"lapped"`  // it has events of an earlier turn: the wheel has gone round
	Settled bool    `json:"settled"` // nobody needs anything that is in it
	HeldBy  []Hold  `json:"held_by"` // empty: it is about to be emptied
}

// Hold is a reason why a slot is not emptied.
type Hold struct {
	Kind         HoldKind `json:"kind"`
	Subscription string   `json:"subscription,omitempty"`
	Lane         *int     `json:"lane,omitempty"` // of that subscription, the one that holds the most
	Reason       string   `json:"reason"`         // in words, for people
}

// HoldKind says what holds a slot.
type HoldKind string

// What holds a slot.
const (
	HeldByTurn         HoldKind = "turn"         // it is the current slot
	HeldByRetention    HoldKind = "retention"    // events are to stay for some time
	HeldByNobody       HoldKind = "nobody"       // there is no subscription yet
	HeldBySubscription HoldKind = "subscription" // has not settled all that is in it
	HeldByTransaction  HoldKind = "transaction"  // runs, and may have written to it for all that is known
	HeldByLock         HoldKind = "lock"         // somebody has a lock on the leaf
	HeldByRight        HoldKind = "right"        // this role may not, or may not see all
)

// Holds says of each slot that takes up room what keeps it from being emptied, with that retention.
func (s *Store) Holds(ctx context.Context, retention time.Duration) ([]HeldSlot, error) {
	w, err := s.Wheel(ctx)
	if err != nil {
		return nil, err
	}
	held := make([]HeldSlot, 0, len(w.Slots))
	for _, o := range w.Slots {
		h := HeldSlot{
			Slot: o.Slot, Bytes: o.Bytes, Current: o.Current, Over: max(o.Over, 0).Seconds(), Oldest: o.Oldest.Seconds(),
			Lowest: o.Lowest, Highest: o.Highest, Lapped: o.Lapped, Settled: w.Settled(o), HeldBy: []Hold{},
		}
		add := func(kind HoldKind, reason string) { h.HeldBy = append(h.HeldBy, Hold{Kind: kind, Reason: reason}) }
		switch {
		case o.Current:
			add(HeldByTurn, "new events go there")
		case o.Over < retention:
			add(HeldByRetention, fmt.Sprintf("events are kept for %v after the slot's turn, for %v more", retention, (retention-o.Over).Round(time.Second)))
		}
		if !o.mayEmpty {
			add(HeldByRight, fmt.Sprintf("this role may not empty it: GRANT TRUNCATE ON TABLE %s", o.Leaf))
		}
		if o.mayHidden {
			add(HeldByRight, "row level security may hide events from this role: see `commitrelay migrate status`")
		}
		if len(w.lanes) == 0 {
			add(HeldByNobody, "there is no subscription yet: the first one gets all that is there")
		}
		subscriptions, err := s.heldBySubscriptions(ctx, w, o)
		if err != nil {
			return nil, err
		}
		h.HeldBy = append(h.HeldBy, subscriptions...)
		if !o.Current {
			lasting, err := s.locks(ctx, o)
			if err != nil {
				return nil, err
			}
			for _, who := range lasting {
				add(HeldByLock, who)
			}
		}
		held = append(held, h)
	}
	return held, nil
}

// heldBySubscriptions names each subscription that needs the slot, by its lane that needs most of it.
func (s *Store) heldBySubscriptions(ctx context.Context, w *Wheel, o Slot) (holds []Hold, err error) {
	for i := 0; i < len(w.lanes); {
		worst, low := i, int64(0)
		why, n := "", 0
		name := w.lanes[i].subscription
		for ; i < len(w.lanes) && w.lanes[i].subscription == name; i++ {
			at, because := w.lanes[i].lowest(w.reading)
			if at >= o.Highest {
				continue
			}
			if n == 0 || at < low {
				worst, low, why = i, at, because
			}
			n += w.lanes[i].lanes
		}
		if n == 0 {
			continue
		}
		hold, err := s.heldByLane(ctx, &w.lanes[worst], w.reading, o, low, why)
		if err != nil {
			return nil, err
		}
		holds = append(holds, hold)
	}
	return holds, nil
}

func (s *Store) heldByLane(ctx context.Context, l *standing, r window.Reading, o Slot, low int64, why string) (Hold, error) {
	h := Hold{Kind: HeldBySubscription, Subscription: l.subscription, Lane: &l.lane}
	say := func(format string, args ...any) {
		h.Reason = fmt.Sprintf("subscription %q ", l.subscription) + fmt.Sprintf(format, args...)
	}
	at := fmt.Sprintf("lane %d has settled all up to number %d, and the slot goes up to %d", l.lane, low, o.Highest)
	switch {
	case l.lanes == 0:
		say("has no lanes")
		h.Lane = nil
	case l.paused:
		say("is paused: `commitrelay subscriptions resume` it, or drop it; %s", at)
	case !l.live:
		say("is delivered by no live relay: run one that is configured for it, or `commitrelay subscriptions drop` it; %s", at)
	case why != "":
		say("needs it, lane %d: %s", l.lane, why)
	default:
		say("needs it: %s", at)
		// What it has settled may reach further: a transaction that was running may have written lower numbers.
		if l.open.Window != nil || l.open.From.H < o.Highest {
			return h, nil
		}
		running, err := s.running(ctx, l.open.From, r, o.Highest)
		if err != nil || len(running) == 0 {
			return h, err
		}
		h.Kind = HeldByTransaction
		h.Reason = "it may have written events that are not committed yet: " + strings.Join(running, "; ")
	}
	return h, nil
}

// running names the transactions that a position waits for with numbers up to seq.
func (s *Store) running(ctx context.Context, p *window.Position, r window.Reading, seq int64) ([]string, error) {
	const enough = 100
	ids := []int64{}
	for _, x := range p.Holders(seq, enough) {
		if !r.Snapshot.Ended(x) {
			ids = append(ids, int64(uint32(x)))
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return collect(ctx, s, s.pool, "wheel_transactions", []any{ids}, pgx.RowTo[string])
}

// locks names who has a lock on a slot and will not let go in a moment.
func (s *Store) locks(ctx context.Context, o Slot) (lasting []string, err error) {
	type holder struct {
		who   string
		lasts bool
	}
	holders, err := collect(ctx, s, s.pool, "wheel_holders", []any{o.oid}, func(row pgx.CollectableRow) (h holder, err error) {
		return h, row.Scan(&h.who, &h.lasts)
	})
	for _, h := range holders {
		if h.lasts {
			lasting = append(lasting, h.who)
		}
	}
	return lasting, err
}

// Locked says whether somebody has a lock on the slot for whom it is no use to wait a moment: a writer, or a long reader.
func (s *Store) Locked(ctx context.Context, o Slot) (bool, error) {
	lasting, err := s.locks(ctx, o)
	return len(lasting) > 0, err
}
