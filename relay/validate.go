package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/ident"
)

// minConns is what the relay needs at once: a second connection reads a position while a transaction is open.
const minConns = 2

var subscriptionName = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)

// withDefaults fills zero fields in and reports every fault of the configuration at once.
func (cfg Config) withDefaults(pool *pgxpool.Pool) (Config, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	orDefault(&cfg.Table, "public.outbox_events")
	orDefault(&cfg.Schema, "commitrelay")
	orDefault(&cfg.Lease, 10*time.Second)
	orDefault(&cfg.ShutdownTimeout, 10*time.Second)
	orDefault(&cfg.PollMin, 2*time.Millisecond)
	orDefault(&cfg.PollMax, 100*time.Millisecond)
	orDefault(&cfg.BatchEvents, 1000)
	orDefault(&cfg.BatchBytes, 4<<20)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}

	switch {
	case pool == nil:
		fault("pool: is nil")
	case pool.Config().MaxConns < minConns:
		fault("pool: MaxConns is %d: a relay needs at least %d", pool.Config().MaxConns, minConns)
	}
	if _, err := ident.Parse(cfg.Table); err != nil {
		faults = append(faults, err)
	}
	if err := ident.Valid(cfg.Schema); err != nil {
		fault("schema: %w", err)
	}
	if cfg.Lease < time.Second {
		fault("lease: %v is too short: at least 1s", cfg.Lease)
	}
	if cfg.ShutdownTimeout < 0 {
		fault("shutdown timeout: %v is negative", cfg.ShutdownTimeout)
	}
	if cfg.Retention < 0 {
		fault("retention: %v is negative", cfg.Retention)
	}
	if cfg.PollMin < 0 || cfg.PollMax < cfg.PollMin {
		fault("poll: the pause goes from %v to %v: want 0 < PollMin <= PollMax", cfg.PollMin, cfg.PollMax)
	}
	if cfg.BatchEvents < 0 || cfg.BatchBytes < 0 {
		fault("batch: %d events, %d bytes: want positive bounds", cfg.BatchEvents, cfg.BatchBytes)
	}
	if len(cfg.Subscriptions) == 0 {
		fault("subscriptions: there are none: name at least one")
	}
	subs := make([]Subscription, len(cfg.Subscriptions))
	seen := map[string]bool{}
	for i, sub := range cfg.Subscriptions {
		var err error
		if subs[i], err = sub.withDefaults(); err != nil {
			faults = append(faults, err)
		}
		if seen[sub.Name] {
			fault("subscription %q: there are two of that name", sub.Name)
		}
		seen[sub.Name] = true
	}
	cfg.Subscriptions = subs
	return cfg, errors.Join(faults...)
}

func (s Subscription) withDefaults() (Subscription, error) {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("subscription %q: "+format, append([]any{s.Name}, args...)...))
	}
	orDefault(&s.SinkName, s.Name)
	if d, ok := s.Sink.(interface{ DefaultTopic() string }); ok {
		orDefault(&s.Topic, d.DefaultTopic())
	}
	orDefault(&s.Topic, "{event_type}")
	orDefault(&s.Lanes, 16)
	orDefault(&s.Start, First)
	orDefault(&s.OnDead, Continue)
	orDefault(&s.MaxAttempts, 10)
	orDefault(&s.Backoff, time.Second)
	orDefault(&s.MaxBackoff, max(5*time.Minute, s.Backoff))

	if !subscriptionName.MatchString(s.Name) {
		fault("a name is 1 to 63 of a-z, 0-9, '_' and '-'")
	}
	if s.Sink == nil {
		fault("sink is nil")
	}
	if _, err := parseTopic(s.Topic); err != nil {
		fault("%w", err)
	}
	if s.Lanes < 1 || s.Lanes > 1024 || s.Lanes&(s.Lanes-1) != 0 {
		fault("%d lanes: want a power of two from 1 to 1024", s.Lanes)
	}
	if s.Start != First && s.Start != Now {
		fault("start %q: want %q or %q", s.Start, First, Now)
	}
	if s.OnDead != Continue && s.OnDead != Block {
		fault("on_dead %q: want %q or %q", s.OnDead, Continue, Block)
	}
	if s.MaxAttempts < 0 {
		fault("max attempts: %d is negative", s.MaxAttempts)
	}
	if s.Backoff < 0 || s.MaxBackoff < s.Backoff {
		fault("backoff goes from %v to %v: want 0 < Backoff <= MaxBackoff", s.Backoff, s.MaxBackoff)
	}
	for _, list := range []struct {
		field string
		names []string
	}{{"aggregate_type", s.Filter.AggregateTypes}, {"event_type", s.Filter.EventTypes}} {
		for _, n := range list.names {
			if n == "" || strings.ContainsRune(n, 0) || strings.Contains(strings.TrimSuffix(n, "*"), "*") {
				fault("filter: %s %q: want an exact name, or a prefix that ends in one '*'", list.field, n)
			}
		}
	}
	return s, errors.Join(faults...)
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
