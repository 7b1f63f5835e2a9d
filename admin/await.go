package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

// lookEvery is the pause between two looks at what is being waited for.
const lookEvery = 200 * time.Millisecond

// AwaitPaused waits until nobody has a lane of a paused subscription: from then on nothing of it is published. progress, if it
// is not nil, is told what is being waited for whenever that changes. The error is ErrOverruled if the subscription is not
// paused any more, and ctx's when it ends; relays go on handing over then.
func (a *Admin) AwaitPaused(ctx context.Context, name string, progress func(waiting string)) error {
	return await(ctx, progress, func() (waiting string, err error) {
		s, err := a.find(ctx, name)
		if err != nil {
			return "", err
		}
		if !s.Paused {
			return "", fmt.Errorf("admin: subscription %q: %w: it is not paused any more", name, ErrOverruled)
		}
		return s.held(), nil
	})
}

// AwaitLanes waits until a subscription has the number of lanes that SetLanes has asked for. progress, if it is not nil, is
// told what is being waited for whenever that changes: a subscription that is paused, a relay to begin, lanes in the hands of
// several relays, lanes that are not yet where the others are. If no relay has any lane and all stand at one place,
// AwaitLanes changes the number itself. The error is ErrOverruled if another number is wanted meanwhile, and ctx's when it
// ends; the request stands then.
func (a *Admin) AwaitLanes(ctx context.Context, name string, lanes int, progress func(waiting string)) error {
	return await(ctx, progress, func() (waiting string, err error) {
		s, err := a.find(ctx, name)
		switch {
		case err != nil:
			return "", err
		case s.Wanted != lanes:
			return "", fmt.Errorf("admin: subscription %q: %w: %d lanes are wanted, not %d", name, ErrOverruled, s.Wanted, lanes)
		case s.Lanes == lanes:
			return "", nil
		}
		if s.held() == "" {
			changed, err := a.store.ChangeLanes(ctx, name, lanes)
			if err != nil {
				return "", fmt.Errorf("admin: %w", err)
			}
			if changed {
				return "", nil
			}
		}
		return s.change(), nil
	})
}

// change says what keeps the number of lanes from being changed.
func (s scene) change() string {
	held := s.held()
	switch live := len(serving(s.Name, s.relays, s.lanes)) > 0; {
	case s.Paused && held != "":
		return "the subscription is paused, and " + held
	case s.Paused:
		return "the subscription is paused and its lanes stand at different places: resume it, and relays bring them to one"
	case held != "" && live:
		return s.gathering()
	case held != "":
		return held
	case live:
		return "relays are about to take the lanes"
	}
	return "no live relay is configured for the subscription: the next one that begins brings its lanes to one place"
}

// await calls look until nothing is waited for. A database that does not answer is waited for, too.
func await(ctx context.Context, progress func(string), look func() (waiting string, err error)) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for last := ""; ; {
		waiting, err := look()
		switch {
		case ctx.Err() != nil:
			waiting = last
		case errors.Is(err, ErrOverruled), errors.Is(err, ErrNoSubscription):
			return err
		case err != nil && store.Transient(err):
			waiting = err.Error()
		case err != nil || waiting == "":
			return err
		}
		if waiting != last && progress != nil {
			progress(waiting)
		}
		last = waiting
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("admin: still waiting: %s: %w", cmp.Or(last, "for the database"), ctx.Err())
		}
	}
}

// hand is what an owner has of a subscription.
type hand struct {
	owner string
	relay store.RelayStatus // of an owner that has not said goodbye
	known bool
	lanes []store.LaneStatus
}

// hands are the lanes that somebody has, by owner, most lanes first.
func (s scene) hands() []hand {
	var list []hand
	for _, l := range s.lanes {
		if l.Owner == "" || l.Lease <= 0 {
			continue
		}
		i := slices.IndexFunc(list, func(h hand) bool { return h.owner == l.Owner })
		if i < 0 {
			h := hand{owner: l.Owner}
			if k := slices.IndexFunc(s.relays, func(r store.RelayStatus) bool { return r.ID == l.Owner }); k >= 0 {
				h.relay, h.known = s.relays[k], true
			}
			list = append(list, h)
			i = len(list) - 1
		}
		list[i].lanes = append(list[i].lanes, l)
	}
	slices.SortStableFunc(list, func(a, b hand) int { return len(b.lanes) - len(a.lanes) })
	return list
}

func (h hand) String() string {
	name := "a relay that is gone"
	if h.known {
		name = Relay{Host: h.relay.Host, PID: h.relay.PID}.String()
	}
	s := fmt.Sprintf("%s has %s", name, laneList(h.lanes))
	if !h.known || !h.relay.Alive {
		s += ", and is silent: its lease runs out"
	}
	return s
}

// held says who has lanes; "": nobody has any.
func (s scene) held() string {
	var parts []string
	for _, h := range s.hands() {
		parts = append(parts, h.String())
	}
	return strings.Join(parts, "; ")
}

// gathering says how far the lanes are from standing at one place, in one relay's hands.
func (s scene) gathering() string {
	hands := s.hands()
	if len(hands) > 1 || len(hands[0].lanes) < len(s.lanes) {
		return "one relay is to have all lanes: " + s.held()
	}
	var end int64
	for _, l := range s.lanes {
		end = max(end, l.Window)
	}
	var behind []store.LaneStatus
	for _, l := range s.lanes {
		if l.Position != end {
			behind = append(behind, l)
		}
	}
	text := hands[0].String()
	if len(behind) > 0 {
		text += ", and brings " + laneList(behind) + " to where the others are"
	} else {
		text += ", and is about to give them back"
	}
	if c := complaint(hands[0].relay, s.Name); c != "" {
		text += "; it says " + c
	}
	return text
}

// complaint is what a relay says of a subscription that it does not deliver, or "".
func complaint(r store.RelayStatus, subscription string) string {
	var health struct {
		Subscriptions []struct{ Name, State, Error string }
	}
	if json.Unmarshal(r.Health, &health) != nil {
		return "" // a relay of another version
	}
	for _, s := range health.Subscriptions {
		if s.Name == subscription && s.Error != "" {
			return s.State + ": " + s.Error
		}
	}
	return ""
}

// laneList names lanes: "lanes 0-3, 7".
func laneList(lanes []store.LaneStatus) string {
	var numbers []int
	for _, l := range lanes {
		numbers = append(numbers, l.Lane)
	}
	word := "lanes "
	if len(numbers) == 1 {
		word = "lane "
	}
	return word + store.Ranges(numbers)
}
