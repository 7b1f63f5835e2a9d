package torture

import (
	"errors"
	"fmt"
	"sync"

	"github.com/commitrelay/outbox"
)

// history is what the writers know of their transactions. It is safe for concurrent use.
type history struct {
	mu        sync.Mutex
	committed []Event
	undone    []Event
	unknown   []Event // their commit was not answered
}

// outcome is what became of a transaction, as far as its writer knows.
type outcome int

const (
	committed outcome = iota
	undone
	unknown
)

func (h *history) add(events []Event, o outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := map[outcome]*[]Event{committed: &h.committed, undone: &h.undone, unknown: &h.unknown}[o]
	*list = append(*list, events...)
}

func (h *history) counts() (committed, undone, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.committed), len(h.undone), len(h.unknown)
}

// resolve decides what is unknown by what the table holds, to which nothing is added any more. It
// fails if the table contradicts what the writers know for certain: then nothing can be said of the
// relays.
func (h *history) resolve(present map[outbox.ID]bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.unknown {
		if present[e.ID] {
			h.committed = append(h.committed, e)
		} else {
			h.undone = append(h.undone, e)
		}
	}
	h.unknown = nil
	known := map[outbox.ID]bool{}
	var errs []error
	for _, e := range h.committed {
		known[e.ID] = true
		if !present[e.ID] {
			errs = append(errs, fmt.Errorf("event %s was committed and is not in the table", e.ID))
		}
	}
	for _, e := range h.undone {
		if present[e.ID] {
			errs = append(errs, fmt.Errorf("event %s was rolled back and is in the table", e.ID))
		}
	}
	for id := range present {
		if !known[id] {
			errs = append(errs, fmt.Errorf("event %s is in the table and no writer committed it", id))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("%d events contradict the writers: %w", len(errs), errors.Join(errs[:min(len(errs), 5)]...))
	}
	return nil
}
