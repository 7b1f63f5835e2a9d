package kafkasink

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

// A broker is killed in the middle of batches, and comes back. Nothing is lost, and first arrivals
// of each key are in order, both when the client waits for it and when calls give up meanwhile.
func TestABrokerThatIsKilled(t *testing.T) {
	own := newOwnBroker(t)
	own.start()
	b := newBroker(t, "kafka://"+own.addr)
	testwait.UntilNil(t, "the broker answers", func() error { return b.kgo.Ping(t.Context()) })
	topic := b.topic("", 3)
	r := b.read(topic)
	sent := map[string]int{}
	for name, timeout := range map[string]time.Duration{"the client waits": time.Minute, "calls give up": time.Second} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{URL: "kafka://" + own.addr, AckTimeout: timeout, ConnectTimeout: time.Second})
			var batch []relay.Message
			for i := range 2000 {
				m := message(topic)
				m.Event.AggregateID = fmt.Sprint(name, i%50)
				m.Event.Payload = make([]byte, 2000)
				batch = append(batch, m)
				sent[m.Event.ID.String()] = len(sent)
			}
			publishAll(t, s, batch[:1], "published")
			killed := make(chan struct{})
			before := len(r.records())
			go func() {
				defer close(killed)
				testwait.Until(t, "some of the batch arrives", func() bool { return len(r.records()) > before })
				own.kill()
				own.start()
			}()
			left, calls, failures := batch[1:], 0, 0
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for ; len(left) > 0; <-tick.C {
				calls++
				part := left[:min(len(left), 400)]
				err := s.Publish(t.Context(), part)
				var e *relay.BatchError
				again := append([]relay.Message(nil), left[len(part):]...)
				if err != nil {
					failures++
					var repeat []relay.Message
					for i := range part {
						if !errors.As(err, &e) || e.Errs[i] != nil {
							if word := relay.OutcomeOf(outcome(err, i)); word != "unknown" {
								t.Fatalf("outcome %s: %v", word, outcome(err, i))
							}
							repeat = append(repeat, part[i])
						}
					}
					again = append(repeat, again...)
				}
				left = again
			}
			<-killed
			t.Logf("%d calls, %d of them failed", calls, failures)
			seen, duplicates := map[string]bool{}, 0
			testwait.Until(t, "all have arrived", func() bool {
				clear(seen)
				for _, id := range r.ids() {
					seen[id] = true
				}
				return len(seen) == len(sent)
			})
			last := map[string]int{}
			clear(seen)
			for _, rec := range r.records() {
				id := headersOf(rec)["outbox-id"]
				if seen[id] {
					duplicates++
					continue
				}
				seen[id] = true
				if n := sent[id]; n < last[string(rec.Key)] {
					t.Errorf("key %s: message %d first arrived after message %d", rec.Key, n, last[string(rec.Key)])
				} else {
					last[string(rec.Key)] = n
				}
			}
			t.Logf("%d duplicates", duplicates)
			if timeout == time.Minute && (failures > 0 || duplicates > 0) {
				t.Errorf("%d calls failed, %d duplicates, though there was time to wait", failures, duplicates)
			}
		})
	}
}

func outcome(err error, i int) error {
	if e, ok := errors.AsType[*relay.BatchError](err); ok {
		return e.Errs[i]
	}
	return err
}
