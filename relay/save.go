package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// storeDirty stores the positions of lanes that have moved, all in one statement, at once after a quiet time and every
// storeEvery under load.
func (s *session) storeDirty() error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-s.dirty:
		case <-s.ctx.Done():
			return nil
		}
		ctx, cancel := context.WithTimeout(s.ctx, statementTime)
		err := s.save(ctx, s.all())
		cancel()
		if err != nil {
			if s.ctx.Err() != nil {
				return nil
			}
			return err
		}
		timer.Reset(storeEvery)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			return nil
		}
	}
}

// save stores what is settled of those lanes that have moved. One that is not ours any more loses its tenure.
func (s *session) save(ctx context.Context, lanes []*lane) error {
	s.storeMu.Lock()
	defer s.storeMu.Unlock()
	var moved []*lane
	var rows []store.Settled
	var counts []int
	for _, l := range lanes {
		l.mu.Lock()
		if l.moved != l.kept {
			moved = append(moved, l)
			counts = append(counts, l.moved)
			rows = append(rows, store.Settled{Lane: l.tenure.lane, Open: l.open})
			l.memory.beginStore()
		}
		l.mu.Unlock()
	}
	if len(moved) == 0 {
		return nil
	}
	stored, err := s.store.StoreLanes(ctx, s.run, rows, s.unused(rows))
	lost := false
	for i, l := range moved {
		l.mu.Lock()
		if ok := err == nil && stored[l.number]; ok {
			l.kept, l.stored = counts[i], reachOf(rows[i].From)
			l.memory.storing = nil
		} else {
			l.memory.endStore()
			lost = lost || err == nil
		}
		l.mu.Unlock()
	}
	if err != nil {
		return err
	}
	s.tellStored(stored)
	if !lost {
		return nil
	}
	if err := s.runOver(ctx); err != nil {
		return err
	}
	for _, l := range moved {
		if !stored[l.number] {
			l.tenure.end(store.ErrFenced)
		}
	}
	return nil
}

// beginStore sets aside what is confirmed now: once that is stored it need not be remembered. endStore takes it back.
func (m *memory) beginStore() { m.storing, m.sent = m.sent, nil }

func (m *memory) endStore() { m.sent, m.storing = append(m.storing, m.sent...), nil }

// unused notes the positions that are being stored, and returns those that this session has stored before and no lane of it
// needs any more. (A lane that comes to one of them later stores it again.)
func (s *session) unused(rows []store.Settled) []int64 {
	needed := map[int64]bool{}
	need := func(open window.Open) {
		if open.From != nil {
			needed[open.From.ID] = true
		}
		if open.Window != nil {
			needed[open.Window.To.ID] = true
		}
	}
	for _, row := range rows {
		need(row.Open)
	}
	s.mu.Lock()
	for _, l := range s.lanes {
		l.mu.Lock()
		need(l.open)
		l.mu.Unlock()
	}
	s.mu.Unlock()
	var gone []int64
	for id := range s.edges {
		if !needed[id] {
			gone = append(gone, id)
			delete(s.edges, id)
		}
	}
	for _, row := range rows {
		for _, p := range []*window.Position{row.From, end(row.Open)} {
			if !s.foreign[p.ID] {
				s.edges[p.ID] = true
			}
		}
	}
	return gone
}

func end(open window.Open) *window.Position {
	if open.Window != nil {
		return open.Window.To
	}
	return open.From
}

// saveNow stores what is settled of the lane before a pause of unknown length.
func (l *lane) saveNow() error {
	ctx, cancel := l.settling()
	defer cancel()
	return l.save(ctx, []*lane{l})
}

// storeOpen stores what is settled of one lane at once.
func (l *lane) storeOpen(open window.Open) error {
	ctx, cancel := l.statement()
	defer cancel()
	l.storeMu.Lock()
	defer l.storeMu.Unlock()
	stored, err := l.store.StoreLanes(ctx, l.run, []store.Settled{{Lane: l.tenure.lane, Open: open}}, nil)
	if err == nil && !stored[l.number] {
		err = store.ErrFenced
	}
	return err
}

// storeParking stores what is settled of the lane together with the events it moved past without publishing (I8).
func (l *lane) storeParking(open window.Open, parked []store.Parking) error {
	ctx, cancel := l.settling()
	defer cancel()
	l.storeMu.Lock()
	defer l.storeMu.Unlock()
	err := l.store.StoreParking(ctx, l.run, store.Settled{Lane: l.tenure.lane, Open: open}, parked)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = open
	l.moved++
	l.kept, l.stored = l.moved, reachOf(open.From)
	l.memory.sent, l.memory.fresh = nil, nil
	l.tellStored(map[int]bool{l.number: true})
	return nil
}

// tellStored tells whoever listens which lanes have been stored.
func (s *session) tellStored(lanes map[int]bool) {
	for _, h := range s.relay.cfg.Hooks {
		if h.Stored != nil && len(lanes) > 0 {
			h.Stored(s.sub.Name, slices.Sorted(maps.Keys(lanes)))
		}
	}
}
