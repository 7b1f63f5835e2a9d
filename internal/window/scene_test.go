package window_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// scene is a reader and the sessions that it must not lose an event of, all moved step by step by one goroutine.
type scene struct {
	t         testing.TB
	outbox    *outbox
	reader    *window.Reader
	beside    *scene                 // another reader of the same outbox, which looks when this one does
	mangle    func(*window.Position) // what a broken reader does to its positions
	committed []string
	arrived   []string
}

func newScene(t testing.TB, o *outbox, src window.Source) *scene {
	t.Helper()
	s := &scene{t: t, outbox: o}
	s.reader = newReader(t, src, o.beginning(t))
	return s
}

// newReader reads for the only lane of a subscription.
func newReader(t testing.TB, src window.Source, from window.Open) *window.Reader {
	t.Helper()
	r, err := src.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reader := window.NewReader(src, r)
	reader.Add(0, from)
	return reader
}

// source is the right one.
func (o *outbox) source() *store.Reader { return o.store.NewReader(nil, nil, 1, 100, 1<<20) }

// session is a transaction on a connection of its own.
type session struct {
	scene *scene
	conn  *pgxpool.Conn
	names []string
}

func (s *scene) begin() *session {
	s.t.Helper()
	conn, err := s.outbox.pool.Acquire(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	x := &session{scene: s, conn: conn}
	s.t.Cleanup(x.release)
	return x.exec("BEGIN")
}

func (x *session) exec(sql string, args ...any) *session {
	x.scene.t.Helper()
	if _, err := x.conn.Exec(x.scene.t.Context(), sql, args...); err != nil {
		x.scene.t.Fatalf("%s: %v", sql, err)
	}
	return x
}

// insert writes an event. Its name is its key, too.
func (x *session) insert(name string) *session {
	x.scene.t.Helper()
	x.names = append(x.names, name)
	return x.exec(x.scene.outbox.insert(), name, name)
}

func (x *session) xid() (id uint64) {
	x.scene.t.Helper()
	if err := x.conn.QueryRow(x.scene.t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&id); err != nil {
		x.scene.t.Fatal(err)
	}
	return id
}

// commit ends the session.
func (x *session) commit() {
	x.scene.t.Helper()
	x.exec("COMMIT")
	x.scene.committed = append(x.scene.committed, x.names...)
	x.release()
}

// write commits one event.
func (s *scene) write(name string) {
	s.t.Helper()
	s.begin().insert(name).commit()
}

func (x *session) release() {
	if x.conn != nil {
		x.conn.Release() // closes it if its transaction is open
		x.conn = nil
	}
}

// look reads until a reading taken from now on has nothing more.
func (s *scene) look() {
	s.t.Helper()
	for idle := 0; idle < 3; {
		page, err := s.reader.Next(s.t.Context(), nil)
		if err != nil {
			s.t.Fatalf("Next: %v", err)
		}
		if page.At != nil {
			idle++
			s.spoil(page.At)
			continue
		}
		idle = 0
		for _, e := range page.Events {
			s.arrived = append(s.arrived, e.AggregateID)
		}
		if page.Last {
			s.spoil(page.Window.To)
		}
	}
	if s.beside != nil {
		s.beside.look()
	}
}

func (s *scene) spoil(p *window.Position) {
	if s.mangle != nil {
		s.mangle(p)
	}
}

// lost is what was committed and has not arrived; wrong is what has arrived twice or was never committed.
func (s *scene) lost() (lost []string, wrong error) {
	for _, name := range s.committed {
		if !slices.Contains(s.arrived, name) {
			lost = append(lost, name)
		}
	}
	for i, name := range s.arrived {
		if !slices.Contains(s.committed, name) || slices.Contains(s.arrived[:i], name) {
			return lost, fmt.Errorf("%s has arrived twice, or was never committed", name)
		}
	}
	return lost, nil
}

// mustBeComplete ends a scene with the right reader.
func (s *scene) mustBeComplete() {
	s.t.Helper()
	if lost, wrong := s.lost(); len(lost) > 0 || wrong != nil {
		s.t.Errorf("the right reader has lost %v; %v", lost, wrong)
	}
}

// besideMustHaveLost ends a scene with a broken reader beside the right one.
func (s *scene) besideMustHaveLost(names ...string) {
	s.t.Helper()
	s.beside.committed = s.committed
	if lost, wrong := s.beside.lost(); !slices.Equal(lost, names) || wrong != nil {
		s.t.Errorf("the broken reader was not caught: it has lost %v, and should have lost %v; %v", lost, names, wrong)
	}
}
