package store

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/window"
)

// lastRun keeps the run that was read in full last: most readings find it unchanged.
type lastRun struct {
	mu  sync.Mutex
	run window.Run
}

// Position reads a position, alone and autocommitted.
func (s *Store) Position(ctx context.Context) (window.Reading, error) {
	return s.position(ctx, s.pool)
}

func (s *Store) position(ctx context.Context, db querier) (window.Reading, error) {
	for {
		r, known, err := s.probe(ctx, db)
		if err != nil {
			return r, err
		}
		if r.Run.ID == "" { // crash recovery has emptied the table
			if err := s.exec(ctx, db, "run_begin"); err != nil {
				return r, err
			}
			continue
		}
		if known {
			return r, nil
		}
		// Read it in full, and look again: the server may have gone away in between.
		if err := s.readRun(ctx, db); err != nil {
			return r, err
		}
	}
}

// probe is the position statement; known says that its run is the one read in full last.
func (s *Store) probe(ctx context.Context, db querier) (r window.Reading, known bool, err error) {
	var h *int64
	var next32 int64
	var snapshot string
	_, err = s.row(ctx, db, "position", nil,
		&h, &next32, &snapshot, &r.Run.Started, &r.Run.ID, &r.Run.Sequence, &r.Run.Filenode)
	if err != nil {
		return r, false, err
	}
	if h == nil {
		return r, false, personError{fmt.Errorf("position: this role may not read the sequence: GRANT SELECT ON SEQUENCE %s", s.sequence)}
	}
	r.H = *h
	if r.Snapshot, err = window.ParseSnapshot(snapshot); err != nil {
		return r, false, err
	}
	r.Next = widen(r.Snapshot.Xmax, uint32(next32))

	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	full := s.run.run
	if full.Started != r.Run.Started || full.ID != r.Run.ID || full.Sequence != r.Run.Sequence || full.Filenode != r.Run.Filenode {
		return r, false, nil
	}
	r.Run = full
	return r, true, nil
}

// widen makes a 64-bit id of its low half, by its signed distance from one nearby. (Its epoch is not that of the
// snapshot when the two lie on different sides of 2^32.)
func widen(near uint64, low uint32) uint64 {
	return near + uint64(int64(int32(low-uint32(near))))
}

func (s *Store) readRun(ctx context.Context, db querier) error {
	var run window.Run
	_, err := s.row(ctx, db, "server_run", nil,
		&run.System, &run.Timeline, &run.Database, &run.Started, &run.ID, &run.Sequence, &run.Filenode)
	if err != nil {
		return err
	}
	s.run.mu.Lock()
	defer s.run.mu.Unlock()
	s.run.run = run
	return nil
}

// Writers returns which transactions hold a writer's lock on the events table.
func (s *Store) Writers(ctx context.Context) (map[uint32]bool, error) {
	ids, err := collect(ctx, s, s.pool, "writers", nil, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	writers := map[uint32]bool{}
	for _, x := range ids {
		writers[uint32(x)] = true
	}
	return writers, nil
}

func xidText(x uint64) string { return strconv.FormatUint(x, 10) }
