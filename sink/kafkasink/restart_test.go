package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// delivery sends batches to a topic, without end, and repeats what is not confirmed as relays do.
type delivery struct {
	sink     *Sink
	topic    string
	arrived  *reader
	enough   chan struct{} // closed: send what is begun, and no more
	sent     map[string]int
	calls    int
	failures int
}

// run returns when all that was sent is confirmed.
func (d *delivery) run(ctx context.Context) error {
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	var left []relay.Message
	for {
		if len(left) == 0 {
			select {
			case <-d.enough:
				return nil
			default:
			}
			for range 400 {
				m := message(d.topic)
				m.Event.AggregateID = fmt.Sprint(len(d.sent) % 50)
				m.Event.Payload = make([]byte, 2000)
				d.sent[m.Event.ID.String()] = len(d.sent)
				left = append(left, m)
			}
		}
		d.calls++
		err := d.sink.Publish(ctx, left)
		if err != nil {
			d.failures++
		}
		var again []relay.Message
		for i := range left {
			switch one := outcome(err, i); relay.OutcomeOf(one) {
			case "published":
			case "unknown":
				again = append(again, left[i])
			default:
				return fmt.Errorf("outcome %s: %w", relay.OutcomeOf(one), one)
			}
		}
		left = again
		<-pause.C
	}
}

// check waits for all that was sent, and returns the number of duplicates.
func (d *delivery) check(t *testing.T) int {
	t.Helper()
	testwait.UntilNil(t, "all have arrived", func() error {
		seen := map[string]bool{}
		for _, id := range d.arrived.ids() {
			seen[id] = true
		}
		if len(seen) < len(d.sent) {
			return fmt.Errorf("%d of %d have", len(seen), len(d.sent))
		}
		return nil
	})
	last, seen := map[string]int{}, map[string]bool{}
	for _, rec := range d.arrived.records() {
		id, key := headersOf(rec)["outbox-id"], string(rec.Key)
		if seen[id] {
			continue
		}
		seen[id] = true
		n, ok := d.sent[id]
		if !ok {
			t.Errorf("event %s arrived and was never sent", id)
		}
		if before, ok := last[key]; ok && n < before {
			t.Errorf("key %s: message %d first arrived after message %d", key, n, before)
		}
		last[key] = n
	}
	return len(d.arrived.records()) - len(seen)
}

// A broker is killed under load, and comes back. Nothing is lost, and first arrivals of each key are
// in order, both when the client waits for it and when calls give up meanwhile.
func TestABrokerThatIsKilled(t *testing.T) {
	t.Parallel()
	own := newOwnBroker(t)
	own.start()
	b := newBroker(t, "kafka://"+own.addr)
	testwait.UntilNil(t, "the broker answers", func() error { return b.kgo.Ping(t.Context()) })
	enough := make(chan struct{})
	deliver := func(name string, timeout time.Duration) *delivery {
		topic := b.topic(name, 3)
		return &delivery{
			sink:  open(t, Config{URL: "kafka://" + own.addr, AckTimeout: timeout, ConnectTimeout: time.Second}),
			topic: topic, arrived: b.read(topic), enough: enough, sent: map[string]int{},
		}
	}
	patient, hasty := deliver("patient", time.Minute), deliver("hasty", time.Second)
	done := make(chan error, 2)
	for _, d := range []*delivery{patient, hasty} {
		go func() { done <- d.run(t.Context()) }()
	}
	underWay := func() bool { return len(patient.arrived.records()) > 400 && len(hasty.arrived.records()) > 400 }
	testwait.Until(t, "both are under way", underWay)
	own.kill()
	before := len(patient.arrived.records()) + 400
	own.start()
	testwait.Until(t, "the broker takes more", func() bool { return len(patient.arrived.records()) > before })
	close(enough)
	for range 2 {
		if err := testwait.Recv(t, "all is confirmed", done); err != nil {
			t.Fatal(err)
		}
	}
	if n := patient.check(t); n > 0 || patient.failures > 0 {
		t.Errorf("%d calls failed, %d duplicates, though there was time to wait", patient.failures, n)
	}
	t.Logf("giving up after a second: %d of %d calls failed, %d duplicates", hasty.failures, hasty.calls, hasty.check(t))
	if hasty.failures == 0 {
		t.Error("no call met the outage")
	}
}

func outcome(err error, i int) error {
	if e, ok := errors.AsType[*relay.BatchError](err); ok {
		return e.Errs[i]
	}
	return err
}
