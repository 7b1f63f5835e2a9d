package natssink

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/internal/dial"
	"github.com/nats-io/nats.go"
)

// Config says where the stream is and how to get in. The zero value of a field means its default.
type Config struct {
	// URL is the server's address, as nats://host:4222; tls://, ws:// and wss:// are known, too.
	// Several servers of one cluster are separated by commas. Required. It may hold the user and
	// password, or a token in the user's place, but then its special characters are encoded.
	URL string

	// User and Password, or Token, or CredsFile (a .creds file with a JWT and its seed), or
	// NKeySeedFile: at most one way to get in.
	User, Password string
	Token          string
	CredsFile      string
	NKeySeedFile   string

	// CAFile holds the authorities to trust, in PEM. CertFile and KeyFile are the client's own
	// certificate. Any of them makes TLS mandatory. They are read at each connection.
	CAFile, CertFile, KeyFile string

	// Stream is the name of the stream that all topics must belong to. With it a subject that
	// belongs to another stream is refused, and a full stream is a fault of the whole sink, so
	// that events wait in the outbox. Default: whichever stream has the subject.
	Stream string

	// Domain is the JetStream domain, used only to look up why a subject is not taken.
	Domain string

	// InboxPrefix is where acknowledgements arrive, for accounts that may not subscribe to
	// _INBOX.>. Default "_INBOX".
	InboxPrefix string

	// ConnectTimeout bounds one attempt to connect to one server. Default 5 s.
	ConnectTimeout time.Duration

	// AckTimeout is how long Publish waits while no acknowledgement arrives, and how long a
	// write may take that the server does not read. Default 5 s.
	AckTimeout time.Duration

	// Name is the connection's name, as `nats server report connections` shows it. Default
	// "commitrelay".
	Name string

	// Repeated is called for each message that the stream held already, within its duplicate
	// window: it counts as published, and the repetition was dropped. For metrics and tests; called
	// concurrently by concurrent calls of Publish. Default: nobody is told.
	Repeated func(relay.Message)
}

// withDefaults fills defaults in and reports all faults of the configuration at once.
func (c Config) withDefaults() (Config, []*url.URL, error) {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("nats sink: "+format, args...)) }
	c.Name = or(c.Name, "commitrelay")
	c.InboxPrefix = or(c.InboxPrefix, nats.InboxPrefix[:len(nats.InboxPrefix)-1])
	c.ConnectTimeout = or(c.ConnectTimeout, 5*time.Second)
	c.AckTimeout = or(c.AckTimeout, 5*time.Second)

	var servers []*url.URL
	if c.URL == "" {
		fault("no url: want nats://HOST:4222")
	} else {
		for raw := range strings.SplitSeq(c.URL, ",") {
			u, err := dial.ParseURL(strings.TrimSpace(raw), "nats", "tls", "ws", "wss")
			if err != nil {
				fault("url: %w", err)
				continue
			}
			servers = append(servers, u)
		}
	}
	ways := 0
	for _, given := range []bool{
		c.User != "" || c.Password != "", c.Token != "", c.CredsFile != "", c.NKeySeedFile != "",
		len(servers) > 0 && servers[0].User != nil,
	} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		fault("more than one way to get in: give one of user and password, token, creds file, nkey seed file, or a user in the url")
	}
	if c.Password != "" && c.User == "" {
		fault("a password without a user")
	}
	for _, file := range []string{c.CredsFile, c.NKeySeedFile} {
		if file == "" {
			continue
		}
		if f, err := os.Open(file); err != nil {
			fault("read credentials: %w", err)
		} else {
			f.Close()
		}
	}
	if c.NKeySeedFile != "" {
		if _, err := nats.NkeyOptionFromSeed(c.NKeySeedFile); err != nil {
			fault("nkey seed file %s: holds no seed of a user", c.NKeySeedFile) // err might show what it holds
		}
	}
	if _, err := dial.TLS(c.CAFile, c.CertFile, c.KeyFile); err != nil {
		fault("%w", err)
	}
	if reason := subjectFault(c.InboxPrefix); reason != "" || len(c.InboxPrefix) > maxInboxPrefix {
		fault("inbox prefix %q: want a subject of at most %d bytes", c.InboxPrefix, maxInboxPrefix)
	}
	if c.Stream != "" && (subjectFault(c.Stream) != "" || strings.ContainsAny(c.Stream, `./\`)) {
		fault("stream %q: not the name of a stream", c.Stream)
	}
	if c.ConnectTimeout < 0 || c.AckTimeout < 0 {
		fault("timeouts must not be negative")
	}
	return c, servers, errors.Join(errs...)
}

// options are what nats.Connect needs, but for the connection's own callbacks. No part of them
// is a URL with a password, so no error of the library can show one.
func (s *Sink) options() ([]nats.Option, error) {
	c := s.cfg
	opts := []nats.Option{
		nats.Name(c.Name),
		nats.Timeout(c.ConnectTimeout),
		nats.CustomInboxPrefix(c.InboxPrefix),
		// Publish connects again itself: a client that does so behind our back would keep what
		// was written meanwhile, and send it late.
		nats.NoReconnect(),
		nats.SkipHostLookup(), // our dialer does it, within the context
	}
	tls, err := dial.TLS(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	if tls != nil {
		opts = append(opts, nats.Secure(tls))
	}
	user := s.servers[0].User
	switch {
	case c.CredsFile != "":
		opts = append(opts, nats.UserCredentials(c.CredsFile))
	case c.NKeySeedFile != "":
		nkey, err := nats.NkeyOptionFromSeed(c.NKeySeedFile)
		if err != nil {
			return nil, fmt.Errorf("nkey seed file %s: holds no seed of a user", c.NKeySeedFile)
		}
		opts = append(opts, nkey)
	case c.Token != "":
		opts = append(opts, nats.Token(c.Token))
	case c.User != "":
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	case user != nil:
		if password, ok := user.Password(); ok {
			opts = append(opts, nats.UserInfo(user.Username(), password))
		} else {
			opts = append(opts, nats.Token(user.Username()))
		}
	}
	return opts, nil
}

// addresses are the servers without their secrets: for nats.Connect, and for people.
func addresses(servers []*url.URL) string {
	var hosts []string
	for _, u := range servers {
		hosts = append(hosts, (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
	}
	return strings.Join(hosts, ",")
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
