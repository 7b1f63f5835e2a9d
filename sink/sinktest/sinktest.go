// Package sinktest is the contract of relay.Sink as a test suite. Whoever writes a sink runs it
// against the real destination:
//
//	func TestContract(t *testing.T) {
//		sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination { ... }})
//	}
//
// It checks what relays build on: all of a batch arrives, once and byte for byte; what is reported
// as published has arrived; a refused message takes no neighbour with it and lets no later one of
// its key pass, neither in its batch nor through a connection that breaks in the middle; a context
// that ends is obeyed, and what was confirmed is reported.
package sinktest

import (
	"testing"
	"time"

	"github.com/commitrelay/outbox/relay"
)

// Harness gives the suite its destinations.
type Harness struct {
	// Open makes an empty destination and a sink for it. It is called for each case, with the
	// case's t: what it opens is closed by t.Cleanup. Required.
	Open func(t *testing.T) Destination
}

// Destination is one destination, empty at first. What is optional belongs to cases that are
// only run if it is there.
type Destination struct {
	// Sink is the sink under test. It should give up on acknowledgements after a second or
	// less, so that the cases that withhold them end soon. Required.
	Sink relay.Sink

	// Topic is one that the destination takes. Required.
	Topic string

	// Arrived returns all that has arrived by now, in the order of arrival, duplicates included.
	// It is called repeatedly. Required.
	Arrived func() ([]Arrival, error)

	// MaxPayload is the size of the largest payload that is tried. Default 1 MiB.
	MaxPayload int

	// Patience is how long the suite waits for what must arrive before it fails. Default 60 s.
	Patience time.Duration

	// Carried is what a consumer gets of a payload, for a destination that does not keep its
	// bytes. Default: the payload.
	Carried func(payload []byte) []byte

	// Refusals are the ways in which the destination refuses one message while it takes others.
	Refusals []Refusal

	// CutAfter breaks all connections when so many more bytes were sent to the destination, or
	// to the client.
	CutAfter func(toClient bool, bytes int64)

	// Withhold keeps all that the destination says from the client, on connections old and new
	// that stay open, until release is called.
	Withhold func() (release func())

	// Stall makes the destination read no more, with connections open, until resume is called.
	Stall func() (resume func())
}

// Arrival is a message as a consumer sees it.
type Arrival struct {
	Body    []byte            // empty or nil for an event without a payload
	Headers map[string]string // those of docs/wire.md and the event's own
}

// Refusal is a way to have a message refused.
type Refusal struct {
	Name string

	// Spoil makes a message that is taken one that is refused. It must leave its key alone.
	Spoil func(m *relay.Message)

	// Outcome is what the sink should say, as relay.OutcomeOf has it: "permanent", "retry" or
	// "unavailable".
	Outcome string

	// Reason holds what people should find in the error: the limit, the topic's name.
	Reason []string
}

// Run checks the contract. Each case is a subtest with a destination of its own.
func Run(t *testing.T, h Harness) {
	cases := []struct {
		name string
		run  func(t *testing.T, d Destination)
		fits func(d Destination) bool
	}{
		{"everything arrives once and in order", testEverything, nil},
		{"payloads and headers arrive unchanged", testUnchanged, nil},
		{"an empty batch is published", testEmpty, nil},
		{"lanes publish concurrently", testConcurrent, nil},
		{"a context that has ended", testContextEnded, nil},
		{"refused messages hold back their key only", testRefused, func(d Destination) bool { return len(d.Refusals) > 0 }},
		{"many refused messages in one batch", testManyRefused, func(d Destination) bool { return len(d.Refusals) > 0 }},
		{"connections cut in the middle of a batch", testCut, func(d Destination) bool { return d.CutAfter != nil }},
		{"acknowledgements withheld", testWithheld, func(d Destination) bool { return d.Withhold != nil }},
		{"a context that ends while acknowledgements are withheld", testContextEnds, func(d Destination) bool { return d.Withhold != nil }},
		{"a destination that reads no more", testStalled, func(d Destination) bool { return d.Stall != nil }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := h.Open(t)
			if d.Carried == nil {
				d.Carried = func(payload []byte) []byte { return payload }
			}
			if d.Patience == 0 {
				d.Patience = 60 * time.Second
			}
			if d.MaxPayload == 0 {
				d.MaxPayload = 1 << 20
			}
			if c.fits == nil || c.fits(d) {
				c.run(t, d)
			}
		})
	}
}

// prompt is how soon Publish must return after its context has ended. It is generous, for slow
// machines: what it tells apart is soon and never.
const prompt = 20 * time.Second

// underWay is the life of a context that shall end while Publish waits: long enough for it to get
// there, shorter than a sink waits for acknowledgements.
const underWay = 300 * time.Millisecond
