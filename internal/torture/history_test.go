package torture

import (
	"strings"
	"testing"

	"github.com/commitrelay/outbox"
)

func TestHistoryIsResolvedByTheTable(t *testing.T) {
	a, b, c, d := event(keyA, 1), event(keyA, 2), event(keyB, 1), event(keyB, 2)
	h := &history{}
	h.add([]Event{a}, committed)
	h.add([]Event{b}, undone)
	h.add([]Event{c, d}, unknown)
	if err := h.resolve(map[outbox.ID]bool{a.ID: true, c.ID: true}); err != nil {
		t.Fatal(err)
	}
	if len(h.committed) != 2 || len(h.undone) != 2 || len(h.unknown) != 0 || h.committed[1].ID != c.ID || h.undone[1].ID != d.ID {
		t.Errorf("committed %v, undone %v, unknown %v", h.committed, h.undone, h.unknown)
	}
}

// If the database itself loses or invents something, nothing can be said of the relays.
func TestHistoryThatTheTableContradicts(t *testing.T) {
	a := event(keyA, 1)
	for want, o := range map[string]struct {
		outcome outcome
		present bool
	}{
		"not in the table":       {committed, false},
		"rolled back and is in":  {undone, true},
		"no writer committed it": {-1, true},
	} {
		h := &history{}
		if o.outcome >= 0 {
			h.add([]Event{a}, o.outcome)
		}
		present := map[outbox.ID]bool{}
		if o.present {
			present[a.ID] = true
		}
		if err := h.resolve(present); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("resolve says %v, want %q", err, want)
		}
	}
}
