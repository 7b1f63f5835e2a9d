package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/commitrelay/outbox/sink/internal/dial"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Config says where the brokers are and how records are made. The zero value of a field means its
// default.
type Config struct {
	// URL names brokers of one cluster to begin with, as kafka://host:9092,host2:9092, or
	// kafka+ssl:// for TLS. The others are learned from them. Required. It may hold user and
	// password, but then their special characters are encoded.
	URL string

	// User and Password take the place of those in the URL. Default: those, or no login.
	User, Password string

	// SASLMechanism is how to log in: "plain", "scram-sha-256" or "scram-sha-512". Default
	// "plain", which shows the password to whoever sees the connection: use it with TLS.
	SASLMechanism string

	// CAFile holds the authorities to trust, in PEM. CertFile and KeyFile are the client's own
	// certificate. They need kafka+ssl://, and are read at each connection.
	CAFile, CertFile, KeyFile string

	// Compression of what is sent: "none", "gzip", "snappy", "lz4" or "zstd". Default "none":
	// outbox events are small, and every consumer can read it.
	Compression string

	// MaxMessageBytes is the largest record that is sent, key, headers and 70 bytes of overhead
	// included, before compression; a larger one makes the event dead. Default 1,048,588, which
	// is the brokers' default. A topic with another max.message.bytes needs no setting if it
	// allows less: the topic's first refusal teaches it.
	MaxMessageBytes int

	// AllowAutoTopicCreation asks the brokers to create topics that do not exist, with their
	// defaults for partitions and replicas. Default false: events wait until someone creates
	// the topic.
	AllowAutoTopicCreation bool

	// ConnectTimeout bounds one attempt to connect to one broker. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout is how long Publish waits while no acknowledgement arrives. Default 10 s: most
	// elections of a partition's leader are over by then.
	AckTimeout time.Duration

	// Name is the client id, as brokers log it and quotas name it. Default "commitrelay".
	Name string

	// Dial makes the connections instead of a net.Dialer: through a tunnel, as network and address
	// are what the cluster tells its clients. TLS comes on top. Called concurrently. Default: none.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	scheme    = "kafka"
	schemeTLS = "kafka+ssl"

	defaultMaxMessage = 1<<20 + 12
	maxMaxMessage     = 1 << 30
)

var codecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

// cluster is where the brokers are and how to get in.
type cluster struct {
	brokers  []string // host:port
	tls      bool
	user     string
	password string
}

// String is the cluster without its secrets.
func (c cluster) String() string {
	if c.tls {
		return schemeTLS + "://" + strings.Join(c.brokers, ",")
	}
	return scheme + "://" + strings.Join(c.brokers, ",")
}

// withDefaults fills defaults in and reports all faults of the configuration at once.
func (c Config) withDefaults() (Config, cluster, error) {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("kafka sink: "+format, args...)) }
	c.Name = or(c.Name, "commitrelay")
	c.SASLMechanism = or(c.SASLMechanism, "plain")
	c.Compression = or(c.Compression, "none")
	c.MaxMessageBytes = or(c.MaxMessageBytes, defaultMaxMessage)
	c.ConnectTimeout = or(c.ConnectTimeout, 5*time.Second)
	c.AckTimeout = or(c.AckTimeout, 10*time.Second)

	to, err := parseURL(c.URL)
	if err != nil {
		fault("url: %w", err)
	}
	if c.Password != "" && c.User == "" {
		fault("a password without a user")
	}
	if c.User != "" {
		to.user, to.password = c.User, c.Password
	}
	if c.mechanism(to) == nil {
		fault("sasl mechanism %q: want plain, scram-sha-256 or scram-sha-512", c.SASLMechanism)
	} else if c.SASLMechanism != "plain" && to.user == "" && err == nil {
		fault("sasl mechanism %s without a user", c.SASLMechanism)
	}
	if tls, err := dial.TLS(c.CAFile, c.CertFile, c.KeyFile); err != nil {
		fault("%w", err)
	} else if tls != nil && !to.tls && len(to.brokers) > 0 {
		fault("certificates are given for %s, which is not %s://", to, schemeTLS)
	}
	if _, ok := codecs[c.Compression]; !ok {
		fault("compression %q: want none, gzip, snappy, lz4 or zstd", c.Compression)
	}
	if c.MaxMessageBytes < minBatch || c.MaxMessageBytes > maxMaxMessage {
		fault("max message bytes %d: want %d to %d", c.MaxMessageBytes, minBatch, maxMaxMessage)
	}
	if c.ConnectTimeout < 0 || c.AckTimeout < 0 {
		fault("timeouts must not be negative")
	}
	return c, to, errors.Join(errs...)
}

// parseURL reads a list of brokers. The first one's scheme and user are those of all.
func parseURL(list string) (cluster, error) {
	if list == "" {
		return cluster{}, errors.New("none is given: want kafka://HOST:9092")
	}
	var to cluster
	var first *url.URL
	for raw := range strings.SplitSeq(list, ",") {
		raw = strings.TrimSpace(raw)
		if first != nil && !strings.Contains(raw, "://") {
			raw = first.Scheme + "://" + raw
		}
		u, err := dial.ParseURL(raw, scheme, schemeTLS)
		switch {
		case err != nil:
			return cluster{}, err
		case strings.Trim(u.Path, "/") != "":
			return cluster{}, errors.New("nothing may follow the host: the topic belongs to the subscription")
		case u.RawQuery != "":
			return cluster{}, errors.New("parameters after a ? are not known: use the options of the sink")
		case first == nil:
			first = u
			to.tls = u.Scheme == schemeTLS
			to.user = u.User.Username()
			to.password, _ = u.User.Password()
		case u.Scheme != first.Scheme:
			return cluster{}, errors.New("all brokers need the same scheme")
		case u.User != nil && u.User.String() != first.User.String():
			return cluster{}, errors.New("all brokers need the same user")
		}
		to.brokers = append(to.brokers, net.JoinHostPort(u.Hostname(), or(u.Port(), "9092")))
	}
	slices.Sort(to.brokers)
	to.brokers = slices.Compact(to.brokers)
	return to, nil
}

// mechanism logs in as the configuration says; nil: no such mechanism.
func (c Config) mechanism(to cluster) sasl.Mechanism {
	switch c.SASLMechanism {
	case "plain":
		return plain.Auth{User: to.user, Pass: to.password}.AsMechanism()
	case "scram-sha-256":
		return scram.Auth{User: to.user, Pass: to.password}.AsSha256Mechanism()
	case "scram-sha-512":
		return scram.Auth{User: to.user, Pass: to.password}.AsSha512Mechanism()
	}
	return nil
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
