package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

const (
	// Space is looked after a few times in a turn of the wheel, within these bounds.
	minWheelPause = time.Second
	maxWheelPause = time.Minute

	// wheelTries is how often a slot's lock is asked for without waiting, at short intervals, before it is waited for.
	wheelTries = 8
	wheelAgain = 200 * time.Millisecond
)

// wheel gives back the space of slots in which all is settled. Each relay has one; the database sees to it that one of them is
// at work at a time, and nothing else stands on that.
type wheel struct {
	store     *store.Store
	log       *slog.Logger
	every     time.Duration
	retention time.Duration

	busy map[int]int // how often a slot was in use when it was to be emptied
	told bool        // that the wheel has gone round to events that are still held
}

// newWheel checks whether the wheel is large enough for the retention.
func (r *Relay) newWheel(ctx context.Context, st *store.Store) (*wheel, error) {
	slots, width, err := st.WheelShape(ctx)
	if err != nil {
		return nil, err
	}
	if most := time.Duration(slots-2) * width; r.cfg.Retention > most {
		return nil, unfitError{errRetention(r.cfg.Retention, slots, width)}
	}
	every := min(max(width/60, minWheelPause), maxWheelPause)
	return &wheel{
		store: st, log: r.log, every: every, busy: map[int]int{},
		// For a moment after its turn a slot still gets the events of transactions that began in it.
		retention: max(r.cfg.Retention, every),
	}, nil
}

// errRetention names what would fit: a slot's turn must not come again before it was emptied.
func errRetention(retention time.Duration, slots int, width time.Duration) error {
	msg := fmt.Sprintf("retention: %v is more than a wheel of %d slots of %v keeps, which is %v", retention, slots, width, time.Duration(slots-2)*width)
	if slots <= 2 {
		return errors.New(msg + ": an outbox with more slots is needed (`migrate up --slots`)")
	}
	fits := (retention + time.Duration(slots-2) - 1) / time.Duration(slots-2)
	unit := time.Second // of a width
	if fits > time.Hour {
		unit = time.Minute // is easier to read
	}
	if over := fits % unit; over > 0 {
		fits += unit - over
	}
	return fmt.Errorf("%s: with %d slots a width of %v fits (`migrate up --slot-width %[3]v`, which an outbox gets when it is made)", msg, slots, fits)
}

// turn gives space back until ctx ends.
func (w *wheel) turn(ctx context.Context) {
	pause := min(w.every, time.Second)
	for wait(ctx, pause/2+rand.N(pause)) { // relays that began together drift apart
		again, err := w.empty(ctx)
		pause = w.every
		if again {
			pause = min(pause, wheelAgain)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Debug("give space back", "error", err)
		}
	}
}

// empty tries once to empty every slot that may be. again says that one was in use, and is to be tried again soon.
func (w *wheel) empty(ctx context.Context) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	now, err := w.store.Wheel(ctx)
	if err != nil {
		return false, err
	}
	var errs []error
	for _, slot := range now.Due(w.retention) {
		// What has begun ends by itself, soon: the lock must not wait until the server notices that its client is gone.
		soon, err := w.try(context.WithoutCancel(ctx), slot)
		again = again || soon
		errs = append(errs, err)
	}
	errs = append(errs, w.tell(ctx, now))
	return again, errors.Join(errs...)
}

// try asks for a slot's lock without waiting. After some failures it waits for it a moment, if that is of any use: others
// queue behind it then.
func (w *wheel) try(ctx context.Context, slot store.Slot) (again bool, err error) {
	given, patient := store.InUse, w.busy[slot.Slot] == wheelTries
	lasting := false
	if patient {
		if lasting, err = w.store.Locked(ctx, slot); err != nil {
			return false, err
		}
	}
	if !lasting {
		if given, err = w.store.Empty(ctx, slot, patient); err != nil {
			return false, err
		}
	}
	w.log.Debug("space looked after", "slot", slot.Slot, "given", given, "waited", patient && !lasting)
	switch {
	case given == store.InUse && !patient:
		w.busy[slot.Slot]++
		return true, nil
	case given == store.Emptied:
		w.log.Info("slot emptied", "slot", slot.Slot, "bytes", slot.Bytes, "up_to_seq", slot.Highest)
	}
	delete(w.busy, slot.Slot)
	return false, nil
}

// tell says once that the wheel has gone round to events that are still held, and by whom.
func (w *wheel) tell(ctx context.Context, now *store.Wheel) error {
	lapped := false
	for _, slot := range now.Slots {
		lapped = lapped || slot.Lapped
	}
	switch {
	case lapped && !w.told:
		held, err := w.store.Holds(ctx, w.retention)
		if err != nil {
			return err
		}
		var slots, by []string
		seen := map[store.Hold]bool{}
		for _, h := range held {
			if !h.Lapped {
				continue
			}
			slots = append(slots, strconv.Itoa(h.Slot))
			for _, hold := range h.HeldBy {
				who := store.Hold{Kind: hold.Kind, Subscription: hold.Subscription} // once, of whatever slot
				if hold.Kind != store.HeldByTurn && hold.Kind != store.HeldByRetention && !seen[who] {
					seen[who] = true
					by = append(by, hold.Reason)
				}
			}
		}
		w.log.Warn("the wheel has gone round to events that could not be removed: space is not given back",
			"slots", strings.Join(slots, " "), "held_by", strings.Join(by, "; "))
		w.told = true
	case !lapped && w.told:
		w.log.Info("no events of an earlier round are left on the wheel")
		w.told = false
	}
	return nil
}
