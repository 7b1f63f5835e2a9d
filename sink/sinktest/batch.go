package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// messages makes n messages whose keys take turns, in the order of a relay's batch.
func messages(topic, prefix string, n, keys int) []relay.Message {
	batch := make([]relay.Message, n)
	for i := range batch {
		batch[i] = relay.Message{
			Event: outbox.Event{
				ID:            outbox.NewID(),
				AggregateType: "order",
				AggregateID:   fmt.Sprintf("%s-%d", prefix, i%keys),
				Type:          "OrderPaid",
				Payload:       fmt.Appendf(nil, `{"n": %d, "pad": %q}`, i, strings.Repeat("x", 150)),
				Headers:       map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
			},
			Topic:     topic,
			Seq:       int64(i + 1),
			Attempt:   1,
			CreatedAt: time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC),
		}
	}
	return batch
}

// outcomes are the words for what Publish says of each message of a batch.
func outcomes(t *testing.T, batch []relay.Message, err error) []string {
	t.Helper()
	var b *relay.BatchError
	if !errors.As(err, &b) {
		return slices.Repeat([]string{relay.OutcomeOf(err)}, len(batch))
	}
	if len(b.Errs) != len(batch) {
		t.Fatalf("BatchError has %d entries for %d messages", len(b.Errs), len(batch))
	}
	words := make([]string, len(batch))
	for i, e := range b.Errs {
		words[i] = relay.OutcomeOf(e)
	}
	return words
}

// errorOf is what Publish says of message i.
func errorOf(err error, i int) error {
	if b, ok := errors.AsType[*relay.BatchError](err); ok {
		return b.Errs[i]
	}
	return err
}

// deliver publishes as a relay does: what was not confirmed is repeated, in order, until all is
// published. It calls before at each attempt, and returns the number of attempts.
func deliver(ctx context.Context, t *testing.T, d Destination, batch []relay.Message, before func(attempt int)) int {
	t.Helper()
	deadline := time.Now().Add(d.Patience)
	for attempt := 1; ; attempt++ {
		if before != nil {
			before(attempt)
		}
		err := d.Sink.Publish(ctx, batch)
		if err == nil {
			return attempt
		}
		if time.Now().After(deadline) {
			t.Errorf("%d messages still not published after %d attempts: %v", len(batch), attempt, err)
			return attempt
		}
		var left []relay.Message
		for i, word := range outcomes(t, batch, err) {
			switch word {
			case "published":
			case "unknown":
				left = append(left, batch[i])
			default:
				t.Errorf("message %d is refused (%s): %v", i, word, errorOf(err, i))
				return attempt
			}
		}
		batch = left
	}
}

// arrivals waits until each message has arrived at least once, and returns all arrivals.
func arrivals(t *testing.T, d Destination, want []relay.Message) []Arrival {
	t.Helper()
	deadline := time.Now().Add(d.Patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := d.Arrived()
		if err != nil {
			t.Fatalf("read what has arrived: %v", err)
		}
		seen := make(map[string]bool, len(all))
		for _, a := range all {
			seen[a.Headers[wire.ID]] = true
		}
		missing := 0
		for i := range want {
			if !seen[want[i].Event.ID.String()] {
				missing++
			}
		}
		if missing == 0 {
			return all
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d messages have not arrived after %v", missing, len(want), d.Patience)
		}
		<-tick.C
	}
}

// checkOrder checks that the first arrivals of each key are in the order of the messages sent,
// and returns how many arrivals were duplicates.
func checkOrder(t *testing.T, sent []relay.Message, got []Arrival) int {
	t.Helper()
	place := make(map[string]int, len(sent))
	for i := range sent {
		place[sent[i].Event.ID.String()] = i
	}
	last := map[string]int{}
	seen := map[string]bool{}
	duplicates := 0
	for _, a := range got {
		id := a.Headers[wire.ID]
		i, ok := place[id]
		if !ok {
			t.Errorf("event %s arrived and was never sent", id)
			continue
		}
		if seen[id] {
			duplicates++
			continue
		}
		seen[id] = true
		key := a.Headers[wire.AggregateType] + "/" + a.Headers[wire.AggregateID]
		if before, ok := last[key]; ok && i < before {
			t.Errorf("key %s: message %d first arrived after message %d", key, i, before)
		}
		last[key] = i
	}
	return duplicates
}

// checkContent checks that an arrival is the message that was sent.
func checkContent(t *testing.T, d Destination, m relay.Message, a Arrival) {
	t.Helper()
	want := maps.Clone(m.Event.Headers)
	if want == nil {
		want = map[string]string{}
	}
	for _, h := range wire.Own(&m) {
		want[h.Name] = h.Value
	}
	if diff := cmp.Diff(want, a.Headers, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("headers of %q (-sent +arrived):\n%s", m.Event.Type, diff)
	}
	if body := d.Carried(m.Event.Payload); !bytes.Equal(body, a.Body) {
		t.Errorf("payload of %q: want %d bytes %.100q, arrived %d bytes %.100q", m.Event.Type, len(body), body, len(a.Body), a.Body)
	}
}

// finish waits for Publish to return, as it must soon when its context has ended.
func finish(t *testing.T, done <-chan error) error {
	t.Helper()
	timer := time.NewTimer(prompt)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		t.Fatalf("Publish has not returned %v after the end of its context", prompt)
	}
	panic("unreachable: Fatalf does not return")
}
