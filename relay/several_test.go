package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// Subscriptions have filters, sinks and positions of their own: one whose sink is dead stops nobody else.
func TestSubscriptionsAreApart(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	alive, dead, mails := &capture{}, &capture{}, &capture{}
	dead.setAnswer(func([]relay.Message) error { return errors.New("connection refused") })
	cfg, _ := fleet(t, alive)
	cfg.Subscriptions = []relay.Subscription{
		{Name: "alive", Sink: alive},
		{Name: "dead", Sink: dead, Lanes: 4},
		{Name: "mails", Sink: mails, Lanes: 1, Filter: relay.Filter{EventTypes: []string{"Mail*"}}},
	}
	r, stop := start(t, pool, cfg)
	const n = 3000
	mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'user', (g % 100)::text, CASE WHEN g % 3 = 0 THEN 'MailSent' ELSE 'Other' END, g::text::json FROM generate_series(1, $1) AS g`, n)
	alive.waitFor(t, n)
	mails.waitFor(t, n/3)
	states := func() (s []relay.State) {
		for _, h := range r.Health().Subscriptions {
			s = append(s, h.State)
		}
		return s
	}
	testwait.Until(t, "health to tell them apart", func() bool {
		return slices.Equal(states(), []relay.State{relay.Delivering, relay.SinkDown, relay.Delivering}) && !r.Health().Ready
	})
	stop()
	dead.setAnswer(nil)
	start(t, pool, cfg)
	dead.waitFor(t, n)
	testwait.Until(t, "all to be settled", func() bool {
		return one[bool](t, pool, `SELECT count(*) FILTER (WHERE status <> 'PUBLISHED') = 0 FROM commitrelay.events`)
	})
	for name, got := range map[string]int{"alive": len(alive.messages()) - n, "dead": len(dead.messages()) - n, "mails": len(mails.messages()) - n/3} {
		if got != 0 {
			t.Errorf("%s: %d messages too many", name, got)
		}
	}
}

// A subscription that starts now gets what is committed from now on, whenever that was inserted, and keeps its place.
func TestStartNow(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink := &capture{}
	cfg, _ := fleet(t, sink)
	cfg.Subscriptions[0].Start = relay.Now
	insert(t, pool, "before", `"before"`)
	early := begin(t, pool)
	insertMany(t, early, "early", 1)
	_, stop := start(t, pool, cfg)
	waitShares(t, pool, "16")
	insert(t, pool, "after", `"after"`)
	if err := early.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	sink.waitFor(t, 2)
	stop()
	insert(t, pool, "later", `"later"`)
	start(t, pool, cfg) // it is looked at once
	var keys []string
	for _, m := range sink.waitFor(t, 3) {
		keys = append(keys, m.Event.AggregateID)
	}
	slices.Sort(keys)
	if got := fmt.Sprint(keys); got != "[after early later]" {
		t.Errorf("got events of the keys %s", got)
	}
}

// A dead event blocks its key though nothing of the key came with it; one that dies behind another that waits does not block that.
func TestDeadEventBlocksWhatComesLater(t *testing.T) {
	t.Parallel()
	pool := newOutbox(t)
	sink := &capture{}
	sink.setAnswer(judge(func(m relay.Message) error {
		switch p := string(m.Event.Payload); {
		case p == `"bad"`:
			return relay.Permanent(errors.New("too large"))
		case p == `"slow"` && m.Attempt < 3:
			return relay.Retry(errors.New("not now"))
		}
		return nil
	}))
	cfg, _ := logged(t, sink)
	cfg.Subscriptions[0].OnDead = relay.Block
	start(t, pool, cfg)
	insert(t, pool, "alone", `"bad"`)
	testwait.Until(t, "it to be dead", func() bool { return parkedRows(t, pool) == "dead 1" })
	insert(t, pool, "alone", `"behind"`)
	testwait.Until(t, "the next one to wait", func() bool { return parkedRows(t, pool) == "dead 1, parked 1" })
	mustExec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'user', 'pair', 'x', p::json FROM unnest(ARRAY['"slow"', '"bad"', '"last"']) WITH ORDINALITY AS e (p, n) ORDER BY n`)
	testwait.Until(t, "the first one to arrive, and the second to be dead", func() bool { return parkedRows(t, pool) == "dead 2, parked 2" })
	if got := fmt.Sprint(sink.payloads()); got != `["slow"]` {
		t.Errorf("arrived: %s", got)
	}
}
