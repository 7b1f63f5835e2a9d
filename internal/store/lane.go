package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

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

// Share is what a relay needs to know to take its share of a subscription's lanes.
type Share struct {
	Lanes  int
	Wanted int // another number than Lanes: it is being changed
	Paused bool
	Live   int    // relays that live and are configured for the subscription, this one included
	Rank   int    // this relay's place among them
	Other  string // one of them that is configured differently; empty: none is
}

// Share reads how lanes are to be shared.
func (s *Store) Share(ctx context.Context, subscription, relay string) (sh Share, err error) {
	found, err := s.row(ctx, s.pool, "share", []any{subscription, relay}, &sh.Lanes, &sh.Wanted, &sh.Paused, &sh.Live, &sh.Rank, &sh.Other)
	if err == nil && !found {
		err = personError{fmt.Errorf("subscription %q is not in the database any more: a relay that starts makes it anew, and begins at the first retained event", subscription)}
	}
	return sh, err
}

// Acquire takes up to n lanes that nobody holds, except the given ones.
func (s *Store) Acquire(ctx context.Context, subscription, owner string, n int, lease time.Duration, except []int) ([]Lane, error) {
	args := []any{subscription, owner, n, lease.Seconds(), int32s(except)}
	return collect(ctx, s, s.pool, "lanes_acquire", args, func(row pgx.CollectableRow) (Lane, error) {
		l := Lane{Subscription: subscription, Owner: owner}
		return l, row.Scan(&l.Lane, &l.Epoch)
	})
}

// Renew prolongs the leases of lanes of one owner, and returns those that still are its own.
func (s *Store) Renew(ctx context.Context, owner string, lanes []Lane, lease time.Duration) (map[Lane]bool, error) {
	subs, nums, epochs := make([]string, len(lanes)), make([]int32, len(lanes)), make([]int64, len(lanes))
	type place struct {
		subscription string
		lane         int
	}
	byPlace := map[place]Lane{}
	for i, l := range lanes {
		subs[i], nums[i], epochs[i] = l.Subscription, int32(l.Lane), l.Epoch
		byPlace[place{l.Subscription, l.Lane}] = l
	}
	args := []any{owner, subs, nums, epochs, lease.Seconds()}
	ours, err := collect(ctx, s, s.pool, "lanes_renew", args, func(row pgx.CollectableRow) (l Lane, err error) {
		var p place
		err = row.Scan(&p.subscription, &p.lane)
		return byPlace[p], err
	})
	renewed := map[Lane]bool{}
	for _, l := range ours {
		renewed[l] = true
	}
	return renewed, err
}

// ChangeLanes gives the subscription the number of lanes that is wanted. False: someone has a lane, they do not all stand at
// one position, or another number is wanted.
func (s *Store) ChangeLanes(ctx context.Context, subscription string, lanes int) (changed bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := s.row(ctx, tx, "lanes_together", []any{subscription, lanes}, &changed); err != nil || !changed {
			return err
		}
		return s.exec(ctx, tx, "lanes_change", subscription, lanes)
	})
	return changed && err == nil, err
}

// Release gives a lane back.
func (s *Store) Release(ctx context.Context, l Lane) error {
	return s.exec(ctx, s.pool, "lane_release", l.Subscription, l.Lane, l.Owner, l.Epoch)
}

// Load returns what is settled of a lane, and how many lanes its subscription has.
func (s *Store) Load(ctx context.Context, l Lane) (open window.Open, lanes int, err error) {
	var from edge
	var catchUp []byte
	var to struct {
		id, h, floor   *int64
		snapshot, next *string
		bounds, run    []byte
	}
	found, err := s.row(ctx, s.pool, "lane_load", []any{l.Subscription, l.Lane},
		&lanes, &open.P, &open.Ahead, &catchUp,
		&from.id, &from.snapshot, &from.h, &from.next, &from.bounds, &from.floor, &from.run,
		&to.id, &to.snapshot, &to.h, &to.next, &to.bounds, &to.floor, &to.run)
	if err != nil {
		return open, lanes, err
	}
	if !found {
		return open, lanes, personError{fmt.Errorf("lane %d of subscription %q is not in the database any more: a relay that starts makes it anew, and begins at the first retained event", l.Lane, l.Subscription)}
	}
	if open.From, err = from.position(); err != nil {
		return open, lanes, err
	}
	if to.id == nil {
		return open, lanes, nil
	}
	end, err := edge{*to.id, *to.snapshot, *to.h, *to.next, to.bounds, *to.floor, to.run}.position()
	if err != nil {
		return open, lanes, err
	}
	open.Window = &window.Window{From: open.From, To: end, Low: open.P}
	if catchUp != nil {
		open.Window.CatchUp = &window.CatchUp{}
		if err := json.Unmarshal(catchUp, open.Window.CatchUp); err != nil {
			return open, lanes, fmt.Errorf("lane %d of subscription %q: catch_up: %w", l.Lane, l.Subscription, err)
		}
	}
	return open, lanes, nil
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
	p := &window.Position{H: e.h, Floor: e.floor, ID: e.id}
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

// Settled is what is settled of a lane.
type Settled struct {
	Lane
	window.Open
}

// StoreLanes stores what is settled of lanes of one subscription, and returns those that are still ours: the others, and all of
// them in another server run, are left as they are. run is the one the positions were read in. gone are positions that the
// caller has stored before and needs no more.
func (s *Store) StoreLanes(ctx context.Context, run window.Run, lanes []Settled, gone []int64) (stored map[int]bool, err error) {
	return s.storeLanes(ctx, s.pool, run, lanes, gone)
}

// StoreParking is StoreLanes for one lane, and parks events of it in the same transaction (I8).
func (s *Store) StoreParking(ctx context.Context, run window.Run, lane Settled, parked []Parking) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		stored, err := s.storeLanes(ctx, tx, run, []Settled{lane}, nil)
		if err != nil {
			return err
		}
		if !stored[lane.Lane.Lane] {
			return ErrFenced
		}
		return s.park(ctx, tx, lane.Lane, parked)
	})
}

func (s *Store) storeLanes(ctx context.Context, db querier, run window.Run, lanes []Settled, gone []int64) (map[int]bool, error) {
	n := len(lanes)
	nums, epochs, from, to := make([]int32, n), make([]int64, n), make([]int64, n), make([]*int64, n)
	p, ahead, catchUp := make([]int64, n), make([]string, n), make([]*string, n)
	var edges edgeColumns
	for i, l := range lanes {
		nums[i], epochs[i], from[i], p[i], ahead[i] = int32(l.Lane.Lane), l.Epoch, l.From.ID, l.P, arrayLiteral(l.Ahead)
		if err := edges.add(l.From); err != nil {
			return nil, err
		}
		if l.Window == nil {
			continue
		}
		to[i] = &l.Window.To.ID
		if err := edges.add(l.Window.To); err != nil {
			return nil, err
		}
		if l.Window.CatchUp != nil {
			text, err := json.Marshal(l.Window.CatchUp)
			if err != nil {
				return nil, err
			}
			catchUp[i] = new(string)
			*catchUp[i] = string(text)
		}
	}
	if gone == nil {
		gone = []int64{}
	}
	args := []any{
		lanes[0].Subscription, nums, epochs, run.ID, from, to, p, ahead, catchUp,
		edges.ids, edges.snapshots, edges.hs, edges.nexts, edges.bounds, edges.floors, edges.runs, gone, run.Started, lanes[0].Owner,
	}
	ids, err := collect(ctx, s, db, "lanes_store", args, pgx.RowTo[int])
	stored := map[int]bool{}
	for _, lane := range ids {
		stored[lane] = true
	}
	return stored, err
}

// edgeColumns are positions, each once, as columns of windows.
type edgeColumns struct {
	ids, hs, floors                []int64
	snapshots, nexts, bounds, runs []string
}

func (c *edgeColumns) args() []any {
	return []any{c.ids, c.snapshots, c.hs, c.nexts, c.bounds, c.floors, c.runs}
}

func (c *edgeColumns) add(p *window.Position) error {
	if slices.Contains(c.ids, p.ID) {
		return nil
	}
	bounds, err := json.Marshal(p.Bounds)
	if err != nil {
		return err
	}
	run, err := json.Marshal(p.Run)
	if err != nil {
		return err
	}
	c.ids, c.hs, c.floors = append(c.ids, p.ID), append(c.hs, p.H), append(c.floors, p.Floor)
	c.snapshots, c.nexts = append(c.snapshots, p.Snapshot.String()), append(c.nexts, xidText(p.Next))
	c.bounds, c.runs = append(c.bounds, string(bounds)), append(c.runs, string(run))
	return nil
}

func arrayLiteral(seqs []int64) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, n := range seqs {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(n, 10))
	}
	b.WriteByte('}')
	return b.String()
}

func int32s(list []int) []int32 {
	out := make([]int32, len(list))
	for i, n := range list {
		out[i] = int32(n)
	}
	return out
}

// Sweep removes positions that relays have left behind when they died.
func (s *Store) Sweep(ctx context.Context) error {
	return s.exec(ctx, s.pool, "windows_sweep")
}
