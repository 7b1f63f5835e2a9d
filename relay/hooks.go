package relay

import "time"

// Hooks are told what a Relay does, for metrics and tests. Nil functions are skipped. They are
// called from the goroutines that deliver, for different subscriptions concurrently, and should
// return at once. They must not keep the batch.
type Hooks struct {
	// Published is called after a call of Sink.Publish with the messages the sink confirmed.
	Published func(subscription string, batch []Message, took time.Duration)

	// Parked is called when an event waits for a retry, with the sink's reason.
	Parked func(subscription string, m Message, err error)

	// Dead is called when an event is given up, with the reason.
	Dead func(subscription string, m Message, err error)

	// Stored is called when the database holds what had become of events of these lanes when the store began: none of what was
	// settled before that is sent again by a later owner. Publishing goes on meanwhile. Lanes are numbered from 0.
	Stored func(subscription string, lanes []int)

	// SinkDown is called when a sink stops taking events, SinkUp when it takes them again.
	SinkDown func(subscription string, err error)
	SinkUp   func(subscription string, after time.Duration)
}
