//go:build unix

package torture

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// callHeader names the call of Sink.Publish that a message was sent by.
const callHeader = "torture-call"

// subscription is the name of the only one.
const subscription = "torture"

// relayFlags are what a relay process is told.
type relayFlags struct {
	id       string
	database string
	sink     string
	url      string
	name     string
	journal  string
	lanes    int
	lease    time.Duration
	batch    int
	once     bool
}

func (f *relayFlags) bind(set *flag.FlagSet) {
	set.StringVar(&f.id, "id", "", "its name in journals and messages")
	set.StringVar(&f.database, "database", "", "URL of the database")
	set.StringVar(&f.sink, "sink", "", "kind of sink")
	set.StringVar(&f.url, "url", "", "URL of the broker")
	set.StringVar(&f.name, "name", "", "the run's name in the broker")
	set.StringVar(&f.journal, "journal", "", "file to note down what it does")
	set.IntVar(&f.lanes, "lanes", 1, "lanes of the subscription")
	set.DurationVar(&f.lease, "lease", 0, "lease")
	set.IntVar(&f.batch, "batch", 0, "most events in a batch")
	set.BoolVar(&f.once, "once", false, "deliver what is due, then exit")
}

// args are the flags as a command line has them.
func (f *relayFlags) args() []string {
	return []string{
		"relay", "-id", f.id, "-database", f.database, "-sink", f.sink, "-url", f.url, "-name", f.name, "-journal", f.journal,
		"-lanes", strconv.Itoa(f.lanes), "-lease", f.lease.String(), "-batch", strconv.Itoa(f.batch), fmt.Sprintf("-once=%t", f.once),
	}
}

// RelayMain is the role of a relay: it delivers until it is told to stop by SIGTERM, and returns its exit
// code.
func RelayMain(args []string, stderr io.Writer) int {
	var f relayFlags
	set := flag.NewFlagSet("relay", flag.ContinueOnError)
	set.SetOutput(stderr)
	f.bind(set)
	if err := set.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runRelay(ctx, f, slog.New(slog.NewTextHandler(stderr, nil))); err != nil {
		fmt.Fprintln(stderr, "relay:", err)
		return 1
	}
	return 0
}

func runRelay(ctx context.Context, f relayFlags, log *slog.Logger) (err error) {
	j, err := openJournal(f.journal)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.close()) }()
	cfg, err := pgxpool.ParseConfig(f.database)
	if err != nil {
		return fmt.Errorf("database: %w", err)
	}
	cfg.MaxConns = 4
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer pool.Close()
	to, topic, err := openSink(f, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	r, err := relay.New(pool, relay.Config{
		// The table is kept: it says afterwards what became of a COMMIT that was not answered.
		Retention: 6 * time.Hour,
		Lease:     f.lease, BatchEvents: f.batch, Version: "torture " + f.id, Logger: log,
		Hooks: []relay.Hooks{{
			Stored: func(_ string, lanes []int) { j.write(line{What: lineStored, Lanes: lanes}) },
			Parked: func(_ string, m relay.Message, err error) {
				j.write(line{What: lineParked, IDs: []outbox.ID{m.Event.ID}, Err: err.Error()})
			},
			Dead: func(_ string, m relay.Message, err error) {
				j.write(line{What: lineDead, IDs: []outbox.ID{m.Event.ID}, Err: err.Error()})
			},
		}},
		Subscriptions: []relay.Subscription{{
			Name: subscription, Sink: &notingSink{relay: f.id, sink: to, journal: j}, SinkName: f.sink, Topic: topic, Lanes: f.lanes,
			// What a sink refuses here it takes in the end: short pauses, and never give up.
			Backoff: 100 * time.Millisecond, MaxBackoff: 2 * time.Second, MaxAttempts: 1 << 20,
		}},
	})
	if err != nil {
		return err
	}
	if f.once {
		n, err := r.Drain(ctx)
		log.Info("delivered what was due", "events", n)
		return err
	}
	return r.Run(ctx)
}

// notingSink notes each call before and after it, and marks the messages with it.
type notingSink struct {
	relay   string
	sink    relay.Sink
	journal *journal
}

var _ relay.Sink = (*notingSink)(nil)

// Publish implements relay.Sink.
func (s *notingSink) Publish(ctx context.Context, batch []relay.Message) error {
	call := s.journal.begin(batch)
	mark := fmt.Sprintf("%s/%d", s.relay, call)
	marked := make([]relay.Message, len(batch))
	for i, m := range batch {
		headers := map[string]string{callHeader: mark}
		maps.Copy(headers, m.Event.Headers)
		m.Event.Headers = headers
		marked[i] = m
	}
	err := s.sink.Publish(ctx, marked)
	s.journal.end(call, len(batch), err)
	return err
}

// parseCall reads the header of a message. The zero CallID: it has none that can be read.
func parseCall(mark string) CallID {
	var c CallID
	if n, err := fmt.Sscanf(mark, "r%d.%d/%d", &c.Relay.Slot, &c.Relay.Life, &c.N); err != nil || n != 3 || c.String() != mark {
		return CallID{}
	}
	return c
}

// repeated notes that the broker dropped a repetition.
func (j *journal) repeated(m relay.Message) {
	c := parseCall(m.Event.Headers[callHeader])
	j.write(line{What: lineRepeat, Call: c.N, IDs: []outbox.ID{m.Event.ID}})
}

// closingSink is a sink that is ours to close.
type closingSink interface {
	relay.Sink
	Close() error
}

// openSink makes the sink, and the template of its topics.
func openSink(f relayFlags, j *journal) (to closingSink, topic string, err error) {
	open, ok := sinks[f.sink]
	if !ok {
		return nil, "", fmt.Errorf("unknown sink %q", f.sink)
	}
	return open(f, j)
}

// sinks make the relays' sinks.
var sinks = map[string]func(relayFlags, *journal) (closingSink, string, error){
	"nats":     openNATSSink,
	"rabbitmq": openRabbitSink,
	"kafka":    openKafkaSink,
}

// Main is the program of all processes of a run: the driver's, and with a role as the first argument that
// of a relay or a broker. It returns the exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "relay":
			return RelayMain(args[1:], stderr)
		case "nats":
			return NATSMain(args[1:], stderr)
		}
		fmt.Fprintf(stderr, "unknown role %q\n", args[0])
		return 2
	}
	return drive(args, stdout, stderr)
}

// onInterrupt is a context that Ctrl-C ends.
func onInterrupt() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}
