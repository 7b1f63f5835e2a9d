package rabbitsink

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/commitrelay/outbox/sink/internal/dial"
)

// Config says where the broker is and how messages are made. The zero value of a field means its
// default.
type Config struct {
	// URL is the broker's address, as amqp://host:5672/vhost, or amqps:// for TLS. Several nodes
	// of one cluster are separated by commas, and tried in turn. Required. It may hold user and
	// password, but then their special characters are encoded.
	URL string

	// User and Password take the place of those in the URL. Default: those, or guest and guest.
	User, Password string

	// CAFile holds the authorities to trust, in PEM. CertFile and KeyFile are the client's own
	// certificate. They need amqps://, and are read at each connection.
	CAFile, CertFile, KeyFile string

	// Exchange takes all messages; the topic is the routing key. Default "", RabbitMQ's default
	// exchange, whose routing keys are the names of queues. Nothing is declared: exchange, queues
	// and bindings are the matter of those who consume. An exchange that does not exist is a
	// fault of the whole sink: its events wait in the outbox.
	Exchange string

	// ExchangeInTopic lets each event choose: the topic is EXCHANGE/ROUTING-KEY, split at the
	// first slash, as in "{aggregate_type}/{event_type}". An exchange that does not exist is then
	// a fault of that event. Exchange must be empty.
	ExchangeInTopic bool

	// ContentType of messages that have a payload and no header content-type of their own.
	// Default "application/json", for the default payload column is JSON.
	ContentType string

	// MaxMessageBytes is the largest payload that is sent; a larger one makes the event dead.
	// Default 0: what the broker allows (its max_message_size), which the first message that is
	// too large finds out, at the price of a channel and some duplicates.
	MaxMessageBytes int

	// ConnectTimeout bounds one attempt to connect to one node. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout is how long Publish waits while no confirm arrives, and how long a write may
	// take that the broker does not read. Default 5 s.
	AckTimeout time.Duration

	// Name is the connection's name, as the management pages show it. Default "commitrelay".
	Name string
}

// node is one address of the broker.
type node struct {
	addr, host string // host:port; the name for TLS
	tls        bool
	vhost      string
	user, pass string
}

// String is the node without its secrets.
func (n node) String() string {
	scheme := "amqp"
	if n.tls {
		scheme = "amqps"
	}
	return scheme + "://" + n.addr + "/" + url.PathEscape(n.vhost)
}

// withDefaults fills defaults in and reports all faults of the configuration at once.
func (c Config) withDefaults() (Config, []node, error) {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("rabbitmq sink: "+format, args...)) }
	c.Name = or(c.Name, "commitrelay")
	c.ContentType = or(c.ContentType, "application/json")
	c.ConnectTimeout = or(c.ConnectTimeout, 5*time.Second)
	c.AckTimeout = or(c.AckTimeout, 5*time.Second)

	var nodes []node
	if c.URL == "" {
		fault("no url: want amqp://HOST:5672/VHOST")
	} else {
		for raw := range strings.SplitSeq(c.URL, ",") {
			n, err := c.node(strings.TrimSpace(raw))
			if err != nil {
				fault("url: %w", err)
				continue
			}
			nodes = append(nodes, n)
		}
	}
	if c.Password != "" && c.User == "" {
		fault("a password without a user")
	}
	if tls, err := dial.TLS(c.CAFile, c.CertFile, c.KeyFile); err != nil {
		fault("%w", err)
	} else if tls != nil {
		for _, n := range nodes {
			if !n.tls {
				fault("certificates are given for %s, which is not amqps://", n)
			}
		}
	}
	if c.ExchangeInTopic && c.Exchange != "" {
		fault("exchange %q and exchange_in_topic exclude each other", c.Exchange)
	}
	if len(c.Exchange) > maxShort {
		fault("exchange has a name of %d bytes, more than %d", len(c.Exchange), maxShort)
	}
	if len(c.ContentType) > maxShort {
		fault("content type has %d bytes, more than %d", len(c.ContentType), maxShort)
	}
	if c.MaxMessageBytes < 0 || c.ConnectTimeout < 0 || c.AckTimeout < 0 {
		fault("sizes and timeouts must not be negative")
	}
	return c, nodes, errors.Join(errs...)
}

func (c Config) node(raw string) (node, error) {
	u, err := dial.ParseURL(raw, "amqp", "amqps")
	if err != nil {
		return node{}, err
	}
	if u.RawQuery != "" {
		return node{}, errors.New("parameters after a ? are not known: use the options of the sink")
	}
	n := node{host: u.Hostname(), tls: u.Scheme == "amqps", vhost: "/", user: "guest", pass: "guest"}
	port := u.Port()
	switch {
	case port != "":
	case n.tls:
		port = "5671"
	default:
		port = "5672"
	}
	n.addr = net.JoinHostPort(n.host, port)
	if vhost := strings.TrimPrefix(u.Path, "/"); vhost != "" {
		n.vhost = vhost
	}
	if u.User != nil {
		n.user = u.User.Username()
		n.pass, _ = u.User.Password()
	}
	if c.User != "" {
		n.user, n.pass = c.User, c.Password
	}
	return n, nil
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
