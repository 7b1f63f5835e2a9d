package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/commitrelay/outbox/internal/config"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/kafkasink"
	"github.com/commitrelay/outbox/sink/natssink"
	"github.com/commitrelay/outbox/sink/rabbitsink"
	"github.com/commitrelay/outbox/sink/stdoutsink"
)

// sinks are the open sinks of a configuration.
type sinks struct {
	byName  map[string]relay.Sink
	closers []io.Closer
}

func (s sinks) close() {
	for _, c := range s.closers {
		_ = c.Close() // what was published is confirmed; there is nothing to save
	}
}

// openSinks makes every sink and reports the faults of all. It does not connect.
func openSinks(cfg config.Config, stdout io.Writer) (sinks, error) {
	open := sinks{byName: map[string]relay.Sink{}}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(cfg.Sinks)) {
		c := cfg.Sinks[name]
		sink, err := newSink(c, stdout)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				faults = append(faults, fmt.Errorf("%s: sinks.%s: %s", c.At, c.Name, strings.TrimSpace(line)))
			}
			continue
		}
		open.byName[name] = sink
		if c, ok := sink.(io.Closer); ok {
			open.closers = append(open.closers, c)
		}
	}
	return open, errors.Join(faults...)
}

// newSink is the one place that knows the types of sinks.
func newSink(c config.Sink, stdout io.Writer) (relay.Sink, error) {
	switch c.Type {
	case config.TypeNATS:
		return natssink.New(natssink.Config{
			URL:            c.URL.Reveal(),
			User:           c.User,
			Password:       c.Password.Reveal(),
			Token:          c.Token.Reveal(),
			CredsFile:      c.CredsFile,
			NKeySeedFile:   c.NKeySeedFile,
			CAFile:         c.TLS.CAFile,
			CertFile:       c.TLS.CertFile,
			KeyFile:        c.TLS.KeyFile,
			Stream:         c.Stream,
			Domain:         c.Domain,
			InboxPrefix:    c.InboxPrefix,
			ConnectTimeout: c.ConnectTimeout,
			AckTimeout:     c.AckTimeout,
		})
	case config.TypeRabbit:
		return rabbitsink.New(rabbitsink.Config{
			URL:             c.URL.Reveal(),
			User:            c.User,
			Password:        c.Password.Reveal(),
			CAFile:          c.TLS.CAFile,
			CertFile:        c.TLS.CertFile,
			KeyFile:         c.TLS.KeyFile,
			Exchange:        c.Exchange,
			ExchangeInTopic: c.ExchangeInTopic,
			ContentType:     c.ContentType,
			MaxMessageBytes: c.MaxMessageBytes,
			ConnectTimeout:  c.ConnectTimeout,
			AckTimeout:      c.AckTimeout,
		})
	case config.TypeKafka:
		return kafkasink.New(kafkasink.Config{
			URL:                    c.URL.Reveal(),
			User:                   c.User,
			Password:               c.Password.Reveal(),
			SASLMechanism:          c.SASLMechanism,
			CAFile:                 c.TLS.CAFile,
			CertFile:               c.TLS.CertFile,
			KeyFile:                c.TLS.KeyFile,
			Compression:            c.Compression,
			MaxMessageBytes:        c.MaxMessageBytes,
			AllowAutoTopicCreation: c.AllowAutoTopicCreation,
			ConnectTimeout:         c.ConnectTimeout,
			AckTimeout:             c.AckTimeout,
		})
	case config.TypeStdout:
		return stdoutsink.New(stdout), nil
	}
	return nil, fmt.Errorf("type %q is not known", c.Type)
}
