package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

// ErrLanesHeld is returned by Drain when lanes belong to another live relay.
var ErrLanesHeld = errors.New("lanes are held by another relay")

// Relay moves committed events from the outbox to sinks. Any number of relays may run with the same
// subscriptions, in one process or in many: each lane is delivered by one of them at a time.
type Relay struct {
	pool   *pgxpool.Pool
	cfg    Config
	log    *slog.Logger
	info   store.RelayInfo
	held   holdings
	health *watch
	db     database
	busy   sync.Mutex // one Run or Drain at a time

	checked  bool         // the outbox was found fit
	buffered atomic.Int64 // bytes read and not published
}

// New validates cfg, reporting every fault at once, and returns a Relay. It does not connect. The pool
// must allow at least 2 connections (4 are enough) and stays the caller's to close.
func New(pool *pgxpool.Pool, cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults(pool)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := &Relay{pool: pool, cfg: cfg, log: cfg.Logger, health: newWatch(cfg.Subscriptions, max(cfg.Lease, sinkPatience))}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	r.info = store.RelayInfo{
		Host: host, PID: os.Getpid(), Version: cfg.Version, Lease: cfg.Lease,
		Subscriptions: []string{}, Configurations: map[string]store.Subscription{},
	}
	for _, s := range cfg.Subscriptions {
		r.info.Subscriptions = append(r.info.Subscriptions, s.Name)
		r.info.Configurations[s.Name] = s.stored()
	}
	return r, nil
}

// Health says how the relay fares. It asks nobody and is safe to call at any time.
func (r *Relay) Health() Health { return r.health.health() }

// Run delivers until ctx ends. Then it finishes what is in flight, for ShutdownTimeout at most, stores
// what is settled, gives its lanes back and returns nil.
//
// PostgreSQL or a sink that does not answer is waited for. Run returns an error only if it cannot begin:
// what migrate.Check finds: tables, rights, sequence, triggers.
// Run and Drain of one Relay wait for each other.
func (r *Relay) Run(ctx context.Context) error {
	r.busy.Lock()
	defer r.busy.Unlock()
	groups, w, err := r.begin(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	hard, over := r.shutdown(ctx)
	defer over()
	stop := r.beat(hard, w.store)
	var wg sync.WaitGroup
	for _, g := range groups {
		wg.Go(func() { g.run(ctx, hard) })
	}
	wg.Go(func() { w.turn(ctx) })
	wg.Wait()
	stop()
	return nil
}

// Drain delivers all that is due now and returns how many events the sinks confirmed. It does not wait for
// a sink that is down: that is its error. If lanes belong to another live relay it delivers what it can
// and returns ErrLanesHeld. For tests, and for those who run a relay from cron.
func (r *Relay) Drain(ctx context.Context) (int, error) {
	r.busy.Lock()
	defer r.busy.Unlock()
	groups, w, err := r.begin(ctx)
	if err != nil {
		return 0, err
	}
	hard, over := r.shutdown(ctx)
	defer over()
	stop := r.beat(hard, w.store)
	defer stop()
	var n int
	var errs []error
	for _, g := range groups {
		delivered, err := g.session(ctx, hard, true)
		n += delivered
		if errors.Is(err, errLanesChanged) {
			delivered, err = g.session(ctx, hard, true)
			n += delivered
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("subscription %q: %w", g.sub.Name, err))
		}
	}
	if len(errs) == 0 {
		errs = append(errs, ctx.Err())
	}
	if _, err := w.empty(ctx); err != nil { // a later one does it
		r.log.Debug("give space back", "error", err)
	}
	return n, errors.Join(errs...)
}

// begin connects, waiting for a server that does not answer, and makes the subscriptions known.
func (r *Relay) begin(ctx context.Context) ([]*group, *wheel, error) {
	r.info.ID = newRelayID()
	for n := 1; ; n++ {
		groups, w, err := r.tryBegin(ctx)
		if err == nil {
			r.databaseUp()
			return groups, w, nil
		}
		var unfit unfitError
		if ctx.Err() != nil || errors.As(err, &unfit) || !store.Transient(err) {
			return nil, nil, fmt.Errorf("relay: %w", err)
		}
		r.databaseDown(ctx, err)
		for i := range r.cfg.Subscriptions {
			r.health.update(i, func(h *SubscriptionHealth) { h.State, h.Error = DatabaseOut, err.Error() })
		}
		wait(ctx, backoff(databaseBackoff, databaseMaxBackoff, n))
	}
}

func (r *Relay) tryBegin(ctx context.Context) ([]*group, *wheel, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	table, err := ident.Parse(r.cfg.Table)
	if err != nil {
		return nil, nil, err
	}
	if err := r.check(ctx); err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, r.pool, table, r.cfg.Schema)
	if err != nil {
		return nil, nil, err
	}
	w, err := r.newWheel(ctx, st)
	if err != nil {
		return nil, nil, err
	}
	var groups []*group
	for i, sub := range r.cfg.Subscriptions {
		was, err := st.Subscribe(ctx, sub.stored(), sub.Start == Now)
		if err != nil {
			return nil, nil, err
		}
		log := r.log.With("subscription", sub.Name)
		if was.Changed {
			log.Warn("another configuration of this subscription was stored and is replaced: do all its relays have this one?")
		}
		if was.Lanes != sub.Lanes {
			log.Info("the number of lanes in the database counts, not that in the configuration", "lanes", was.Lanes, "configured", sub.Lanes)
		}
		topic, err := parseTopic(sub.Topic)
		if err != nil {
			return nil, nil, err
		}
		groups = append(groups, &group{
			relay: r, index: i, sub: sub, topic: topic, store: st, log: log, sink: newSinkState(), memory: map[int]*memory{},
		})
	}
	r.log.Info("relay begins", "table", st.Events().String(), "relay", r.info.ID)
	return groups, w, nil
}

// check looks, once, for what would keep the relay from working or let it lose events: rights, the sequence, triggers.
func (r *Relay) check(ctx context.Context) error {
	if r.checked {
		return nil
	}
	findings, err := migrate.Check(ctx, r.pool, migrate.Options{Table: r.cfg.Table, Schema: r.cfg.Schema})
	if err != nil {
		return err
	}
	for _, f := range findings {
		if f.Severity == migrate.Warning {
			r.log.Warn(f.Problem, "fix", f.Fix)
		}
	}
	if err := findings.Err(); err != nil {
		return unfitError{err}
	}
	r.checked = true
	return nil
}

// unfitError says that the outbox is not fit for relays until a person mends it.
type unfitError struct{ error }

func (e unfitError) Unwrap() error { return e.error }

// newRelayID is a random uuid.
func newRelayID() string {
	var id outbox.ID
	_, _ = rand.Read(id[:]) // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// shutdown returns a context that outlives ctx by the time for shutdown.
func (r *Relay) shutdown(ctx context.Context) (hard context.Context, over func()) {
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	timer := time.NewTimer(r.cfg.ShutdownTimeout)
	timer.Stop()
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		timer.Reset(r.cfg.ShutdownTimeout)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			r.log.Warn("time for shutdown is over, breaking off")
			cancel()
		}
	}()
	return hard, func() { close(done); <-ended; cancel() }
}

// beat renews leases in the background until the returned function is called, which says goodbye.
func (r *Relay) beat(ctx context.Context, st *store.Store) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.heartbeat(ctx, st, r.cfg.Lease/3) // others share with us from now on
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.heartbeats(ctx, st)
	}()
	return func() {
		cancel()
		<-done
		parting, cancel := context.WithTimeout(context.WithoutCancel(ctx), partingTime)
		defer cancel()
		if err := st.Goodbye(parting, r.info.ID); err != nil {
			r.log.Debug("goodbye", "error", err)
		}
	}
}
