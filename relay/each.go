package relay

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
)

// Each makes a Sink of a function that is called once per event, in order and one at a time per
// lane, for whoever only wants his code to run when something has happened:
//
//	relay.Each(func(ctx context.Context, m relay.Message) error {
//		return mailer.SendWelcome(ctx, m.Event.AggregateID)
//	})
//
// What fn returns decides what becomes of the event:
//
//   - nil: done, and fn is not called with it again;
//   - an error without a mark, or marked with Retry or RetryAfter: an attempt has failed. The
//     event is tried again with backoff, and is dead after Subscription.MaxAttempts. (That an
//     unmarked error spends an attempt is what sets Each apart from a Sink of one's own: one
//     event that fn can never handle does not stop all others.)
//   - an error marked with Permanent: the event is dead at once;
//   - an error marked with Unavailable: what fn needs is down. The event is tried again with
//     backoff, without an end;
//   - any unmarked error once ctx has ended: not known; fn is called again and no attempt is spent.
//
// A panic in fn is a failed attempt, with the panic's text as the reason.
//
// When an event of a key has failed, fn is not called with later events of that key before the
// matter is settled; other keys go on. fn should be idempotent, as after a crash it may see an
// event again, and must return soon after ctx has ended.
func Each(fn func(ctx context.Context, m Message) error) Sink {
	return SinkFunc(func(ctx context.Context, batch []Message) error {
		type key struct{ aggregateType, aggregateID string }
		var failed map[key]bool
		var errs []error // nil as long as all went well
		fail := func(i int, err error) {
			if errs == nil {
				errs = make([]error, len(batch))
			}
			errs[i] = err
		}
		for i := range batch {
			m := &batch[i]
			k := key{m.Event.AggregateType, m.Event.AggregateID}
			if ctx.Err() != nil {
				fail(i, fmt.Errorf("not called: %w", context.Cause(ctx)))
				continue
			}
			if failed[k] {
				fail(i, errHeldBack)
				continue
			}
			err := callEach(ctx, fn, *m)
			if err == nil {
				continue
			}
			if failed == nil {
				failed = make(map[key]bool)
			}
			failed[k] = true
			fail(i, err)
		}
		if errs == nil {
			return nil
		}
		return &BatchError{Errs: errs}
	})
}

var errHeldBack = errors.New("not called: an earlier event of its key failed")

// callEach calls fn and gives an unmarked error the mark that Each promises.
func callEach(ctx context.Context, fn func(context.Context, Message) error, m Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = Retry(fmt.Errorf("panic: %v%s", p, panicPlace()))
		}
	}()
	err = fn(ctx, m)
	if outcomeOf(err).kind == unknown && ctx.Err() == nil {
		err = Retry(err)
	}
	return err
}

// panicPlace names the line that panicked, for the deferred function that recovers. The reason
// of a dead event is all that people have to find the fault; a whole stack would not fit there.
func panicPlace() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])]) // not Callers, panicPlace, the deferred function
	for {
		frame, more := frames.Next()
		if frame.Function != "" && !strings.HasPrefix(frame.Function, "runtime.") {
			return fmt.Sprintf(" (%s, %s:%d)", path.Base(frame.Function), path.Base(frame.File), frame.Line)
		}
		if !more {
			return ""
		}
	}
}
