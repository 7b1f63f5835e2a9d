package torture

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Options say how long and how hard. The zero value of a field means its default.
type Options struct {
	// Duration is how long there are writers and faults. Then the relays drain. Default 60 s.
	Duration time.Duration

	// Seed decides on the faults and on the shapes of the writers' transactions. Default: a random
	// one. The same seed with the same options plans the same faults.
	Seed int64

	// Sink is nats (a server of the run's own), rabbitmq or kafka (those that scripts/services has
	// started). Default nats.
	Sink string

	// Relays is the number of relay processes at the start; joins add up to two. Default 3.
	Relays int

	// Lanes is the subscription's number of lanes. Default 16.
	Lanes int

	// Lease is the relays' lease. Default 5 s.
	Lease time.Duration

	// Writers is the number of connections that write, and Rate the transactions that they begin per
	// second, all together. Defaults 8 and 400.
	Writers, Rate int

	// Keys is the number of aggregates that the writers share. Default 60.
	Keys int

	// Batch is the most events in one call of a sink. Default 100: small, so that there are many.
	Batch int

	// Kinds are the kinds of faults. Default: all that the sink can have.
	Kinds []Kind

	// Calm plans no faults at all. Default false.
	Calm bool

	// Program is the command whose first argument is one of the roles "relay" and "nats". Default:
	// the running program.
	Program string

	// RelayProgram runs the relays, if it is not Program.
	RelayProgram string

	// Quiet is how long, when load and faults are over, nothing must have arrived until what is
	// missing counts as lost. Default the lease and 30 s.
	Quiet time.Duration

	// Output receives progress and, after a failure, what it takes to understand it. Default: none.
	Output io.Writer

	steps func(Options) []step // instead of plan
}

const maxSlots = 64

// slots are the places for relays.
func (o Options) slots() int { return min(o.Relays+2, maxSlots) }

// complete fills in the defaults, and reports all faults of the options at once.
func (o Options) complete() (Options, error) {
	o.Duration = or(o.Duration, 60*time.Second)
	o.Sink = or(o.Sink, "nats")
	o.Relays = or(o.Relays, 3)
	o.Lanes = or(o.Lanes, 16)
	o.Lease = or(o.Lease, 5*time.Second)
	o.Writers = or(o.Writers, 8)
	o.Rate = or(o.Rate, 400)
	o.Keys = or(o.Keys, 60)
	o.Batch = or(o.Batch, 100)
	o.Quiet = or(o.Quiet, o.Lease+30*time.Second)
	if o.steps == nil {
		o.steps = plan
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	able, known := sinkKinds[o.Sink]
	fault(!known, "sink %q: want nats, rabbitmq or kafka", o.Sink)
	if o.Kinds == nil {
		o.Kinds = able
	}
	if o.Calm {
		o.Kinds = nil
	}
	for _, k := range o.Kinds {
		fault(known && !slices.Contains(able, k), "fault %q: want out of %v", k, able)
	}
	fault(o.Duration < 0, "duration %v: want more than 0", o.Duration)
	fault(o.Lease < time.Second, "lease %v: want a second or more", o.Lease)
	fault(o.Relays < 0 || o.Relays > maxSlots-2, "%d relays: want 1 to %d", o.Relays, maxSlots-2)
	fault(o.Lanes < 0 || o.Lanes > 1024 || o.Lanes&(o.Lanes-1) != 0, "%d lanes: want a power of two, 1 to 1024", o.Lanes)
	fault(o.Writers < 0 || o.Writers > 64, "%d writers: want 1 to 64", o.Writers)
	fault(o.Rate < 0, "rate %d: want transactions per second", o.Rate)
	fault(o.Keys < 0, "%d keys: want 1 or more", o.Keys)
	fault(o.Batch < 0, "batches of %d events: want 1 or more", o.Batch)
	return o, errors.Join(errs...)
}

// sinkKinds are the faults that each sink's broker can have.
var sinkKinds = map[string][]Kind{
	"nats":     Kinds,
	"rabbitmq": Kinds,
	"kafka":    slices.DeleteFunc(slices.Clone(Kinds), func(k Kind) bool { return k == TopicGone }),
}

func or[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
