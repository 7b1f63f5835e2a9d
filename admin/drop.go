package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/commitrelay/outbox/internal/store"
)

// DropOptions say what Drop may do nevertheless.
type DropOptions struct {
	// GiveUp lets events go that the subscription has not delivered, that are parked, or dead. Without it Drop fails with
	// ErrUnsettled if there are any.
	GiveUp bool

	// Live does not ask about live relays. Those that are configured for the subscription stop delivering it and say so, and one that starts
	// makes it anew, and delivers from the first retained event. Without it Drop fails with ErrRelaysLive if there are any.
	Live bool
}

// Dropped is what has gone with a subscription.
type Dropped struct {
	Pending int64 // events that it had not delivered; they stay in the outbox for others
	More    bool  // Pending is only what was counted
	Parked  int64 // events that waited for a retry, or behind one
	Dead    int64 // events that were given up
}

// Drop removes a subscription with its positions, and its events that are parked or dead. The outbox keeps its own events.
// It reports everything at once that keeps it from it (ErrRelaysLive, ErrUnsettled), unless opts allow that.
func (a *Admin) Drop(ctx context.Context, name string, opts DropOptions) (gone Dropped, err error) {
	found, err := a.store.Drop(ctx, name, func(d store.Dropping) error {
		gone = Dropped{Pending: d.Pending, More: d.More, Parked: d.Parked, Dead: d.Dead}
		var faults []error
		if len(d.Relays) > 0 && !opts.Live {
			var names []string
			for _, r := range d.Relays {
				names = append(names, Relay{Host: r.Host, PID: r.PID}.String())
			}
			faults = append(faults, fmt.Errorf("admin: subscription %q: %w that are configured for it: %s", name, ErrRelaysLive, strings.Join(names, ", ")))
		}
		if gone != (Dropped{}) && !opts.GiveUp {
			faults = append(faults, fmt.Errorf("admin: subscription %q: %w: %s", name, ErrUnsettled, gone))
		}
		return errors.Join(faults...)
	})
	switch {
	case errors.Is(err, ErrRelaysLive), errors.Is(err, ErrUnsettled):
		return Dropped{}, err
	case err != nil:
		return Dropped{}, fmt.Errorf("admin: %w", err)
	case !found:
		return Dropped{}, a.noSubscription(ctx, name)
	}
	return gone, nil
}

// String says it for people.
func (d Dropped) String() string {
	more := ""
	if d.More {
		more = " or more"
	}
	return fmt.Sprintf("%d%s not delivered, %d parked, %d dead", d.Pending, more, d.Parked, d.Dead)
}
