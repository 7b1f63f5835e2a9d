package sinktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/google/go-cmp/cmp"
)

func testEverything(t *testing.T, d Destination) {
	all := messages(d.Topic, "k", 1000, 90)
	for batch := range slices.Chunk(all, 400) {
		own := slices.Clone(batch)
		for i := range own {
			own[i].Event.Payload = bytes.Clone(own[i].Event.Payload)
		}
		if err := d.Sink.Publish(t.Context(), own); err != nil {
			t.Fatalf("Publish: %v", err)
		}
		// The batch is the caller's again: a sink that kept it sends this.
		for i := range own {
			clear(own[i].Event.Payload)
			own[i] = relay.Message{}
		}
	}
	got := arrivals(t, d, all)
	if duplicates := checkOrder(t, all, got); duplicates > 0 {
		t.Errorf("%d duplicates without any fault", duplicates)
	}
	byID := map[string]Arrival{}
	for _, a := range got {
		byID[a.Headers[wire.ID]] = a
	}
	for _, m := range all {
		checkContent(t, d, m, byID[m.Event.ID.String()])
	}
}

func testUnchanged(t *testing.T, d Destination) {
	infinity := time.Date(294276, 12, 31, 23, 59, 59, 999999000, time.UTC)
	tests := []struct {
		name string
		edit func(m *relay.Message)
	}{
		{"numbers", func(m *relay.Message) {
			m.Event.Payload = []byte(`{"i":1234567890123456789,"d":0.1234567890123456789012345,"t":1.10,"e":1e400,"n":-0}`)
		}},
		{"unicode", func(m *relay.Message) { m.Event.Payload = []byte(`"größe 漢字 🙂 \u0000 \\u0000 \ud800"`) }},
		{"duplicate names", func(m *relay.Message) { m.Event.Payload = []byte(`{"b":1,"a":2,"b":3}`) }},
		{"SQL NULL", func(m *relay.Message) { m.Event.Payload = nil }},
		{"no bytes", func(m *relay.Message) { m.Event.Payload = []byte{} }},
		{"JSON null", func(m *relay.Message) { m.Event.Payload = []byte("null") }},
		{"empty text", func(m *relay.Message) { m.Event.Payload = []byte(`""`) }},
		{"empty object", func(m *relay.Message) { m.Event.Payload = []byte("{}") }},
		{"empty array", func(m *relay.Message) { m.Event.Payload = []byte("[]") }},
		{"no JSON", func(m *relay.Message) { m.Event.Payload = []byte("plain text, größe") }},
		{"bytes", func(m *relay.Message) { m.Event.Payload = []byte{0, 1, '\r', '\n', 0xff, 0xfe, '"', 0} }},
		{"64 KiB", func(m *relay.Message) { m.Event.Payload = quoted(64 << 10) }},
		{"large", func(m *relay.Message) { m.Event.Payload = quoted(d.MaxPayload) }},
		{"no headers", func(m *relay.Message) { m.Event.Headers = nil }},
		{"many headers", func(m *relay.Message) {
			m.Event.Headers = map[string]string{"tracestate": "a=b,c=d", "Tenant": "größe 漢字", "empty": "", "x-y.z_1": strings.Repeat("v", 3000)}
		}},
		{"odd key", func(m *relay.Message) {
			m.Event.AggregateType, m.Event.AggregateID = "größe/x", `a "b" \c 漢字 {}`
		}},
		{"far time", func(m *relay.Message) { m.CreatedAt = infinity }},
		{"early time", func(m *relay.Message) { m.CreatedAt = time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC) }},
		{"replayed", func(m *relay.Message) { m.Replayed, m.Attempt = true, 7 }},
	}
	batch := messages(d.Topic, "k", len(tests), len(tests))
	for i, test := range tests {
		batch[i].Event.Type = test.name
		test.edit(&batch[i])
	}
	if err := d.Sink.Publish(t.Context(), batch); err != nil {
		t.Fatalf("Publish: %v", err)
	}
	byID := map[string]Arrival{}
	for _, a := range arrivals(t, d, batch) {
		byID[a.Headers[wire.ID]] = a
	}
	for _, m := range batch {
		checkContent(t, d, m, byID[m.Event.ID.String()])
	}

	// What the event itself calls by our names does not travel.
	m := messages(d.Topic, "own", 1, 1)
	m[0].Event.Headers = map[string]string{"outbox-id": "forged", "Outbox-Type": "forged"}
	if err := d.Sink.Publish(t.Context(), m); err != nil {
		t.Fatalf("Publish: %v", err)
	}
	for _, a := range arrivals(t, d, m) {
		if a.Headers[wire.ID] == m[0].Event.ID.String() {
			m[0].Event.Headers = nil
			checkContent(t, d, m[0], a)
		}
	}
}

// quoted is a JSON string of n bytes.
func quoted(n int) []byte { return []byte(`"` + strings.Repeat("a", n-2) + `"`) }

func testEmpty(t *testing.T, d Destination) {
	if err := d.Sink.Publish(t.Context(), nil); err != nil {
		t.Errorf("Publish(nil) = %v", err)
	}
}

func testConcurrent(t *testing.T, d Destination) {
	const lanes = 8
	var all []relay.Message
	var running sync.WaitGroup
	for lane := range lanes {
		batch := messages(d.Topic, fmt.Sprintf("lane%d", lane), 250, 20)
		all = append(all, batch...)
		running.Go(func() {
			for part := range slices.Chunk(batch, 50) {
				if err := d.Sink.Publish(t.Context(), part); err != nil {
					t.Errorf("lane %d: Publish: %v", lane, err)
					return
				}
			}
		})
	}
	running.Wait()
	if duplicates := checkOrder(t, all, arrivals(t, d, all)); duplicates > 0 {
		t.Errorf("%d duplicates without any fault", duplicates)
	}
}

func testContextEnded(t *testing.T, d Destination) {
	why := errors.New("the lease is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	batch := messages(d.Topic, "k", 10, 5)
	err := d.Sink.Publish(ctx, batch)
	for i, word := range outcomes(t, batch, err) {
		if word != "unknown" {
			t.Errorf("message %d is %s, want unknown: %v", i, word, err)
		}
	}
	if !errors.Is(err, why) {
		t.Errorf("Publish = %v, want the cause of the context's end in it", err)
	}
	deliver(t.Context(), t, d, batch, nil) // and the sink is as good as before
	checkOrder(t, batch, arrivals(t, d, batch))
}

// Each way of refusal: k is refused, and k+1 of the same key, which the destination would take,
// is not sent; neighbours arrive.
func testRefused(t *testing.T, d Destination) {
	for _, r := range d.Refusals {
		t.Run(r.Name, func(t *testing.T) {
			batch := messages(d.Topic, r.Name, 12, 6) // keys 0 to 5, twice
			const refused, later = 2, 8
			r.Spoil(&batch[refused])
			err := d.Sink.Publish(t.Context(), batch)
			want := slices.Repeat([]string{"published"}, len(batch))
			want[refused], want[later] = r.Outcome, "unknown"
			if diff := cmp.Diff(want, outcomes(t, batch, err)); diff != "" {
				t.Fatalf("outcomes (-want +got):\n%s\n%v\n%v", diff, errorOf(err, refused), errorOf(err, 0))
			}
			for _, part := range r.Reason {
				if !strings.Contains(errorOf(err, refused).Error(), part) {
					t.Errorf("the reason is %q, want %q in it", errorOf(err, refused), part)
				}
			}
			// The later one is still to come, and nobody has seen it.
			taken := slices.Delete(slices.Clone(batch), later, later+1)
			taken = slices.Delete(taken, refused, refused+1)
			for _, a := range arrivals(t, d, taken) {
				for _, i := range []int{refused, later} {
					if a.Headers[wire.ID] == batch[i].Event.ID.String() {
						t.Errorf("message %d arrived", i)
					}
				}
			}
			if err := d.Sink.Publish(t.Context(), batch[later:later+1]); err != nil {
				t.Fatalf("the message held back is not taken later: %v", err)
			}
			arrivals(t, d, batch[later:later+1])
		})
	}
}

// A mistake of configuration makes many refusals at once. Each event gets its own answer, and
// what is between them arrives.
func testManyRefused(t *testing.T, d Destination) {
	for _, r := range d.Refusals {
		t.Run(r.Name, func(t *testing.T) {
			batch := messages(d.Topic, r.Name, 60, 60)
			want := make([]string, len(batch))
			var good []relay.Message
			for i := range batch {
				if i%3 == 0 {
					r.Spoil(&batch[i])
					want[i] = r.Outcome
				} else {
					want[i] = "published"
					good = append(good, batch[i])
				}
			}
			err := d.Sink.Publish(t.Context(), batch)
			if diff := cmp.Diff(want, outcomes(t, batch, err)); diff != "" {
				t.Fatalf("outcomes (-want +got):\n%s\n%v", diff, err)
			}
			arrivals(t, d, good)
		})
	}
}

func testCut(t *testing.T, d Destination) {
	const batches, size = 8, 400
	all := messages(d.Topic, "k", batches*size, 30)
	n := 0
	cuts := 0
	for batch := range slices.Chunk(all, size) {
		n++
		attempts := deliver(t.Context(), t, d, batch, func(attempt int) {
			if attempt <= 2 { // the repetition is cut, too
				// Of a batch's 100 KB and more to the destination, and its 10 KB and more back.
				toClient := n%2 == 0
				bytes := int64(n) * 9_000
				if toClient {
					bytes = int64(n) * 800
				}
				d.CutAfter(toClient, bytes)
			}
		})
		cuts += attempts - 1
	}
	if cuts < batches {
		t.Errorf("%d calls were cut, want %d at least: the case proves nothing", cuts, batches)
	}
	duplicates := checkOrder(t, all, arrivals(t, d, all))
	t.Logf("%d calls failed, %d duplicates in %d messages", cuts, duplicates, len(all))
}

// A sink that does not wait for the destination's word calls these published.
func testWithheld(t *testing.T, d Destination) {
	deliver(t.Context(), t, d, messages(d.Topic, "before", 10, 5), nil)
	release := d.Withhold()
	batch := messages(d.Topic, "k", 10, 5)
	err := d.Sink.Publish(t.Context(), batch)
	for i, word := range outcomes(t, batch, err) {
		if word != "unknown" {
			t.Errorf("message %d is %s without an acknowledgement", i, word)
		}
	}
	release()
	deliver(t.Context(), t, d, batch, nil)
	arrivals(t, d, batch)
}

func testContextEnds(t *testing.T, d Destination) {
	deliver(t.Context(), t, d, messages(d.Topic, "before", 10, 5), nil)
	release := d.Withhold()
	why := errors.New("the lease is over")
	ctx, cancel := context.WithTimeoutCause(t.Context(), underWay, why)
	defer cancel()
	batch := messages(d.Topic, "k", 10, 5)
	done := make(chan error, 1)
	go func() { done <- d.Sink.Publish(ctx, batch) }()
	err := finish(t, done)
	for i, word := range outcomes(t, batch, err) {
		if word != "unknown" {
			t.Errorf("message %d is %s without an acknowledgement", i, word)
		}
	}
	release()
	deliver(t.Context(), t, d, batch, nil)
	arrivals(t, d, batch)
}

// A destination that reads no more, as a broker short of memory: writes fill the buffers and
// block, and still the context's end is obeyed.
func testStalled(t *testing.T, d Destination) {
	deliver(t.Context(), t, d, messages(d.Topic, "before", 10, 5), nil)
	resume := d.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), underWay)
	defer cancel()
	batch := messages(d.Topic, "k", 64, 64)
	for i := range batch {
		batch[i].Event.Payload = quoted(d.MaxPayload / 2) // more than any socket's buffer
	}
	done := make(chan error, 1)
	go func() { done <- d.Sink.Publish(ctx, batch) }()
	err := finish(t, done)
	for i, word := range outcomes(t, batch, err) {
		if word != "unknown" {
			t.Errorf("message %d is %s, and the destination has not read it", i, word)
		}
	}
	resume()
	deliver(t.Context(), t, d, batch, nil)
	checkOrder(t, batch, slices.DeleteFunc(arrivals(t, d, batch), func(a Arrival) bool {
		return strings.HasPrefix(a.Headers[wire.AggregateID], "before")
	}))
}
