// Package demo shows the outbox at work, and counts: writers register users in transactions that
// also insert an event, relays publish, a consumer receives, and a ledger of the commits and the
// arrivals says what was lost, invented, doubled or out of order.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/migrate"
)

// Options say what to show. The zero value of a field means its default.
type Options struct {
	// Database is the URL of a PostgreSQL, in which the demo makes schemas of its own. Default: a
	// temporary server.
	Database string

	// Sink is the URL of a NATS (nats://, tls://), a RabbitMQ (amqp://, amqps://) or a Kafka (kafka://,
	// kafka+ssl://). Default: a NATS server in this process.
	Sink string

	// Duration is how long the writers write. Default DefaultDuration.
	Duration time.Duration

	// Wait is how long, after the load, the demo waits without any new arrival before what has not
	// arrived counts as lost. Default DefaultWait.
	Wait time.Duration

	// Rate is the number of committed events per second. Default 0: as fast as it goes.
	Rate int

	// Writers is the number of connections that write. Default DefaultWriters.
	Writers int

	// Relays is the number of relays, or copies of the naive poller. Default 3.
	Relays int

	// Naive shows the tutorial's poller instead of commitrelay.
	Naive bool

	// Output receives the progress, and warnings of the relays. Default: neither is shown.
	Output io.Writer

	// Quiet leaves only the warnings.
	Quiet bool

	// Version is the name of this build.
	Version string
}

// The defaults of a demo, sized for a laptop with two cores.
const (
	DefaultDuration = 10 * time.Second
	DefaultWait     = 15 * time.Second
	DefaultRate     = 500
	DefaultWriters  = 8
)

// The modes in a Result.
const (
	modeRelay = "commitrelay"
	modeNaive = "naive"
)

const maxWorkers = 256 // writers, relays

// complete fills in the defaults and reports all faults at once.
func (o Options) complete() (Options, error) {
	set := func(n *int, def int) {
		if *n == 0 {
			*n = def
		}
	}
	set(&o.Writers, DefaultWriters)
	set(&o.Relays, 3)
	if o.Duration == 0 {
		o.Duration = DefaultDuration
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.Output == nil {
		o.Output, o.Quiet = io.Discard, true
	}
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(o.Duration < 0, "duration %v: want more than 0", o.Duration)
	fault(o.Wait < 0, "wait %v: want more than 0", o.Wait)
	fault(o.Rate < 0, "rate %d: want events per second, or 0 for as many as possible", o.Rate)
	fault(o.Writers < 0 || o.Writers > maxWorkers, "%d writers: want 1 to %d", o.Writers, maxWorkers)
	fault(o.Relays < 0 || o.Relays > maxWorkers, "%d relays: want 1 to %d", o.Relays, maxWorkers)
	fault(brokerOf(o.Sink) == nil, "sink: want a URL that begins with nats://, tls://, amqp://, amqps://, kafka:// or kafka+ssl://")
	if o.Database != "" {
		_, err := pgxpool.ParseConfig(o.Database)
		fault(err != nil, "database: %w", err)
	}
	return o, errors.Join(errs...)
}

// Validate reports all faults of o at once. It connects to nothing.
func (o Options) Validate() error {
	_, err := o.complete()
	return err
}

// ErrInterrupted is Run's error when its context ended and all that it had made is removed.
var ErrInterrupted = errors.New("interrupted; all that the demo made is removed")

// Run shows the demo and returns what it counted. The error says that the demo could not be shown
// to its end; whether what was counted is good is for Result.Err to say. Everything that Run made is
// removed when it returns, also when ctx ends: then the error is ErrInterrupted.
func Run(ctx context.Context, o Options) (result Result, err error) {
	o, err = o.complete()
	if err != nil {
		return Result{}, err
	}
	d := &demo{Options: o, progress: newProgress(o.Output, o.Quiet), ledger: newLedger()}
	d.logger = slog.New(slog.NewTextHandler(d.progress, &slog.HandlerOptions{Level: slog.LevelWarn}))
	hint := context.AfterFunc(ctx, func() { d.progress.Say("interrupted: removing what was made (interrupt again to end at once)") })
	defer hint()
	defer func() { err = d.cleanUp(ctx, err) }()
	if err := d.open(ctx); err != nil {
		return Result{}, err
	}
	return d.play(ctx)
}

// demo is one demo on its way.
type demo struct {
	Options
	progress *progress
	logger   *slog.Logger
	ledger   *ledger

	database database
	pool     *pgxpool.Pool // the application's
	broker   broker

	undo []func(context.Context) error // what removes what was made, in the order of the making
}

// onExit has fn called in the end, before those that came earlier.
func (d *demo) onExit(fn func(context.Context) error) { d.undo = append(d.undo, fn) }

// cleanUp removes what the demo made, even if ctx has ended, and adds what could not be removed to
// err.
func (d *demo) cleanUp(ctx context.Context, err error) error {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	var errs []error
	for _, undo := range slices.Backward(d.undo) {
		errs = append(errs, undo(ctx))
	}
	left := errors.Join(errs...)
	switch {
	case !interrupted:
		return errors.Join(err, left)
	case left == nil:
		return ErrInterrupted
	}
	return fmt.Errorf("interrupted, but not all is removed: %w", left)
}

// open makes the places that the events come from and go to.
func (d *demo) open(ctx context.Context) error {
	name := newName()
	url := d.Database
	if url == "" {
		began := time.Now()
		cluster, err := pgtemp.Start(ctx, pgtemp.Options{})
		if err != nil {
			return err
		}
		d.onExit(func(context.Context) error { return cluster.Close() })
		url = cluster.URL()
		d.progress.Say("PostgreSQL %d, temporary, started in %.1f s", cluster.Major(), time.Since(began).Seconds())
	}
	if err := d.openDatabase(ctx, url, name); err != nil {
		return fmt.Errorf("prepare the database: %w", err)
	}
	var err error
	if d.broker, err = brokerOf(d.Sink)(ctx, d.Sink, name); err != nil {
		return err
	}
	d.onExit(d.broker.Close)
	d.progress.Say("%s", d.broker)
	return nil
}

func (d *demo) openDatabase(ctx context.Context, url, name string) (err error) {
	if d.database, err = newDatabase(url, name); err != nil {
		return err
	}
	if d.Database != "" {
		d.onExit(d.database.drop)
		d.progress.Say("PostgreSQL as given, schemas %s and %s", d.database.schema, d.database.state)
	}
	if err := d.database.run(ctx, "create"); err != nil {
		return err
	}
	if d.pool, err = d.openPool(ctx, d.Writers); err != nil {
		return err
	}
	if d.Naive {
		return d.database.run(ctx, "create_tutorial")
	}
	return migrate.Up(ctx, d.pool, migrate.Options{Table: d.database.table(), Schema: d.database.state})
}

// openPool opens a pool that is closed in the end.
func (d *demo) openPool(ctx context.Context, n int) (*pgxpool.Pool, error) {
	pool, err := d.database.pool(ctx, n)
	if err != nil {
		return nil, err
	}
	d.onExit(func(context.Context) error { pool.Close(); return nil })
	return pool, nil
}
