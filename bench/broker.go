package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/commitrelay/outbox/relay"
)

// destination is a stream, queue or topic of one measurement's own, removed by Close.
type destination interface {
	// Topic is where events go.
	Topic() string

	// Sink makes the sink that relays use.
	Sink() (closingSink, error)

	// Config is that sink in a relay's configuration, in YAML, without the URL.
	Config() string

	// Count is the number of messages that the broker holds.
	Count(ctx context.Context) (int, error)

	// Blast publishes by the broker's client library alone, as fast as that goes: all is sent before the first
	// confirmation is looked at. It returns when all is confirmed.
	Blast(ctx context.Context, messages []relay.Message) error

	Close(ctx context.Context) error
}

type closingSink interface {
	relay.Sink
	io.Closer
}

// broker is one of those under test.
type broker struct {
	name string
	url  string
	open func(ctx context.Context, url, name string) (destination, error)
}

// brokerOf finds a broker by its name.
func brokerOf(name string) (broker, error) {
	b := broker{name: name}
	variable := "COMMITRELAY_TEST_" + strings.ToUpper(name)
	switch name {
	case "nats":
		b.open = openNATS
	case "kafka":
		b.open = openKafka
	case "rabbitmq":
		b.open = openRabbit
	default:
		return b, fmt.Errorf("--sink %q: want nats, rabbitmq or kafka", name)
	}
	if b.url = os.Getenv(variable); b.url == "" {
		return b, fmt.Errorf(`%s is not set: run eval "$(../scripts/services env)"`, variable)
	}
	return b, nil
}

// with calls use with a new destination, and removes it.
func (b broker) with(ctx context.Context, use func(destination) error) (err error) {
	d, err := b.open(ctx, b.url, "bench_"+strings.ToLower(rand.Text()))
	if err != nil {
		return fmt.Errorf("%s: %w", b.name, err)
	}
	defer func() {
		if closeErr := d.Close(context.WithoutCancel(ctx)); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: clean up: %w", b.name, closeErr))
		}
	}()
	return use(d)
}

const (
	lookEvery = 5 * time.Millisecond // at the broker's count
	patience  = 30 * time.Second     // without one more message
)

// arrivals says when messages came to a broker.
type arrivals struct {
	started time.Time // the last look at which there was none
	ended   time.Time // the first look at which all were there
	total   int
}

// perSecond counts from the first message's arrival (the last moment at which there was none) to the last one's.
func (a arrivals) perSecond() float64 { return float64(a.total) / a.ended.Sub(a.started).Seconds() }

// watch asks the broker until it holds n messages. Asking takes it little and a consumer none, so that what is
// measured has the machine to itself.
func watch(ctx context.Context, d destination, n int) (arrivals, error) {
	a := arrivals{started: time.Now(), total: n}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	last, progress := 0, time.Now()
	for {
		now := time.Now()
		count, err := d.Count(ctx)
		switch {
		case err != nil:
			return a, fmt.Errorf("count messages: %w", err)
		case count >= n:
			a.ended = time.Now()
			return a, nil
		case count == 0:
			a.started = now
		case count > last:
			last, progress = count, now
		}
		if now.Sub(progress) > patience {
			return a, fmt.Errorf("nothing arrived for %v: the broker has %d of %d events", patience, count, n)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return a, context.Cause(ctx)
		}
	}
}

// exactly is an error unless the broker holds n messages: neither a lost one nor a copy.
func exactly(ctx context.Context, d destination, n int) error {
	count, err := d.Count(ctx)
	if err != nil {
		return fmt.Errorf("count messages: %w", err)
	}
	if count != n {
		return fmt.Errorf("the broker has %d messages of %d events", count, n)
	}
	return nil
}
