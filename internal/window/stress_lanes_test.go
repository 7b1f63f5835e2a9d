package window_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/internal/window"
)

// team is two relays that share the lanes of one subscription and keep handing them to each other: what is settled is stored,
// the lane released, and taken and loaded by whoever comes first.
type team struct {
	o     *outbox
	lanes int

	mu        sync.Mutex
	arrivals  arrivals
	handovers int
}

const teamName = "two relays"

// relay is one of the team.
type relay struct {
	*team
	id     string
	dice   *rand.Rand
	reader *window.Reader
	held   map[int]store.Lane
	open   map[int]window.Open
}

// startTeam subscribes, and returns one function for each relay, which reads until the writers have ended; the last relay
// reads what is left.
func startTeam(t testing.TB, o *outbox, lanes int, seed uint64) (*team, []func(ctx context.Context, ended <-chan struct{}) error) {
	t.Helper()
	if _, err := o.store.Subscribe(t.Context(), store.Subscription{Name: teamName, Lanes: lanes, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	tm := &team{o: o, lanes: lanes, arrivals: arrivals{name: teamName}}
	var all []func(context.Context, <-chan struct{}) error
	for i, id := range []string{owner, other} {
		all = append(all, func(ctx context.Context, ended <-chan struct{}) error {
			src := o.store.NewReader(nil, nil, lanes, 25, 1<<20)
			reading, err := src.Position(ctx)
			if err != nil {
				return err
			}
			r := &relay{
				team: tm, id: id, dice: rand.New(rand.NewPCG(seed, uint64(100+i))), reader: window.NewReader(src, reading),
				held: map[int]store.Lane{}, open: map[int]window.Open{},
			}
			if err := r.run(ctx, ended, i == 1); err != nil {
				return fmt.Errorf("relay %d: %w", i, err)
			}
			return nil
		})
	}
	return tm, all
}

func (r *relay) run(ctx context.Context, ended <-chan struct{}, last bool) error {
	for idle := 0; ; {
		over := false
		select {
		case <-ended:
			over = true
		default:
		}
		switch {
		case over && !last:
			return r.giveAll(ctx)
		case over && len(r.held) < r.lanes || len(r.held) == 0 || r.dice.IntN(6) == 0:
			idle = 0
			if err := r.take(ctx, 1+r.dice.IntN(r.lanes)); err != nil {
				return err
			}
		case !over && r.dice.IntN(4) == 0:
			if err := r.give(ctx, r.someLane()); err != nil {
				return err
			}
		}
		page, err := r.reader.Next(ctx, r.load)
		if err != nil {
			return err
		}
		switch {
		case page == nil:
		case page.At != nil && over && len(page.Lanes) == r.lanes:
			if idle++; idle == 3 {
				return nil
			}
		case page.At == nil:
			idle = 0
		}
		if page != nil {
			if err := r.settle(page); err != nil {
				return err
			}
		}
	}
}

// load says by chance that a lane is full.
func (r *relay) load(int) window.Load {
	return []window.Load{window.Dry, window.Dry, window.Dry, window.Dry, window.Some, window.Full}[r.dice.IntN(6)]
}

func (r *relay) settle(page *window.Page) error {
	for _, e := range page.Events {
		if !slices.Contains(page.Lanes, e.Lane) {
			return fmt.Errorf("event %d of lane %d in a page for %v", e.Seq, e.Lane, page.Lanes)
		}
	}
	for _, lane := range page.Lanes {
		if _, ours := r.held[lane]; !ours {
			return fmt.Errorf("a page for lane %d, which is not held", lane)
		}
		switch {
		case page.At != nil:
			r.open[lane] = window.Open{From: page.At}
		case page.Last:
			r.open[lane] = window.Open{From: page.Window.To}
		default:
			r.open[lane] = window.Open{From: page.Window.From, Window: page.Window, P: page.P}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrivals.add(page)
	return nil
}

func (r *relay) someLane() int {
	lanes := make([]int, 0, len(r.held))
	for lane := range r.held {
		lanes = append(lanes, lane)
	}
	return lanes[r.dice.IntN(len(lanes))]
}

func (r *relay) take(ctx context.Context, n int) error {
	var except []int
	for lane := range r.held {
		except = append(except, lane)
	}
	lanes, err := r.o.store.Acquire(ctx, teamName, r.id, n, time.Hour, except)
	if err != nil {
		return err
	}
	for _, l := range lanes {
		open, _, err := r.o.store.Load(ctx, l)
		if err != nil {
			return err
		}
		r.held[l.Lane], r.open[l.Lane] = l, open
		r.reader.Add(l.Lane, open)
	}
	return nil
}

func (r *relay) give(ctx context.Context, lane int) error {
	l, open := r.held[lane], r.open[lane]
	r.reader.Remove(lane)
	delete(r.held, lane)
	delete(r.open, lane)
	stored, err := r.o.store.StoreLanes(ctx, open.From.Run, []store.Settled{{Lane: l, Open: open}}, nil)
	if err != nil || !stored[lane] {
		return fmt.Errorf("lane %d was not stored: %w", lane, err)
	}
	r.mu.Lock()
	r.handovers++
	r.mu.Unlock()
	return r.o.store.Release(ctx, l)
}

func (r *relay) giveAll(ctx context.Context) error {
	for len(r.held) > 0 {
		if err := r.give(ctx, r.someLane()); err != nil {
			return err
		}
	}
	return nil
}
