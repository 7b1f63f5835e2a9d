package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// look reads where the server stands, and how many lanes there are.
func (g *group) look(ctx context.Context) (reading window.Reading, lanes int, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.relay.cfg.probeTime())
	defer cancel()
	sh, err := g.store.Share(ctx, g.sub.Name, g.relay.info.ID)
	if err != nil {
		return reading, 0, err
	}
	reading, err = g.store.Position(ctx)
	return reading, sh.Lanes, err
}

// shareOut takes lanes up to this relay's share and hands over what is more, until the session ends.
func (s *session) shareOut() error {
	every := min(shareEvery, s.relay.cfg.Lease/5)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		held, err := s.share()
		if err != nil {
			if s.soft.Err() != nil {
				return nil
			}
			return err
		}
		if s.once {
			s.working.Wait()
			if cause := context.Cause(s.ctx); cause != nil {
				return cause
			}
			if !held {
				return ErrLanesHeld
			}
			return nil
		}
		select {
		case <-tick.C:
		case <-s.soft.Done():
			return nil
		case <-s.ctx.Done():
			return nil
		}
	}
}

// share looks at who else is there and takes lanes, or gives them away. all says that the relay has every lane.
func (s *session) share() (all bool, err error) {
	ctx, cancel := context.WithTimeout(s.soft, s.relay.cfg.probeTime())
	defer cancel()
	sh, err := s.store.Share(ctx, s.sub.Name, s.relay.info.ID)
	if err != nil {
		return false, err
	}
	if s.once {
		sh.Live, sh.Rank = 1, 0
	}
	switch {
	case sh.Lanes != s.width:
		return false, errLanesChanged
	case s.once && sh.Paused:
		return false, errPaused
	case s.gathered.Load():
		return false, s.changeLanes(sh)
	}
	s.tellOther(sh.Other)
	target, why := s.target(sh)
	owned := s.owned()
	for _, l := range owned[min(target, len(owned)):] {
		l.log.Info("lane handed over", "reason", why, "relays", sh.Live)
		l.halt()
	}
	if n := target - len(owned); n > 0 {
		if err := s.take(n); err != nil {
			return false, err
		}
	}
	n := len(s.owned())
	if n == 0 {
		idle := Standby
		if sh.Paused {
			idle = Paused
		}
		s.state(idle, nil)
	}
	all = n == sh.Lanes
	if gather := all && sh.Wanted != sh.Lanes && !s.once; s.gather.Swap(gather) != gather {
		notify(s.wake)
	}
	return all, nil
}

// target is how many lanes this relay should have, and why it may be fewer than it has.
func (s *session) target(sh store.Share) (n int, why string) {
	switch {
	case sh.Paused:
		return 0, "the subscription is paused"
	case sh.Wanted != sh.Lanes: // one relay brings them all to one place
		if sh.Rank > 0 {
			return 0, "the number of lanes is being changed"
		}
		return sh.Lanes, ""
	}
	n = sh.Lanes / sh.Live
	if sh.Rank < sh.Lanes%sh.Live {
		n++
	}
	return n, "another relay has come"
}

// tellOther says, once, that a relay is configured differently.
func (s *session) tellOther(relay string) {
	if relay != "" && s.other == "" {
		s.log.Warn("another relay has this subscription configured differently: which events go where depends on who owns their lane", "relay", relay)
	}
	s.other = relay
}

// take acquires up to n lanes and sets them to work.
func (s *session) take(n int) error {
	var except []int // those that are still being given back, too
	s.mu.Lock()
	except = slices.AppendSeq(except, maps.Keys(s.lanes))
	except = slices.AppendSeq(except, maps.Keys(s.parts))
	s.mu.Unlock()
	// Not the caller's context, which ends when the relay is told to stop: a statement that is broken off may take lanes all the same.
	ctx, cancel := context.WithTimeout(s.hard, s.relay.cfg.probeTime())
	defer cancel()
	sent := time.Now()
	lanes, err := s.store.Acquire(ctx, s.sub.Name, s.relay.info.ID, n, s.relay.cfg.Lease, except)
	if err != nil {
		return err
	}
	for _, held := range lanes {
		l := s.newLane(held, sent)
		s.mu.Lock()
		s.lanes[held.Lane] = l
		s.mu.Unlock()
		s.relay.held.add(l.tenure)
		s.working.Go(l.work)
	}
	return nil
}
