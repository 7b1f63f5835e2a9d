//go:build unix

package torture

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os"
	"sync"
	"time"

	"github.com/commitrelay/outbox"
)

// Run tortures relays and returns what the checker says: Report.Err tells whether the promises were
// kept. Its own error says that the run could not be carried out, or that ctx ended. Everything that
// Run started has ended when it returns, and is removed, but for the folder of a run that failed.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	if o.Seed == 0 {
		n, err := rand.Int(rand.Reader, big.NewInt(1_000_000))
		if err != nil {
			return nil, fmt.Errorf("torture: choose a seed: %w", err)
		}
		o.Seed = 1 + n.Int64()
	}
	if o.Program == "" {
		if o.Program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("torture: %w", err)
		}
	}
	dir, err := os.MkdirTemp("", "commitrelay-torture-")
	if err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	r := &run{Options: o, dir: dir, name: "torture-" + randomName(), history: &history{}, began: time.Now()}
	r.say("seed %d; the same faults again: %s", o.Seed, o.replay())
	report, err := r.do(ctx)
	if closeErr := r.close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("torture: %w; journals and logs are in %s", err, dir)
	}
	if report.Err() != nil {
		r.explain(report)
		return report, nil
	}
	return report, os.RemoveAll(dir)
}

// run is one run.
type run struct {
	Options
	dir, name string
	began     time.Time
	history   *history
	database  *database
	broker    broker
	fleet     *fleet
	faults    *faults

	output   sync.Mutex
	arrivals []Arrival
	record   Record
	notes    []string // parked and dead events, for people
}

func randomName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails, says crypto/rand
	return hex.EncodeToString(b[:])
}

// say writes a line of progress.
func (r *run) say(format string, args ...any) {
	r.output.Lock()
	defer r.output.Unlock()
	fmt.Fprintf(r.Output, "%s %6.1fs %s\n", clock(time.Now()), time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *run) do(ctx context.Context) (*Report, error) {
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	if err := r.drain(ctx); err != nil {
		return nil, err
	}
	if err := r.collect(ctx); err != nil {
		return nil, err
	}
	report := Check(&r.record)
	report.Seed, report.Sink, report.Relays, report.Lanes = r.Seed, r.Sink, r.Relays, r.Lanes
	report.Duration, report.Problems = Seconds(r.Duration), r.fleet.problems
	return report, nil
}

func (r *run) open(ctx context.Context) (err error) {
	if r.database, err = startDatabase(ctx, r.Keys, r.Writers); err != nil {
		return err
	}
	if r.broker, err = startBroker(ctx, r.Options, r.dir, r.name); err != nil {
		return err
	}
	if r.fleet, err = newFleet(r.Options, r.dir, r.name, r.database, r.broker); err != nil {
		return err
	}
	for slot := 1; slot <= r.Relays; slot++ {
		if _, err := r.fleet.start(slot, false); err != nil {
			return err
		}
	}
	return nil
}

// load writes and breaks things for the duration.
func (r *run) load(ctx context.Context) error {
	steps := r.steps(r.Options)
	r.say("PostgreSQL %d, %s, %d relays, %d lanes, lease %v, %d writers, %d faults are planned",
		r.database.cluster.Major(), r.Sink, r.Relays, r.Lanes, r.Lease, r.Writers, len(steps))
	r.faults = &faults{fleet: r.fleet, say: r.say}
	loading, stop := context.WithTimeout(ctx, r.Duration)
	defer stop()
	var working sync.WaitGroup
	for n := range r.Writers {
		w := newWriter(n, r.database, r.history, r.Options)
		working.Go(func() { w.run(loading) })
	}
	working.Go(func() { r.faults.run(loading, steps) })
	for pause(loading, 5*time.Second) {
		c, u, x := r.history.counts()
		r.say("%d events committed, %d rolled back, %d not answered; %d relays run", c, u, x, r.fleet.count())
	}
	working.Wait()
	return ctx.Err()
}

// drain has as many relays as at the start deliver what is left, and then stops them.
func (r *run) drain(ctx context.Context) error {
	for slot := 1; slot < len(r.fleet.slots) && r.fleet.count() < r.Relays; slot++ {
		if _, _, ok := r.fleet.running(slot); ok {
			continue
		}
		if _, err := r.fleet.start(slot, false); err != nil {
			return err
		}
	}
	present, err := r.database.present(ctx)
	if err != nil {
		return err
	}
	if err := r.history.resolve(present); err != nil {
		return err
	}
	want := len(r.history.committed)
	r.say("load and faults are over; %d events are committed", want)
	if err := r.await(ctx, want); err != nil {
		return err
	}
	r.fleet.leaveAll()
	// Another one finds nothing to do: what was delivered is stored. If not, it shows.
	id, err := r.fleet.start(1, true)
	if err != nil {
		return err
	}
	select {
	case <-r.fleet.slots[1].process.exited:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(patience + r.Lease):
		r.fleet.problem("relay %s, which should have delivered what was left, has not ended", id)
	}
	return r.read(ctx)
}

// await reads until so many different events have arrived, or nothing moves any more.
func (r *run) await(ctx context.Context, want int) error {
	moved, told := time.Now(), time.Now()
	distinct := map[outbox.ID]bool{}
	for seen := 0; ; {
		if err := r.read(ctx); err != nil {
			return err
		}
		if len(r.arrivals) > seen {
			moved = time.Now()
		}
		for _, a := range r.arrivals[seen:] {
			distinct[a.ID] = true
		}
		seen = len(r.arrivals)
		switch {
		case len(distinct) >= want:
			return nil
		case time.Since(moved) > r.Quiet:
			r.say("nothing has arrived for %v", r.Quiet)
			return nil
		case time.Since(told) > 5*time.Second:
			told = time.Now()
			r.say("%d of %d events have arrived", len(distinct), want)
		}
		if !pause(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// read reads on what the broker holds.
func (r *run) read(ctx context.Context) error {
	arrivals, err := r.broker.Read(ctx)
	r.arrivals = append(r.arrivals, arrivals...)
	return err
}

// collect gathers what the checker needs.
func (r *run) collect(ctx context.Context) error {
	lanes, err := r.database.lanes(ctx, r.Lanes)
	if err != nil {
		return err
	}
	r.record = Record{
		Lease: r.Lease, Lane: lanes, Committed: r.history.committed, Undone: r.history.undone, Arrivals: r.arrivals, Faults: r.faults.done,
	}
	known := map[outbox.ID]Event{}
	for _, e := range r.history.committed {
		known[e.ID] = e
	}
	for _, id := range r.fleet.ids() {
		e, err := readJournal(r.fleet.journal(id), id)
		if errors.Is(err, os.ErrNotExist) {
			continue // it was killed before it had begun
		}
		if err != nil {
			return err
		}
		r.record.Calls = append(r.record.Calls, e.calls...)
		r.record.Stores = append(r.record.Stores, e.stores...)
		r.notes = append(r.notes, e.other...)
		for _, a := range e.repeats {
			if e, ok := known[a.ID]; ok {
				a.Key, a.N, a.EventType = e.Key, e.N, e.EventType
			}
			r.record.Arrivals = append(r.record.Arrivals, a)
		}
	}
	return nil
}

// close ends all that runs, the relays first.
func (r *run) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	if r.fleet != nil {
		r.fleet.close()
	}
	if r.broker != nil {
		errs = append(errs, r.broker.Close(ctx))
	}
	if r.database != nil {
		errs = append(errs, r.database.close())
	}
	return errors.Join(errs...)
}
