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
// them; nothing is read meanwhile. False: the number is not to change any more, or lanes have come or gone, and reading goes on.
func (s *session) giveBackAt(lanes []int, at *window.Position) bool {
	s.log.Debug("all lanes have been read up to one place", "lanes", len(lanes), "window", at.ID)
	s.hand(&window.Page{Lanes: lanes, At: at}) // some may not have been told of a place where nothing was
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !s.settledAt(at) {
		if !s.gather.Load() || s.membershipDue() {
			return false
		}
		select {
		case <-poll.C:
		case <-s.ctx.Done():
			return false
		}
	}
	s.gathered.Store(true)
	for _, l := range s.owned() {
		l.mu.Lock()
		l.moved++ // stored even if that was only by way of finding nothing
		l.mu.Unlock()
		l.halt()
	}
	return true
}

func (s *session) membershipDue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.joins)+len(s.leaves) > 0
}

// settledAt says that every lane stands at the position, and has nothing under way.
func (s *session) settledAt(at *window.Position) bool {
	lanes := s.owned()
	if len(lanes) < s.width {
		return false
	}
	for _, l := range lanes {
		l.mu.Lock()
		there := l.open.Window == nil && l.open.From != nil && l.open.From.ID == at.ID
		l.mu.Unlock()
		if !there || !l.queue.idle() {
			return false
		}
	}
	return true
}

// changeTime bounds the change itself, which moves parked events to their new lanes: there may be a million.
const changeTime = 5 * time.Minute

// changeLanes gives the subscription the number of lanes that is wanted, once all of them have been given back. The session ends
// with that.
func (s *session) changeLanes(sh store.Share) error {
	s.mu.Lock()
	working := len(s.lanes) + len(s.parts)
	s.mu.Unlock()
	if working > 0 {
		return nil // at the next look
	}
	if sh.Wanted != sh.Lanes {
		ctx, cancel := context.WithTimeout(s.hard, changeTime)
		defer cancel()
		changed, err := s.store.ChangeLanes(ctx, s.sub.Name, sh.Wanted)
		if err != nil {
			return err
		}
		if !changed {
			s.log.Warn("the number of lanes could not be changed: another relay has taken one of them, or they do not stand together; trying again",
				"lanes", sh.Lanes, "wanted", sh.Wanted)
		}
	}
	return errLanesChanged
}
