package relay_test

import (
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
)

// A running server is cloned under load, in the middle of windows, and both go on as primaries with the same numbers and
// transaction ids, each with relays of its own. Each delivers its own history, completely, in order, and nothing again that
// was settled when the copy was taken.
func TestClone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(nil))
	pool := migrated(t, c)
	sink := &capture{}
	relays := newPair(t, c, sink)
	relays.start(2 * time.Second)
	waitShares(t, pool, "8 8")
	half, _ := keysOfBoth(t, pool)
	before := &ledger{}
	before.writeAll(t, pool, manyKeys(), 2)
	before.wait(t, sink)
	settled(t, pool)
	sink.refuseAfter(half, 2)
	midWindow(t, pool, before.write(t, pool, half, 5)[1])
	end := loaded(t, pool, sink)
	n := sink.size() + 200
	sink.waitFor(t, n)

	copied, err := c.Clone(t.Context(), pgtemp.Options{})
	clone := pgtest.Keep(t, copied, err)
	clonePool := pgtest.Connect(t, clone.URL())
	shared, pending := retained(t, clonePool), unsettled(t, clonePool)
	if len(pending) < 3 {
		t.Fatalf("%d events are not settled in the clone, want the 3 of the window that was half done at least", len(pending))
	}
	cloneSink := &capture{}
	cloneRelays := newPair(t, clone, cloneSink)
	cloneRelays.start(2 * time.Second)

	// The two go different ways.
	ours := shared.write(t, clonePool, half, 3)
	pending = append(pending, ours...)
	for _, key := range manyKeys() {
		pending = append(pending, shared.write(t, clonePool, key, 2)...)
	}
	sink.waitFor(t, n+200)
	end()
	sink.setAnswer(nil)
	history := retained(t, pool)
	history.wait(t, sink)
	history.checkOnce(t, sink, pool)
	same := false
	for _, r := range history.rows() {
		same = same || r.seq == ours[0].seq || r.xid == ours[0].xid
	}
	if !same {
		t.Error("the two servers have not handed out the same numbers and ids: the test is wrong")
	}

	toCome := &ledger{committed: pending}
	toCome.wait(t, cloneSink)
	settled(t, clonePool)
	toCome.writeAll(t, clonePool, manyKeys(), 1)
	toCome.wait(t, cloneSink)
	toCome.checkOnce(t, cloneSink, clonePool)
	for _, log := range append(relays.logs, cloneRelays.logs...) {
		if void := log.find("are void"); len(void) > 0 {
			t.Errorf("what is stored in a clone is as good as in the original: %q", void)
		}
	}
}
