package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox/internal/store"
)

// Each holder is said once, of the slot that it has held for longest; what is normal is not said.
func TestSlotsInText(t *testing.T) {
	audit := store.Hold{Kind: store.HeldBySubscription, Subscription: "audit", Lane: new(int), Reason: `subscription "audit" is paused`}
	view := statusView{wheelView: viewWheel([]store.HeldSlot{
		{Slot: 6, Bytes: 3 << 30, Over: 5*3600 + 65, Oldest: 6*3600 + 1, HeldBy: []store.Hold{audit, {Kind: store.HeldByLock, Reason: "session 7 writes"}}},
		{Slot: 7, Bytes: 150 << 20, Over: 3601, Oldest: 3900, HeldBy: []store.Hold{audit}},
		{Slot: 0, Bytes: 24576, Over: 40, Oldest: 100, HeldBy: []store.Hold{{Kind: store.HeldByRetention, Reason: "events are kept for 1m0s"}}},
		{Slot: 1, Bytes: 8192, Over: 30, HeldBy: []store.Hold{}},
		{Slot: 2, Bytes: 8192, Current: true, Oldest: 5, HeldBy: []store.Hold{{Kind: store.HeldByTurn, Reason: "new events go there"}, {Kind: store.HeldBySubscription, Subscription: "all"}}},
	}, nil)}
	var out bytes.Buffer
	if err := printStatus(&out, view, false); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "\nSLOT")
	const want = `  SIZE       TURN           OLDEST EVENT  HELD BY
6     3.0 GiB    over for 5h1m  6h0m ago      audit, lock
7     150.0 MiB  over for 1h0m  1h5m ago      audit
0     24 KiB     over for 40s   1m40s ago     retention
1     8 KiB      over for 30s   -             -
2     8 KiB      now            5s ago        turn, all

slot 6: subscription "audit" is paused

slot 6: session 7 writes

slot 0: events are kept for 1m0s
`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}

	view = statusView{wheelView: viewWheel(nil, errors.New("the server recovers"))}
	out.Reset()
	if err := printStatus(&out, view, false); err != nil || !strings.Contains(out.String(), "slots: not known: the server recovers") {
		t.Errorf("%v, %s", err, &out)
	}
	text, err := json.Marshal(view)
	if err != nil || !strings.Contains(string(text), `"slots":[],"slots_error":"the server recovers"`) {
		t.Errorf("%v, %s", err, text)
	}
}
