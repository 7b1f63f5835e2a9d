//go:build unix

package torture

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
)

// bind makes flags of the options.
func (o *Options) bind(set *flag.FlagSet) {
	set.DurationVar(&o.Duration, "duration", 0, "how long to write and to break things (default 60s)")
	set.Int64Var(&o.Seed, "seed", 0, "of the faults (default: a random one)")
	set.StringVar(&o.Sink, "sink", "", "nats, rabbitmq or kafka (default nats)")
	set.IntVar(&o.Relays, "relays", 0, "relays at the start (default 3)")
	set.IntVar(&o.Lanes, "lanes", 0, "lanes of the subscription (default 16)")
	set.DurationVar(&o.Lease, "lease", 0, "the relays' lease (default 5s)")
	set.IntVar(&o.Rate, "rate", 0, "transactions per second (default 400)")
	set.IntVar(&o.Writers, "writers", 0, "connections that write (default 8)")
	set.IntVar(&o.Keys, "keys", 0, "aggregates that the writers share (default 60)")
	set.IntVar(&o.Batch, "batch", 0, "most events in a batch (default 100)")
	set.Func("faults", "kinds of faults, separated by commas; none for no faults (default all)", func(s string) error {
		o.Calm = s == "none"
		if o.Calm {
			return nil
		}
		o.Kinds = nil
		for name := range strings.SplitSeq(s, ",") {
			o.Kinds = append(o.Kinds, Kind(strings.TrimSpace(name)))
		}
		return nil
	})
}

// replay is the command for the same faults.
func (o *Options) replay() string {
	args := fmt.Sprintf("make torture SEED=%d DURATION=%v SINK=%s RELAYS=%d LANES=%d LEASE=%v", o.Seed, o.Duration, o.Sink, o.Relays, o.Lanes, o.Lease)
	var more []string
	if o.Calm {
		more = append(more, "-faults none")
	} else if len(o.Kinds) < len(sinkKinds[o.Sink]) {
		kinds := make([]string, len(o.Kinds))
		for i, k := range o.Kinds {
			kinds[i] = string(k)
		}
		more = append(more, "-faults "+strings.Join(kinds, ","))
	}
	for _, f := range []struct {
		name string
		got  int
		def  int
	}{{"rate", o.Rate, 400}, {"writers", o.Writers, 8}, {"keys", o.Keys, 60}, {"batch", o.Batch, 100}} {
		if f.got != f.def {
			more = append(more, fmt.Sprintf("-%s %d", f.name, f.got))
		}
	}
	if len(more) > 0 {
		args += fmt.Sprintf(" ARGS=%q", strings.Join(more, " "))
	}
	return args
}

// drive is the command: 0 if all promises were kept, 1 if not, 2 if that could not be found out.
func drive(args []string, stdout, stderr io.Writer) int {
	o := Options{Output: stderr}
	set := flag.NewFlagSet("torture", flag.ContinueOnError)
	set.SetOutput(stderr)
	o.bind(set)
	if err := set.Parse(args); err != nil {
		return 2
	}
	if set.NArg() > 0 {
		fmt.Fprintf(stderr, "unexpected argument %q\n", set.Arg(0))
		return 2
	}
	ctx, stop := onInterrupt()
	defer stop()
	report, err := Run(ctx, o)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	text, err := json.Marshal(report)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 2
	}
	fmt.Fprintf(stdout, "%s\n", text)
	if report.Err() != nil {
		return 1
	}
	return 0
}
