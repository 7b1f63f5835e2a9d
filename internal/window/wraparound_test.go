package window_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/window"
)

// boundary is where the low half of transaction ids begins anew.
const boundary = 1 << 32

// nextTo makes a cluster of its own whose next transaction id is next, below the boundary.
func nextTo(t *testing.T, next uint64) *pgtemp.Cluster {
	t.Helper()
	c, err := pgtemp.Start(t.Context(), pgtemp.Options{Parameters: parameters})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	// What there is has ids that would lie in the future.
	for _, database := range []string{"template1", "postgres"} {
		conn, err := pgx.Connect(t.Context(), c.URLFor(database))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), "VACUUM FREEZE"); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	// The server wants to find the page of pg_xact that next lies on: a segment has 32 pages of 8 kB.
	const segment = 32 * 8192
	name := filepath.Join(c.DataDir(), "pg_xact", fmt.Sprintf("%04X", next/(4*segment)))
	page := c.Command(t.Context(), "/bin/sh", "-c", `head -c "$1" /dev/zero > "$2"`, "sh", strconv.Itoa(segment), name)
	reset := c.Command(t.Context(), "pg_resetwal", "-x", strconv.FormatUint(next, 10), "-u", strconv.FormatUint(next-1_000_000, 10), "-D", c.DataDir())
	for _, cmd := range []*exec.Cmd{page, reset} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := c.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// (f) The low half of N is not to be completed by the high half of a snapshot from before the boundary.
func TestTransactionIdsCrossTheBoundary(t *testing.T) {
	c := nextTo(t, boundary-1000)
	o := newOutbox(t, c)
	s := newScene(t, o, o.source())
	s.beside = newScene(t, o, o.source())
	beginning := o.beginning(t)

	for x := uint64(0); x < boundary-3; {
		filler := s.begin()
		x = filler.xid()
		filler.commit()
	}
	first, second, third := s.begin().insert("a"), s.begin().insert("b"), s.begin().insert("c")
	got, want := [3]uint64{first.xid(), second.xid(), third.xid()}, [3]uint64{boundary - 2, boundary - 1, boundary + 3}
	if got != want {
		t.Fatalf("the transactions have ids %v, want %v", got, want)
	}
	// It looks at the same moments. (Had it read before, it would see the ids go back.)
	s.beside.reader = newReader(t, edited{o.source(), func(r *window.Reading) {
		r.Next = r.Snapshot.Xmax>>32<<32 | r.Next&(boundary-1)
	}}, beginning)
	s.look()
	third.commit()
	s.look()
	first.commit()
	second.commit()
	s.look()
	s.write("d")
	s.look()

	s.mustBeComplete()
	s.besideMustHaveLost("c", "a", "b")
}

func TestStressAcrossTheBoundary(t *testing.T) {
	o := newOutbox(t, nextTo(t, boundary-200))
	stress(t, o, 4, func(int) bool {
		var next uint64
		err := o.pool.QueryRow(t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").Scan(&next)
		return err != nil || next > boundary+200
	})
}
