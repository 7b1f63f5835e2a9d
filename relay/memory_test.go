package relay_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// A fault throws the relay back into a window, and behind that window lie others whose events have been sent, too: none of
// these is sent again.
func TestNothingOfSeveralWindowsIsRepeated(t *testing.T) {
	t.Parallel()
	_, admin, role := withRole(t)
	sink, book := &capture{}, &ledger{}
	var calls atomic.Int64
	sink.setAnswer(judge(func(relay.Message) error {
		if calls.Add(1) > 1 {
			return errors.New("the sink is gone")
		}
		return nil
	}))
	cfg, _ := logged(t, sink)
	r, _ := start(t, role, cfg)
	tx := begin(t, admin)
	rows := insertMany(t, tx, "first", 4)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	book.add(rows...)
	testwait.Until(t, "a window to be stored half done", func() bool {
		return one[bool](t, admin, `SELECT count(*) > 0 FROM commitrelay.lanes WHERE to_window IS NOT NULL AND p > 0`)
	})
	lock := begin(t, admin)
	if _, err := lock.Exec(t.Context(), "LOCK TABLE commitrelay.windows IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	sink.setAnswer(nil)
	book.wait(t, sink)
	for range 3 {
		book.write(t, admin, "later", 2)
		book.wait(t, sink)
	}
	mustExec(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'`)
	testwait.Until(t, "the relay to notice", func() bool { return r.Health().Subscriptions[0].State == relay.DatabaseOut })
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	settled(t, admin)
	book.write(t, admin, "later", 2)
	book.wait(t, sink)
	book.checkOnce(t, sink, admin)
	if n := r.Health().Subscriptions[0].Duplicates; n == 0 {
		t.Error("nothing was read again: the test is wrong")
	}
}
