package window_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/window"
)

// edited changes what the position statement said.
type edited struct {
	window.Source
	edit func(*window.Reading)
}

func (e edited) Position(ctx context.Context) (window.Reading, error) {
	r, err := e.Source.Position(ctx)
	if err == nil {
		e.edit(&r)
	}
	return r, err
}

// Each part of a position is needed. Each of these histories is shown step by step to the right reader, which loses
// nothing, and to one without that part, which must lose.
func TestBrokenReadersLoseEvents(t *testing.T) {
	var ahead int64 // what (b) adds
	numbers := func(from, to int) (names []string) {
		for i := from; i <= to; i++ {
			names = append(names, fmt.Sprint("e", i))
		}
		return names
	}
	for _, c := range []struct {
		name    string
		history func(s *scene)
		edit    func(*window.Reading)
		mangle  func(*window.Position)
		lost    []string
	}{
		{
			// a has the newest id, and nothing newer has ended: it is not in the snapshot's list, but at its xmax.
			name: "(a) N dropped from R(S)",
			edit: func(r *window.Reading) { r.Next = r.Snapshot.Xmax },
			history: func(s *scene) {
				s.look()
				a := s.begin().insert("a")
				s.look()
				a.commit()
				s.look()
			},
			lost: []string{"a"},
		},
		{
			// What SELECT last_value shows while nextval writes its WAL record.
			name: "(b) h by SELECT last_value, ahead by 32 for an instant",
			edit: func(r *window.Reading) { r.H += ahead },
			history: func(s *scene) {
				ahead = 32
				s.look()
				ahead = 0
				for _, name := range numbers(1, 40) {
					s.write(name)
				}
				s.look()
			},
			lost: numbers(1, 32),
		},
		{
			// A fresh sequence's last_value is the number that comes next.
			name: "(c) the first number of a fresh sequence",
			edit: func(r *window.Reading) { r.H = max(r.H, 1) },
			history: func(s *scene) {
				s.look()
				s.write("first")
				s.write("second")
				s.look()
			},
			lost: []string{"first"},
		},
		{
			// a took its id after the first position, and its number before the second.
			name: "(d) a bound one position too late",
			mangle: func(p *window.Position) {
				if n := len(p.Bounds.Pairs); n > 1 {
					p.Bounds.Pairs[n-2].H = p.Bounds.Pairs[n-1].H
				}
			},
			history: func(s *scene) {
				s.look()
				a := s.begin().insert("a")
				s.write("b")
				s.look()
				a.insert("a2").commit()
				s.look()
			},
			lost: []string{"a"},
		},
	} {
		t.Run(c.name[:3], func(t *testing.T) {
			t.Log(c.name)
			o := newOutbox(t, cluster(t))
			var src window.Source = o.source()
			if c.edit != nil {
				src = edited{src, c.edit}
			}
			s := newScene(t, o, o.source())
			s.beside = newScene(t, o, src)
			s.beside.mangle = c.mangle
			c.history(s)
			s.mustBeComplete()
			s.besideMustHaveLost(c.lost...)
		})
	}
}

// (e) The position statement is right only outside of any transaction that has an id, or that has asked for age() before.
func TestPositionInsideATransactionLosesEvents(t *testing.T) {
	for name, before := range map[string]string{
		"with an id":            "SELECT pg_current_xact_id()",
		"that has called age()": "SELECT age('3'::xid)",
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutbox(t, cluster(t))
			meanwhile := func() {}
			cfg := o.pool.Config()
			// The pool gives out connections that are inside such a transaction, and closes them when they come back.
			cfg.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
				_, err := conn.Exec(ctx, "BEGIN; "+before)
				meanwhile()
				return true, err
			}
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			s := newScene(t, o, o.source())
			s.beside = newScene(t, o, o.open(t, pool).NewReader(nil, nil, 1, 100, 1<<20))
			s.look()
			var a *session
			meanwhile = func() { // after the reader's transaction has begun, and before it reads
				meanwhile = func() {}
				a = s.begin().insert("a")
			}
			s.look()
			a.commit()
			s.look()
			s.mustBeComplete()
			s.besideMustHaveLost("a")
		})
	}
}

// What the model takes from PostgreSQL: when a transaction is visible.
func TestEndedIsPgVisibleInSnapshot(t *testing.T) {
	pool := pgtest.Connect(t, cluster(t).URL())
	for _, text := range []string{"3:3:", "10:20:", "10:20:10,14,19", "10:11:10", "4294967290:4294967302:4294967290,4294967299"} {
		snap, err := window.ParseSnapshot(text)
		if err != nil {
			t.Fatal(err)
		}
		for x := max(snap.Xmin, 6) - 3; x < snap.Xmax+3; x++ {
			var want bool
			err := pool.QueryRow(t.Context(), "SELECT pg_visible_in_snapshot($1::text::xid8, $2::text::pg_snapshot)", fmt.Sprint(x), text).Scan(&want)
			if err != nil {
				t.Fatal(err)
			}
			if snap.Ended(x) != want {
				t.Errorf("snapshot %s: Ended(%d) is %v, PostgreSQL says %v", text, x, snap.Ended(x), want)
			}
		}
	}
}
