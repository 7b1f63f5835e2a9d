//go:build unix

package torture

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
)

// faults carries out a plan.
type faults struct {
	fleet *fleet
	say   func(format string, args ...any)

	mu   sync.Mutex
	done []Fault
}

// run carries the plan out until ctx ends, which ends what lasts.
func (f *faults) run(ctx context.Context, plan []step) {
	begin := time.Now()
	var lasting sync.WaitGroup
	defer lasting.Wait()
	for _, s := range plan {
		if !pause(ctx, time.Until(begin.Add(s.at))) {
			return
		}
		lasting.Go(func() { f.inflict(ctx, s) })
	}
	<-ctx.Done()
}

// inflict does one fault, with its beginning and its end.
func (f *faults) inflict(ctx context.Context, s step) {
	fault := Fault{Kind: s.kind, Target: Target{Slot: s.slot}, Detail: s.detail(), Begin: time.Now()}
	f.say("%s", s)
	done, err := f.do(ctx, s, &fault)
	if err != nil {
		f.fleet.problem("%s: %v", s, err)
	}
	if !done {
		return
	}
	if fault.End.IsZero() {
		fault.End = time.Now()
	}
	f.mu.Lock()
	f.done = append(f.done, fault)
	f.mu.Unlock()
}

// do returns when the fault is over. done is false if there was nothing to hit.
func (f *faults) do(ctx context.Context, s step, fault *Fault) (done bool, err error) {
	switch s.kind {
	case Kill:
		id, ok := f.fleet.kill(s.slot)
		fault.Target, fault.End = Target(id), time.Now()
		if pause(ctx, s.length) && ok {
			_, err = f.fleet.start(s.slot, false)
		}
		return ok, err
	case Freeze:
		return f.freeze(ctx, s, fault)
	case Join:
		id, err := f.fleet.start(s.slot, false)
		fault.Target = Target(id)
		return err == nil, err
	case Leave:
		id, ok := f.fleet.leave(s.slot)
		fault.Target = Target(id)
		return ok, nil
	case Restart:
		return true, f.fleet.database.restart(ctx, s.length)
	case Terminate:
		return true, f.fleet.database.terminate(ctx)
	case BrokerDown:
		return true, f.fleet.broker.Restart(ctx, s.length, s.hard)
	case TopicGone:
		if err := f.fleet.broker.RefuseTopic(ctx, topicName(s.topic), true); err != nil {
			return true, err
		}
		pause(ctx, s.length)
		return true, f.fleet.broker.RefuseTopic(context.WithoutCancel(ctx), topicName(s.topic), false)
	}
	return f.link(ctx, s)
}

func (f *faults) freeze(ctx context.Context, s step, fault *Fault) (bool, error) {
	p, id, ok := f.fleet.running(s.slot)
	if !ok {
		return false, nil
	}
	fault.Target = Target(id)
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return false, nil //nolint:nilerr // it has just ended
	}
	pause(ctx, s.length)
	_ = p.signal(syscall.SIGCONT) // fails if it was killed meanwhile
	return true, nil
}

// link disturbs one relay's link to a server.
func (f *faults) link(ctx context.Context, s step) (bool, error) {
	proxy := f.fleet.slots[s.slot].toBroker
	switch s.kind {
	case CutDB, HoleDB, SlowDB:
		proxy = f.fleet.slots[s.slot].toDatabase
	}
	switch s.kind {
	case CutDB, CutBroker:
		proxy.Cut()
	case HoleDB, HoleBroker:
		proxy.Pause(s.direction)
		pause(ctx, s.length)
		proxy.Resume()
	case SlowDB, SlowBroker:
		proxy.DelayOnly(s.direction, s.delay)
		pause(ctx, s.length)
		proxy.DelayOnly(tcpproxy.Both, 0)
	default:
		return false, fmt.Errorf("no fault of kind %q", s.kind)
	}
	return true, nil
}
