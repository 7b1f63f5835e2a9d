package relay

import (
	"context"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// The number of lanes changes where all of them stand at one place: one relay takes them all, has its reader gather them at the
// end of a window, gives them back there, and changes the number in the database while nobody has any.

// giveBackAt has every lane given back once it has settled what lies before the position, where the reader stands with all of
// them. It reads no more, and ends with the session.
func (s *session) giveBackAt(lanes []int, at *window.Position) error {
	s.hand(&window.Page{Lanes: lanes, At: at}) // some may not have been told of a place where nothing was
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !s.settledAt(at) {
		select {
		case <-poll.C:
		case <-s.ctx.Done():
			return nil
		}
	}
	s.gathered.Store(true)
	for _, l := range s.owned() {
		l.mu.Lock()
		l.moved++ // stored even if that was only by way of finding nothing
		l.mu.Unlock()
		l.halt()
	}
	<-s.ctx.Done()
	return nil
}

// settledAt says that every lane stands at the position, and has nothing under way. A lane that has been lost counts: whether
// all of them stand there the database says.
func (s *session) settledAt(at *window.Position) bool {
	for _, l := range s.owned() {
		l.mu.Lock()
		there := l.open.Window == nil && l.open.From != nil && l.open.From.ID == at.ID
		l.mu.Unlock()
		if !there || !l.queue.idle() {
			return false
		}
	}
	return true
}

// changeLanes gives the subscription the number of lanes that is wanted, once all of them have been given back. The session ends
// with that.
func (s *session) changeLanes(ctx context.Context, sh store.Share) error {
	s.mu.Lock()
	working := len(s.lanes) + len(s.parts)
	s.mu.Unlock()
	if working > 0 {
		return nil // at the next look
	}
	if sh.Wanted != sh.Lanes {
		changed, err := s.store.ChangeLanes(ctx, s.sub.Name, sh.Wanted)
		if err != nil {
			return err
		}
		if !changed {
			s.log.Warn("the number of lanes could not be changed: another relay has taken one; trying again", "lanes", sh.Lanes, "wanted", sh.Wanted)
		}
	}
	return errLanesChanged
}
