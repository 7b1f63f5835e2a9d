package relay

import "time"

// State says in a word how a subscription fares.
type State string

// The states of a subscription on one relay.
const (
	Starting    State = "starting"     // nothing is known yet
	Delivering  State = "delivering"   // events are on their way, or there are none
	Standby     State = "standby"      // other live relays own its lanes
	Paused      State = "paused"       // by an operator
	SinkDown    State = "sink_down"    // the sink does not take events; they wait
	DatabaseOut State = "database_out" // PostgreSQL does not answer
	Stopped     State = "stopped"      // a fault that needs a person; see Error
)

// Health is what a Relay knows of itself. /readyz and `commitrelay status` show the same.
type Health struct {
	// Ready is true if every subscription makes progress, or is not to: its state is Delivering, Standby or Paused.
	Ready         bool                 `json:"ready"`
	Subscriptions []SubscriptionHealth `json:"subscriptions"`
}

// SubscriptionHealth is the health of one subscription on this relay.
type SubscriptionHealth struct {
	Name  string    `json:"name"`
	Sink  string    `json:"sink"`
	State State     `json:"state"`
	Since time.Time `json:"since"` // when State began
	Error string    `json:"error,omitempty"`

	// Topics are destinations inside the sink that are unavailable, with their last error: the first 20 of TopicsDown.
	Topics     map[string]string `json:"topics,omitempty"`
	TopicsDown int               `json:"topics_down"`

	LastDelivery time.Time `json:"last_delivery,omitzero"` // when the sink last confirmed an event
	Delivered    int64     `json:"delivered"`              // events confirmed since the relay started
	Parked       int       `json:"parked"`                 // events that wait for a retry, or behind one
	Dead         int64     `json:"dead"`                   // events given up since the relay started
	Duplicates   int64     `json:"duplicates_suppressed"`  // events read again after a fault and not sent again
	Fenced       int64     `json:"fenced"`                 // times that a lane was lost to another relay

	calling time.Time // since when a call of the sink has not returned; zero: none is under way
}
