package window

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// modelServer is PostgreSQL as far as reading the outbox goes: transactions take ids, draw numbers, and end in any order.
// It implements Source. While a reader's statement is at work, transactions go on, as they do.
type modelServer struct {
	pick func(n int) int // what happens next: 0 to n-1

	next  uint64 // the next transaction id
	ended uint64 // the newest id that has ended
	seq   int64
	run   Run
	open  []*modelTx
	locks map[string]*modelTx // keys whose writers lock them first
	rows  []*modelRow         // committed
	clock int
	names int
	lanes int  // of the subscription
	quiet bool // no transaction moves while a statement is at work
}

type modelTx struct {
	began, committed int // by the clock
	xid              uint64
	rows             []*modelRow
	writer           bool // holds the lock that an INSERT takes
	savepoint        *savepoint
}

type savepoint struct {
	rows   int
	writer bool
}

// modelRow is an event. name is what tells it from all others, whatever becomes of the server's counters.
type modelRow struct {
	name int
	seq  int64
	xid  uint64
	key  string
	lane int
	tx   *modelTx

	locked bool // of a key that was locked first
}

func newModel(pick func(n int) int) *modelServer {
	return &modelServer{
		pick: pick, lanes: 1, next: 700, ended: 699, run: Run{System: "1", ID: "a", Sequence: 1, Filenode: 1}, locks: map[string]*modelTx{},
	}
}

// begin is the position of row 0.
func (s *modelServer) begin() Open {
	return Open{From: &Position{Snapshot: emptySnapshot, Next: 3, Run: s.run}}
}

// lockedKeys are written by transactions that lock them first; looseKeys are not.
var (
	lockedKeys = []string{"a", "b"}
	looseKeys  = []string{"x", "y"}
)

// key is one of the given kind. There are more of them where there are more lanes.
func (s *modelServer) key(kind []string) string {
	key := kind[s.pick(len(kind))]
	if s.lanes > 1 {
		key += fmt.Sprint(s.pick(s.lanes))
	}
	return key
}

// lane spreads the keys, one or more to a lane.
func (s *modelServer) lane(key string) int {
	sum := 0
	for _, c := range key {
		sum = 31*sum + int(c)
	}
	return sum % s.lanes
}

// step lets one thing happen.
func (s *modelServer) step() {
	s.clock++
	if len(s.open) == 0 || len(s.open) < 6 && s.pick(4) == 0 {
		s.open = append(s.open, &modelTx{began: s.clock})
		return
	}
	tx := s.open[s.pick(len(s.open))]
	switch s.pick(12) {
	case 0, 1:
		s.id(tx)
	case 2, 3, 4:
		s.insert(tx, s.key(looseKeys))
	case 5, 6:
		key := s.key(lockedKeys)
		if holder := s.locks[key]; holder == nil || holder == tx {
			s.locks[key] = tx
			s.insert(tx, key)
		}
	case 7:
		switch sp := tx.savepoint; sp {
		case nil:
			tx.savepoint = &savepoint{len(tx.rows), tx.writer}
		default: // rolled back to, with the locks taken since
			tx.rows, tx.writer, tx.savepoint = tx.rows[:sp.rows:sp.rows], sp.writer, nil
		}
	case 8, 9:
		s.end(tx, true)
	case 10:
		s.end(tx, false)
	case 11:
		if s.pick(6) == 0 { // numbers that nobody keeps, or setval
			s.seq += int64(1 + s.pick(3*far))
		}
	}
}

func (s *modelServer) steps(n int) {
	for range n {
		s.step()
	}
}

// meanwhile is what goes on beside a statement.
func (s *modelServer) meanwhile() {
	if !s.quiet {
		s.steps(s.pick(4))
	}
}

func (s *modelServer) id(tx *modelTx) {
	if tx.xid == 0 {
		tx.xid = s.next
		s.next++
	}
}

// insert has an id before it draws a number, and the writer's lock before both.
func (s *modelServer) insert(tx *modelTx, key string) {
	tx.writer = true
	s.id(tx)
	s.seq++
	s.names++
	tx.rows = append(tx.rows, &modelRow{name: s.names, seq: s.seq, xid: tx.xid, key: key, lane: s.lane(key), tx: tx, locked: s.locks[key] == tx})
}

func (s *modelServer) end(tx *modelTx, commit bool) {
	s.open = slices.DeleteFunc(s.open, func(o *modelTx) bool { return o == tx })
	for key, holder := range s.locks {
		if holder == tx {
			delete(s.locks, key)
		}
	}
	if tx.xid == 0 {
		return
	}
	s.ended = max(s.ended, tx.xid)
	if commit {
		s.clock++
		tx.committed = s.clock
		s.rows = append(s.rows, tx.rows...)
		slices.SortStableFunc(s.rows, func(a, b *modelRow) int { return cmp.Compare(a.seq, b.seq) })
	}
}

// endAll ends every transaction, most of them well.
func (s *modelServer) endAll() {
	for len(s.open) > 0 {
		s.end(s.open[s.pick(len(s.open))], s.pick(4) > 0)
	}
}

func (s *modelServer) snapshot() Snapshot {
	snap := Snapshot{Xmax: s.ended + 1}
	for _, tx := range s.open {
		if tx.xid != 0 && tx.xid < snap.Xmax {
			snap.Xip = append(snap.Xip, tx.xid)
		}
	}
	slices.Sort(snap.Xip)
	snap.Xmin = snap.Xmax
	if len(snap.Xip) > 0 {
		snap.Xmin = snap.Xip[0]
	}
	return snap
}

// reading takes its parts in the order in which the position statement does.
func (s *modelServer) reading() Reading {
	r := Reading{Snapshot: s.snapshot(), Run: s.run}
	s.meanwhile()
	r.H = s.seq
	s.meanwhile()
	r.Next = s.next
	return r
}

func (s *modelServer) Position(context.Context) (Reading, error) {
	s.meanwhile()
	defer s.meanwhile()
	return s.reading(), nil
}

func (s *modelServer) Page(_ context.Context, w *Window, lanes []int, p, hi int64) (events []Event, more bool, err error) {
	s.meanwhile()
	defer s.meanwhile()
	limit := 1 + s.pick(5)
	for _, row := range s.rows {
		if row.seq <= p || row.seq > hi || !inWindow(w, row) || !slices.Contains(lanes, row.lane) {
			continue
		}
		e := Event{Seq: row.seq, Lane: row.lane}
		e.Type = fmt.Sprint(row.name)
		events = append(events, e)
		if len(events) == limit {
			return events, true, nil
		}
	}
	return events, false, nil
}

// inWindow is the condition of page.sql, or of catch_up_page.sql.
func inWindow(w *Window, row *modelRow) bool {
	c := w.CatchUp
	if c == nil {
		return !w.From.Snapshot.Ended(row.xid) && w.To.Snapshot.Ended(row.xid)
	}
	settled := func(snapshot string, upTo int64) bool {
		if snapshot == "" {
			return false
		}
		s, err := ParseSnapshot(snapshot)
		return err == nil && row.seq <= upTo && s.Ended(row.xid)
	}
	return !settled(c.Snapshot, c.H) && !settled(c.SettledSnapshot, c.SettledP)
}

func (s *modelServer) NextSeq(_ context.Context, p int64) (int64, bool, error) {
	s.meanwhile()
	for _, row := range s.rows {
		if row.seq > p {
			return row.seq, true, nil
		}
	}
	return 0, false, nil
}

func (s *modelServer) Writers(context.Context) (map[uint32]bool, error) {
	s.meanwhile()
	defer s.meanwhile()
	writers := map[uint32]bool{}
	for _, tx := range s.open {
		if tx.xid != 0 && tx.writer {
			writers[uint32(tx.xid)] = true
		}
	}
	return writers, nil
}

// named finds a committed row.
func (s *modelServer) named(name string) *modelRow {
	for _, row := range s.rows {
		if fmt.Sprint(row.name) == name {
			return row
		}
	}
	return nil
}

// check says what is wrong with what arrived, or "": every committed row once, nothing else, rows of one transaction and
// lane in the order in which they were written, and rows of one key in that of their transactions unless those overlap.
func (s *modelServer) check(arrived []*modelRow) string {
	at := map[int]int{}
	for i, row := range arrived {
		if row.tx.committed == 0 {
			return fmt.Sprintf("invented: row %d of a transaction that did not commit", row.name)
		}
		if _, twice := at[row.name]; twice {
			return fmt.Sprintf("row %d (seq %d) arrived twice", row.name, row.seq)
		}
		at[row.name] = i
	}
	for _, row := range s.rows {
		if _, ok := at[row.name]; !ok {
			return fmt.Sprintf("lost: row %d (seq %d, transaction %d)", row.name, row.seq, row.xid)
		}
	}
	for i, b := range arrived {
		for _, a := range arrived[:i] {
			switch {
			case a.tx == b.tx && a.lane == b.lane && a.name > b.name:
				return fmt.Sprintf("rows %d and %d of transaction %d arrived the wrong way round", b.name, a.name, a.xid)
			case a.key == b.key && b.tx.committed < a.tx.began:
				return fmt.Sprintf("key %s: row %d arrived before %d, whose transaction had ended before its own began", a.key, a.name, b.name)
			case a.key == b.key && a.locked && b.tx.committed < a.tx.committed:
				return fmt.Sprintf("key %s: row %d arrived before %d, whose transaction held the key's lock before its own", a.key, a.name, b.name)
			}
		}
	}
	return ""
}
