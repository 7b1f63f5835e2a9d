package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/relay"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// says is a live relay that says this of the subscription "all"; an empty state: nothing yet.
func says(n int, state relay.State, fault string) store.RelayStatus {
	r := store.RelayStatus{
		ID: fmt.Sprintf("%08d-0000-4000-8000-000000000000", n), Host: fmt.Sprint("h", n), PID: n, Version: "v1", Subscriptions: []string{"all"}, Alive: true, Health: []byte("{}"),
		Configurations: map[string]store.Subscription{"all": {Sink: "bus", Topic: "{event_type}", OnDead: "continue"}},
	}
	if state != "" {
		health, err := json.Marshal(relay.Health{Subscriptions: []relay.SubscriptionHealth{{
			Name: "all", State: state, Error: fault, Since: began.Add(time.Duration(n) * time.Minute), LastDelivery: began.Add(-time.Duration(n) * time.Minute),
		}}})
		if err != nil {
			panic(err)
		}
		r.Health = health
	}
	return r
}

// laned is the subscription "all", whose lanes belong to these relays; 0: to none.
func laned(owners ...int) store.SubscriptionStatus {
	s := store.SubscriptionStatus{Name: "all", Sink: "bus", Topic: "{event_type}", OnDead: "continue"}
	for i, o := range owners {
		l := store.LaneStatus{Lane: i}
		if o > 0 {
			l.Owner, l.Lease = says(o, "", "").ID, 5
		}
		s.Lanes = append(s.Lanes, l)
	}
	return s
}

// The state of a subscription is the worst of the relays that have its lanes.
func TestStatusCombinesStates(t *testing.T) {
	silent := says(9, relay.Delivering, "")
	silent.Alive = false
	elsewhere := says(8, relay.Stopped, "not ours")
	elsewhere.Subscriptions = []string{"other"}
	paused := func(s store.SubscriptionStatus) store.SubscriptionStatus { s.Paused = true; return s }
	for _, c := range []struct {
		what   string
		sub    store.SubscriptionStatus
		relays []store.RelayStatus
		state  relay.State
		fault  string
		ready  bool
	}{
		{"nobody", laned(0, 0), nil, unowned, "", false},
		{"one that is silent", laned(9, 9), []store.RelayStatus{silent}, unowned, "", false},
		{"one that has another", laned(0, 0), []store.RelayStatus{elsewhere}, unowned, "", false},
		{"one", laned(1, 1), []store.RelayStatus{says(1, relay.Delivering, "")}, relay.Delivering, "", true},
		{"one that has said nothing", laned(0, 0), []store.RelayStatus{says(1, "", "")}, relay.Starting, "", false},
		{"two", laned(1, 2), []store.RelayStatus{says(1, relay.Delivering, ""), says(2, relay.Delivering, "")}, relay.Delivering, "", true},
		{"the second is worse", laned(1, 2), []store.RelayStatus{says(1, relay.Delivering, ""), says(2, relay.SinkDown, "refused")}, relay.SinkDown, "refused", false},
		{"the first is worse", laned(1, 2), []store.RelayStatus{says(1, relay.Stopped, "no right"), says(2, relay.SinkDown, "refused")}, relay.Stopped, "no right", false},
		{"both are down, the second for longer", laned(1, 2), []store.RelayStatus{says(2, relay.SinkDown, "later"), says(1, relay.SinkDown, "earlier")}, relay.SinkDown, "earlier", false},
		{"one stands by", laned(1, 1), []store.RelayStatus{says(1, relay.Delivering, ""), says(2, relay.Standby, "")}, relay.Delivering, "", true},
		{"one without lanes is ill", laned(1, 1), []store.RelayStatus{says(1, relay.Delivering, ""), says(2, relay.Stopped, "no right")}, relay.Delivering, "", true},
		{"one is ill, and lanes are free", laned(1, 0), []store.RelayStatus{says(1, relay.Delivering, ""), says(2, relay.Stopped, "no right")}, relay.Stopped, "no right", false},
		{"another version's state", laned(1, 2), []store.RelayStatus{says(1, relay.Stopped, "no right"), says(2, "burning", "hot")}, "burning", "hot", false},
		{"paused", paused(laned(0, 0)), []store.RelayStatus{says(1, relay.Delivering, "")}, relay.Paused, "", true},
		{"paused, and nobody there", paused(laned(0, 0)), nil, relay.Paused, "", true},
		{"being paused", paused(laned(1, 0)), []store.RelayStatus{says(1, relay.SinkDown, "refused")}, relay.SinkDown, "refused", false},
	} {
		v := viewStatus("t", "s", store.Status{Relays: c.relays, Subscriptions: []store.SubscriptionStatus{c.sub}})
		if s := v.Subscriptions[0]; s.State != c.state || s.Error != c.fault || v.Ready != c.ready {
			t.Errorf("%s: %s, %q, ready %v; want %s, %q, ready %v", c.what, s.State, s.Error, v.Ready, c.state, c.fault, c.ready)
		}
	}
}

// Three subscriptions of 16 lanes on three relays are a page.
func TestStatusInText(t *testing.T) {
	names := []string{"all", "audit", "mails"}
	var relays []store.RelayStatus
	for n := 1; n <= 3; n++ {
		r := says(n, relay.Delivering, "")
		r.Subscriptions = names[:2]
		r.HeartbeatAge = 0.5
		relays = append(relays, r)
	}
	relays[2].Configurations["all"] = store.Subscription{Sink: "bus", Topic: "all", OnDead: "continue", EventTypes: []string{"User*", "Order*"}}
	relays[1].Health = says(2, relay.SinkDown, "connection refused").Health
	silent := says(4, relay.Delivering, "")
	silent.Alive, silent.HeartbeatAge = false, 75
	relays = append(relays, silent)
	var subs []store.SubscriptionStatus
	for i, name := range names {
		s := laned(1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 1)
		s.Name = name
		if i == 2 {
			s = laned(0, 0, 0, 0)
			s.Name, s.Wanted = name, 8
		}
		s.Lanes[1].Pending, s.Lanes[1].Lag, s.Lanes[1].Parked, s.Lanes[1].Dead = 7, 90, 2, 1
		s.Lanes[2].Pending, s.Lanes[2].More, s.Lanes[2].Lag = 5, true, 0.25
		subs = append(subs, s)
	}
	var out bytes.Buffer
	if err := printStatus(&out, viewStatus("public.outbox_events", "commitrelay", store.Status{Relays: relays, Subscriptions: subs}), false); err != nil {
		t.Fatal(err)
	}
	const want = `events table public.outbox_events, all else in schema commitrelay

RELAY     HOST  PID  VERSION  HEARTBEAT  LANES  STATE
00000001  h1    1    v1       500ms ago  14     starting
00000002  h2    2    v1       500ms ago  10     sink_down
00000003  h3    3    v1       500ms ago  8      starting
00000004  h4    4    v1       1m15s ago  0      silent

SUBSCRIPTION  SINK  STATE      PENDING  LAG    PARKED  DEAD  LANES   RELAYS
all           bus   sink_down  12+      1m30s  2       1     16      3
audit         bus   starting   12+      1m30s  2       1     16      3
mails         bus   unowned    12+      1m30s  2       1     0 of 4  0

LANES OF  OWNER     LANES    PENDING  LAG    PARKED  DEAD  STATE
all       00000001  0-5, 15  12+      1m30s  2       1     delivering
all       00000002  6-10     0        0s     0       0     sink_down
all       00000003  11-14    0        0s     0       0     delivering
audit     00000001  0-5, 15  12+      1m30s  2       1     starting
audit     00000002  6-10     0        0s     0       0     starting
audit     00000003  11-14    0        0s     0       0     starting
mails     none      0-3      12+      1m30s  2       1     -

SLOT  SIZE  TURN  OLDEST EVENT  HELD BY
none: all space is given back

all: sink_down since 2026-03-01T12:02:00Z on h2 pid 2: connection refused

all: its relays are configured differently, and which events go where depends on who has their lane: topic is "{event_type}" on h1 pid 1, h2 pid 2; "all" on h3 pid 3

all: its relays are configured differently, and which events go where depends on who has their lane: filter.event_type is "" on h1 pid 1, h2 pid 2; "User*, Order*" on h3 pid 3

mails: it is to have 8 lanes; ` + "`commitrelay subscriptions lanes mails 8`" + ` says what that waits for

mails: no live relay is configured for it, its events wait and hold their space: start one, or ` + "`commitrelay subscriptions drop mails`" + `
`
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(out.String(), "\n")); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}

	out.Reset()
	if err := printStatus(&out, viewStatus("t", "s", store.Status{Relays: relays, Subscriptions: subs}), true); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\nall/") + strings.Count(out.String(), "\nmails/"); n != 20 {
		t.Errorf("%d lanes are shown, want 16 and 4:\n%s", n, out.String())
	}
}
