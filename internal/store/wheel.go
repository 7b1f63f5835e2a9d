package store

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/psqlvars"
	"github.com/commitrelay/outbox/internal/window"
)

//go:embed sql/leaf/*.sql
var leafFiles embed.FS

// wheelWait bounds how long others queue behind our wait for a slot's lock.
const wheelWait = 15 * time.Millisecond

// Wheel is the slots that take up room, and what decides which of them may be emptied, at one moment.
type Wheel struct {
	Slots []Slot // those whose turn has been over for longest come first

	lanes   []standing
	reading window.Reading // taken after the lanes were read
}

// Slot is a slot of the wheel in which there is something.
type Slot struct {
	Slot    int
	Leaf    ident.Table
	Bytes   int64         // indexes included
	Current bool          // new events go there
	Over    time.Duration // since its latest turn ended, by the database's clock; negative: it lasts

	Lowest, Highest int64         // numbers of its events; 0: none is visible
	Oldest          time.Duration // age of the event with the lowest number
	Lapped          bool          // that one is of an earlier turn: the wheel has gone round

	oid       int64
	mayEmpty  bool // this role has the right
	mayHidden bool // row level security may hide events from it
}

// standing is where lanes of a subscription stand.
type standing struct {
	subscription string
	paused       bool
	live         bool // a live relay is configured for it
	lane         int  // the first of them
	lanes        int
	known        bool // the position was found
	open         window.Open
}

// WheelShape is how many slots the wheel has, and how long a turn lasts.
func (s *Store) WheelShape(ctx context.Context) (slots int, width time.Duration, err error) {
	var seconds int64
	found, err := s.row(ctx, s.pool, "wheel_shape", nil, &slots, &seconds)
	if err == nil && !found {
		err = personError{fmt.Errorf("the table installation is empty: `commitrelay migrate status` says what is there")}
	}
	return slots, time.Duration(seconds) * time.Second, err
}

// Wheel reads what there is to empty, and how far it is settled.
func (s *Store) Wheel(ctx context.Context) (w *Wheel, err error) {
	w = &Wheel{}
	if w.Slots, err = s.slots(ctx); err != nil || len(w.Slots) == 0 {
		return w, err
	}
	if _, w.lanes, err = s.standings(ctx, s.pool, -1); err != nil {
		return w, err
	}
	w.reading, err = s.Position(ctx)
	return w, err
}

func (s *Store) slots(ctx context.Context) ([]Slot, error) {
	return collect(ctx, s, s.pool, "wheel_slots", nil, func(row pgx.CollectableRow) (o Slot, err error) {
		var over, oldest float64
		err = row.Scan(&o.Slot, &o.oid, &o.Leaf.Schema, &o.Leaf.Name, &o.Bytes, &o.mayEmpty, &o.mayHidden,
			&o.Current, &over, &o.Lowest, &o.Highest, &oldest, &o.Lapped)
		o.Over, o.Oldest = inSeconds(over), inSeconds(max(oldest, 0))
		return o, err
	})
}

func inSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// standings reads where all lanes stand, and the highest number in a slot.
func (s *Store) standings(ctx context.Context, db querier, slot int) (highest int64, lanes []standing, err error) {
	lanes, err = collect(ctx, s, db, "wheel_lanes", []any{slot}, func(row pgx.CollectableRow) (l standing, err error) {
		var top *int64
		var catchUp *string
		var from, to nullEdge
		err = row.Scan(&top, &l.subscription, &l.paused, &l.live, &l.lane, &l.lanes, &l.known, &catchUp,
			&from.id, &from.snapshot, &from.h, &from.next, &from.bounds, &from.floor, &from.run,
			&to.id, &to.snapshot, &to.h, &to.next, &to.bounds, &to.floor, &to.run)
		if top != nil {
			highest = *top
		}
		if err != nil || !l.known {
			return l, err
		}
		if l.open.From, err = from.position(); err != nil || to.id == nil {
			return l, err
		}
		w := &window.Window{From: l.open.From}
		if catchUp != nil {
			w.CatchUp = &window.CatchUp{}
		}
		w.To, err = to.position()
		l.open.Window = w
		return l, err
	})
	return highest, lanes, err
}

// nullEdge is a row of windows, or none.
type nullEdge struct {
	id, h, floor   *int64
	snapshot, next *string
	bounds, run    []byte
}

func (e nullEdge) position() (*window.Position, error) {
	return edge{*e.id, *e.snapshot, *e.h, *e.next, e.bounds, *e.floor, e.run}.position()
}

// lowest is the number up to which all of the lanes have settled for good, as reading r finds them.
func (l *standing) lowest(r window.Reading) (low int64, why string) {
	if !l.known {
		return 0, "it has no position"
	}
	return l.open.Lowest(r)
}

// settled says whether no lane can ever need an event with a number up to seq.
func settled(lanes []standing, r window.Reading, seq int64) bool {
	for i := range lanes {
		if low, _ := lanes[i].lowest(r); low < seq {
			return false
		}
	}
	return len(lanes) > 0 // where nobody has subscribed yet all is kept for the first one
}

// Settled says whether a slot holds nothing that anybody may need.
func (w *Wheel) Settled(o Slot) bool { return settled(w.lanes, w.reading, o.Highest) }

// Due are the slots that may be emptied: their turn has been over for long enough, all in them is settled, and this role may.
func (w *Wheel) Due(retention time.Duration) (due []Slot) {
	for _, o := range w.Slots {
		if !o.Current && o.Over >= retention && o.mayEmpty && !o.mayHidden && w.Settled(o) {
			due = append(due, o)
		}
	}
	return due
}

// Given says what came of trying to empty a slot.
type Given int

// What came of it.
const (
	Emptied   Given = iota + 1
	InUse           // somebody has a lock on the leaf
	Unsettled       // something has come since that is not settled
	Elsewhere       // another relay is at it
)

// String is for logs.
func (g Given) String() string {
	switch g {
	case Emptied:
		return "emptied"
	case InUse:
		return "in use"
	case Unsettled:
		return "unsettled"
	case Elsewhere:
		return "another relay is at it"
	}
	return "nothing"
}

// Empty empties a slot if all in it is settled, which is looked at once more while nobody can write to it. It does not wait
// for the lock unless patient, and then for a moment: others queue behind it.
//
// It takes two connections, and both before it locks anything. See QuietPosition.
func (s *Store) Empty(ctx context.Context, o Slot, patient bool) (given Given, err error) {
	s.quiet.Lock()
	defer s.quiet.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	lock, err := s.leafSQL("lock", o.Leaf)
	if err != nil {
		return 0, err
	}
	if !patient {
		lock += " NOWAIT"
	}
	empty, err := s.leafSQL("empty", o.Leaf)
	if err != nil {
		return 0, err
	}
	second, err := s.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer second.Release()
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		var ignored string
		var mine bool
		wait := fmt.Sprintf("%dms", wheelWait.Milliseconds())
		if _, err := s.row(ctx, tx, "wheel_begin", []any{wait}, &ignored, &ignored, &ignored, &ignored, &mine); err != nil {
			return err
		}
		if !mine {
			given = Elsewhere
			return nil
		}
		if _, err := tx.Exec(ctx, lock, pgx.QueryExecModeExec); err != nil {
			return fmt.Errorf("lock slot %d: %w", o.Slot, err)
		}
		// From here on writers to this slot wait. The lanes are read first: a position that is stored after the reading would
		// seem to be of another life of the server.
		highest, lanes, err := s.standings(ctx, tx, o.Slot)
		if err != nil {
			return err
		}
		reading, err := s.position(ctx, second) // by the second connection: this one is in a transaction
		if err != nil {
			return err
		}
		if !settled(lanes, reading, highest) {
			given = Unsettled
			return nil
		}
		if _, err := tx.Exec(ctx, empty, pgx.QueryExecModeExec); err != nil {
			return fmt.Errorf("empty slot %d: %w", o.Slot, err)
		}
		given = Emptied
		return nil
	})
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "55P03" || pgErr.Code == "40P01") { // lock_not_available, deadlock_detected
		return InUse, nil
	}
	if err != nil {
		return 0, err
	}
	return given, nil
}

// leafSQL is a statement on a leaf.
func (s *Store) leafSQL(name string, leaf ident.Table) (string, error) {
	text, err := leafFiles.ReadFile("sql/leaf/" + name + ".sql")
	if err != nil {
		return "", err
	}
	sql, err := psqlvars.Render(string(text), map[string]string{"leaf_schema": leaf.Schema, "leaf": leaf.Name})
	return named("wheel_"+name, sql), err
}
