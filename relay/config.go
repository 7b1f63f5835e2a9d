package relay

import (
	"log/slog"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

// Config says what a Relay delivers and how. The zero value of a field means its default.
type Config struct {
	// Table is the outbox's events table: "table" or "schema.table", names as they stand in the
	// catalog. Default "public.outbox_events".
	Table string

	// Schema holds commitrelay's own tables. Default "commitrelay".
	Schema string

	// Subscriptions are what this relay delivers. At least one; their names are unique.
	Subscriptions []Subscription

	// Lease is how long a lane stays with a relay that no longer renews it: the longest time for
	// which a crash stops delivery, but for two seconds. Default 10 s, at least 1 s.
	Lease time.Duration

	// ShutdownTimeout bounds the time that Run takes to finish what is in flight after its
	// context has ended. Default 10 s.
	ShutdownTimeout time.Duration

	// Retention is how long events stay in the table after their slot's turn on the wheel is over; then the slot is emptied,
	// once all in it is settled. More than the wheel holds, (slots - 2) x width of migrate.Options, is refused when Run or
	// Drain begins. Relays of one outbox should agree: the shortest counts. Default 0: as soon as all is settled.
	Retention time.Duration

	// PollMin and PollMax bound the pause between two looks at the outbox: PollMin while
	// events arrive, PollMax when none have for a while. Defaults 2 ms and 100 ms.
	PollMin, PollMax time.Duration

	// BatchEvents and BatchBytes bound what one call of Sink.Publish gets. A single event larger
	// than BatchBytes travels alone. Defaults 1000 and 4 MiB.
	BatchEvents int
	BatchBytes  int

	// Version is the name of this build, shown by `commitrelay status`.
	Version string

	// Logger receives what operators should know. Default: nothing is logged.
	Logger *slog.Logger

	// Hooks are told what happens, in order. See Hooks.
	Hooks []Hooks
}

// Subscription is a named reader of the outbox: a filter, a sink, and positions of its own,
// which are kept in the database under its name.
type Subscription struct {
	// Name identifies the subscription and its positions. Required: 1 to 63 of a-z, 0-9, '_' and '-'.
	Name string

	// Sink is where the events go. Required. The relay does not close it.
	Sink Sink

	// SinkName is what logs, health and status call the sink. Default: the subscription's name.
	SinkName string

	// Topic is a template of the topic inside the sink: text with fields in braces, as
	// "{aggregate_type}.{event_type}". Fields: aggregate_type, aggregate_id, event_type, id, and
	// header:NAME. Default: what the sink's method DefaultTopic() string says, if it has one (where topics keep an order
	// each, as in Kafka, the events of one aggregate belong into one), else "{event_type}".
	Topic string

	// Filter chooses the events. The zero Filter wants all.
	Filter Filter

	// Start says where a new subscription begins. Default First. It is not looked at again.
	Start Start

	// Lanes is the number of parts that relays share, by hash of the key: a power of two from 1 to 1024. With 1 a single
	// relay delivers all, one batch after the other. It counts for a new subscription only: the
	// number of one that exists is changed by `commitrelay subscriptions lanes`. Default 16.
	Lanes int

	// OnDead says what becomes of the later events of a key whose event is dead. Default Continue.
	OnDead OnDead

	// MaxAttempts is the number of attempts after which an event that the sink keeps refusing
	// with Retry is dead. Default 10.
	MaxAttempts int

	// Backoff is the pause before the second attempt; it doubles up to MaxBackoff, give or take
	// a fifth at random. Defaults 1 s and 5 min.
	Backoff, MaxBackoff time.Duration
}

// Start says where a new subscription begins.
type Start string

// The choices of Start. The zero value means First.
const (
	First Start = "first" // at the first event that the outbox still holds
	Now   Start = "now"   // at the events that are committed from now on
)

// OnDead says what becomes of the later events of a key whose event was given up.
type OnDead string

// The choices of OnDead. The zero value means Continue.
const (
	Continue OnDead = "continue" // later events of the key are delivered
	Block    OnDead = "block"    // later events of the key wait until someone acts
)

// Filter chooses events by exact names, or by a prefix that ends in '*'. An empty list wants
// all. It is data: stored with the subscription, shown, and pushed into SQL.
type Filter struct {
	AggregateTypes []string
	EventTypes     []string
}

// stored is what the database keeps of the subscription.
func (s *Subscription) stored() store.Subscription {
	return store.Subscription{
		Name: s.Name, Lanes: s.Lanes, AggregateTypes: s.Filter.AggregateTypes, EventTypes: s.Filter.EventTypes,
		Sink: s.SinkName, Topic: s.Topic, OnDead: string(s.OnDead),
	}
}

// probeTime bounds the statements that take no time, and are the first to meet a connection that has gone silent.
func (cfg *Config) probeTime() time.Duration { return cfg.Lease / 2 }
