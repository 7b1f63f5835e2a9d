package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

// wheelView is the slots that take up room, and what holds them. Without it status is worth showing all the same.
type wheelView struct {
	Slots []store.HeldSlot `json:"slots"`
	Error string           `json:"slots_error,omitempty"` // why they are not known
}

func viewWheel(slots []store.HeldSlot, err error) wheelView {
	v := wheelView{Slots: slots}
	if v.Slots == nil {
		v.Slots = []store.HeldSlot{}
	}
	if err != nil {
		v.Error = err.Error()
	}
	return v
}

func printSlots(t io.Writer, v wheelView) {
	fmt.Fprintln(t, "\nSLOT\tSIZE\tTURN\tOLDEST EVENT\tHELD BY")
	for _, s := range v.Slots {
		turn := "over for " + minutes(s.Over)
		if s.Current {
			turn = "now"
		}
		oldest := "-"
		if s.Oldest > 0 {
			oldest = minutes(s.Oldest) + " ago"
		}
		var by []string
		for _, h := range s.HeldBy {
			if h.Subscription != "" && h.Kind == store.HeldBySubscription {
				by = append(by, h.Subscription)
			} else {
				by = append(by, string(h.Kind))
			}
		}
		if len(by) == 0 {
			by = []string{"-"}
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\n", s.Slot, size(s.Bytes), turn, oldest, strings.Join(by, ", "))
	}
	if len(v.Slots) == 0 && v.Error == "" {
		fmt.Fprintln(t, "none: all space is given back")
	}
}

// printHolds says in sentences what keeps space from being given back, once for all slots that it holds. What delivery has
// yet to do in the current slot keeps nothing.
func printHolds(w io.Writer, v wheelView) {
	if v.Error != "" {
		fmt.Fprintf(w, "\nslots: not known: %s\n", v.Error)
	}
	type holder struct {
		kind         store.HoldKind
		subscription string
	}
	told := map[holder]bool{}
	for _, s := range v.Slots {
		if s.Lapped {
			fmt.Fprintf(w, "\nslot %d: the wheel has gone round, and it still has events of an earlier turn\n", s.Slot)
		}
		if s.Current && !s.Lapped {
			continue
		}
		for _, h := range s.HeldBy {
			who := holder{h.Kind, h.Subscription}
			if h.Kind != store.HeldByTurn && !told[who] {
				told[who] = true
				fmt.Fprintf(w, "\nslot %d: %s\n", s.Slot, h.Reason)
			}
		}
	}
}

// size is a number of bytes for people.
func size(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}} {
		if n >= u.bytes {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%d KiB", (n+1023)>>10)
}

// minutes is a time in seconds for people, without seconds where there are hours.
func minutes(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Hour {
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
