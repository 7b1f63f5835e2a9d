package relay

import (
	"testing"

	"github.com/commitrelay/outbox/internal/window"
)

// What comes for a lane that has ended is for nobody: neither kept, nor moved over.
func TestQueueOfALaneThatHasEnded(t *testing.T) {
	bytes := 0
	q := newQueue(func(n int) { bytes += n })
	page := func() *window.Page { return &window.Page{Events: make([]window.Event, 3)} }
	q.put(page(), 10, 1000)
	if bytes == 0 || q.skip(func() { t.Error("moved over events that wait") }) {
		t.Errorf("%d bytes wait", bytes)
	}
	q.drop()
	q.put(page(), 10, 1000)
	if q.skip(func() { t.Error("moved over what was dropped") }) || q.take() != nil || bytes != 0 {
		t.Errorf("after its end something is there: %d bytes", bytes)
	}
}
