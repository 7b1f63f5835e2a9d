package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/commitrelay/outbox/internal/window"
)

// ErrFenced says that a lane belongs to another relay, or that the server has begun another run: nothing was written.
var ErrFenced = errors.New("the lane was taken over, or the server restarted")

// Lane is a lane in one relay's hands. Every write of delivery state carries its epoch (I5).
type Lane struct {
	Subscription string
	Lane         int
	Owner        string // the relay's id, a uuid
	Epoch        int64
}

// Acquire takes the lane if nobody holds it, and fills in the epoch.
func (s *Store) Acquire(ctx context.Context, l *Lane, lease time.Duration) (bool, error) {
	return s.row(ctx, s.pool, "lane_acquire", []any{l.Subscription, l.Lane, l.Owner, lease.Seconds()}, &l.Epoch)
}

// Renew prolongs the lease. False: the lane is not ours any more.
func (s *Store) Renew(ctx context.Context, l Lane, lease time.Duration) (bool, error) {
	var epoch int64
	return s.row(ctx, s.pool, "lane_renew", []any{l.Subscription, l.Lane, l.Owner, l.Epoch, lease.Seconds()}, &epoch)
}

// Release gives the lane back.
func (s *Store) Release(ctx context.Context, l Lane) error {
	return s.exec(ctx, s.pool, "lane_release", l.Subscription, l.Lane, l.Owner, l.Epoch)
}

// Load returns what is settled of a lane.
func (s *Store) Load(ctx context.Context, l Lane) (window.Open, error) {
	var open window.Open
	var from edge
	var to struct {
		id, h, floor   *int64
		snapshot, next *string
		bounds, run    []byte
		catchUp        []byte
	}
	found, err := s.row(ctx, s.pool, "lane_load", []any{l.Subscription, l.Lane},
		&open.P, &open.Ahead,
		&from.id, &from.snapshot, &from.h, &from.next, &from.bounds, &from.floor, &from.run,
		&to.id, &to.snapshot, &to.h, &to.next, &to.bounds, &to.floor, &to.run, &to.catchUp)
	if err != nil {
		return open, err
	}
	if !found {
		return open, personError{fmt.Errorf("lane %d of subscription %q is not in the database any more: a relay that starts makes it anew, and begins at the first retained event", l.Lane, l.Subscription)}
	}
	if open.From, err = from.position(); err != nil {
		return open, err
	}
	if to.id == nil {
		return open, nil
	}
	end, err := edge{*to.id, *to.snapshot, *to.h, *to.next, to.bounds, *to.floor, to.run}.position()
	if err != nil {
		return open, err
	}
	open.Window = &window.Window{From: open.From, To: end, Low: open.P}
	if to.catchUp != nil {
		open.Window.CatchUp = &window.CatchUp{}
		if err := json.Unmarshal(to.catchUp, open.Window.CatchUp); err != nil {
			return open, fmt.Errorf("window %d: catch_up: %w", *to.id, err)
		}
	}
	return open, nil
}

// edge is a row of windows.
type edge struct {
	id       int64
	snapshot string
	h        int64
	next     string
	bounds   []byte
	floor    int64
	run      []byte
}

func (e edge) position() (*window.Position, error) {
	p := &window.Position{H: e.h, Floor: e.floor, Stored: e.id}
	var errs [4]error
	p.Snapshot, errs[0] = window.ParseSnapshot(e.snapshot)
	p.Next, errs[1] = strconv.ParseUint(e.next, 10, 64)
	errs[2] = json.Unmarshal(e.bounds, &p.Bounds)
	errs[3] = json.Unmarshal(e.run, &p.Run)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("window %d: %w", e.id, err)
	}
	return p, nil
}

// StoreLane stores what is settled, and parks events in the same transaction (I8). run is the one the positions were
// read in.
func (s *Store) StoreLane(ctx context.Context, l Lane, run window.Run, open window.Open, parked []Parking) error {
	var stored storedIDs
	var err error
	if len(parked) == 0 {
		stored, err = s.storeLane(ctx, s.pool, l, run, open)
	} else {
		err = s.inTx(ctx, func(tx pgx.Tx) error {
			if stored, err = s.storeLane(ctx, tx, l, run, open); err != nil {
				return err
			}
			return s.park(ctx, tx, l, parked)
		})
	}
	if err != nil {
		return err
	}
	// Only now: rows that were rolled back are not there to be referred to.
	open.From.Stored = stored.from
	if open.Window != nil {
		open.Window.To.Stored = *stored.to
	}
	return nil
}

// storedIDs are the rows that hold a lane's positions.
type storedIDs struct {
	from int64
	to   *int64 // nil: no window is open
}

func (s *Store) storeLane(ctx context.Context, db querier, l Lane, run window.Run, open window.Open) (stored storedIDs, err error) {
	from := open.From
	var to *window.Position
	var catchUp []byte
	if open.Window != nil {
		to = open.Window.To
		if open.Window.CatchUp != nil {
			if catchUp, err = json.Marshal(open.Window.CatchUp); err != nil {
				return stored, err
			}
		}
	}
	args := []any{l.Subscription, l.Lane, l.Epoch, run.ID, storedID(from), storedID(to)}
	fromRow, err := edgeRow(from)
	if err != nil {
		return stored, err
	}
	toRow, err := edgeRow(to)
	if err != nil {
		return stored, err
	}
	ahead := open.Ahead
	if ahead == nil {
		ahead = []int64{}
	}
	args = append(append(append(args, fromRow...), toRow...), textOrNil(catchUp), open.P, pgtype.FlatArray[int64](ahead), run.Started)
	found, err := s.row(ctx, db, "lane_store", args, &stored.from, &stored.to)
	if err == nil && !found {
		err = ErrFenced
	}
	return stored, err
}

// storedID is the row of a position that is in the table, or nil.
func storedID(p *window.Position) *int64 {
	if p == nil || p.Stored < 0 {
		return nil
	}
	return &p.Stored
}

// edgeRow is a position as values for a row, all nil for none.
func edgeRow(p *window.Position) ([]any, error) {
	if p == nil {
		return []any{nil, nil, nil, nil, nil, nil}, nil
	}
	bounds, err := json.Marshal(p.Bounds)
	if err != nil {
		return nil, err
	}
	run, err := json.Marshal(p.Run)
	if err != nil {
		return nil, err
	}
	return []any{p.Snapshot.String(), p.H, xidText(p.Next), string(bounds), p.Floor, string(run)}, nil
}

func textOrNil(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}
