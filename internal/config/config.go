// Package config reads commitrelay's configuration: a YAML file, the environment and flags.
//
// The whole format is known here, also the parts that this version does not build: those are
// refused by name. All faults of a configuration are reported at once, each with its place.
package config

import (
	"log/slog"
	"time"

	"github.com/commitrelay/outbox/internal/ident"
)

// Config is a configuration without faults. Every field holds its value, defaults included.
type Config struct {
	Database      Database
	Sinks         map[string]Sink // by name
	Subscriptions []Subscription  // in the order of the file
	HTTP          string          // address for /livez and /readyz; empty: none

	Lease           time.Duration
	ShutdownTimeout time.Duration
	PollMin         time.Duration
	PollMax         time.Duration
	BatchEvents     int
	BatchBytes      int
	Log             Log
}

// Database says where the outbox is.
type Database struct {
	URL       URL         // of the connections that deliver; may lead to a pooler
	DirectURL URL         // around the pooler, for migrations; empty: URL
	Password  Secret      // replaces the URL's, if it is not empty
	Table     ident.Table // the events table
	Schema    string      // commitrelay's own tables

	// Retention is how long events stay after their slot's turn.
	Retention time.Duration
}

// The types of sinks that the format knows.
const (
	TypeNATS   = "nats"
	TypeRabbit = "rabbitmq"
	TypeKafka  = "kafka"
	TypeStdout = "stdout"
)

// Sink is a destination. Which fields are set depends on its type; empty ones mean the default of
// that sink's package.
type Sink struct {
	Name string
	At   string // where it is configured: "relay.yaml:4", "--sink"
	Type string

	// Of every broker.
	URL                        URL
	User                       string
	Password                   Secret
	ConnectTimeout, AckTimeout time.Duration
	TLS                        TLS

	// Of nats.
	Token                       Secret
	CredsFile, NKeySeedFile     string // read again at each connection
	Stream, Domain, InboxPrefix string

	// Of rabbitmq. An empty exchange is the default one: there the topic names a queue.
	Exchange        string
	ExchangeInTopic bool
	ContentType     string

	// Of kafka.
	SASLMechanism          string // "plain", "scram-sha-256" or "scram-sha-512"
	Compression            string // "none", "gzip", "snappy", "lz4" or "zstd"
	AllowAutoTopicCreation bool

	MaxMessageBytes int // of rabbitmq: the payload; of kafka: the record
}

// Subscription is a named reader of the outbox.
type Subscription struct {
	Name           string
	Sink           string // a key of Config.Sinks
	Topic          string
	Lanes          int    // of a new subscription
	Start          string // of a new subscription: first or now
	AggregateTypes []string
	EventTypes     []string
	OnDead         string // "continue" or "block"
	Attempts       int
	Backoff        time.Duration
	MaxBackoff     time.Duration
}

// Log says what is logged, and how.
type Log struct {
	Level  slog.Level
	Format string // "text" or "json"
}

func defaults() Config {
	return Config{
		Database:        Database{Table: ident.Table{Schema: "public", Name: "outbox_events"}, Schema: "commitrelay"},
		Sinks:           map[string]Sink{},
		Lease:           10 * time.Second,
		ShutdownTimeout: 10 * time.Second,
		PollMin:         2 * time.Millisecond,
		PollMax:         100 * time.Millisecond,
		BatchEvents:     1000,
		BatchBytes:      4 << 20,
		Log:             Log{Level: slog.LevelInfo, Format: "text"},
	}
}
