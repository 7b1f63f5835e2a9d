// Package testwait lets tests wait for events instead of sleeping. A wait ends as soon as the
// event is there; its deadline is long, because it is only ever reached by a test that fails.
package testwait

import (
	"testing"
	"time"
)

// Limit is how long a wait lasts before the test fails. It says nothing about how fast the
// tested code should be: slow machines are no failures.
const Limit = 60 * time.Second

// longest is the pause between two looks at a condition, once it has not held for a while.
const longest = 50 * time.Millisecond

// Until returns as soon as condition holds, and fails the test when that has not happened
// within Limit. what names the condition in the failure: "the lane is released". The condition is
// called by the caller's goroutine, so it may use t, and must not block.
func Until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	UntilNil(t, what, func() error {
		if condition() {
			return nil
		}
		return errNotYet
	})
}

// UntilNil is Until for a condition that knows why it does not hold: the failure shows the last
// error.
func UntilNil(t testing.TB, what string, condition func() error) {
	t.Helper()
	if err := poll(Limit, condition); err != nil {
		t.Fatalf("waited %v for this: %s: %v", Limit, what, err)
	}
}

// Recv receives from ch, and fails the test when nothing has come within Limit or when ch is
// closed.
func Recv[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case v, ok := <-ch:
		if !ok {
			t.Fatalf("waited for this on a channel that is closed: %s", what)
		}
		return v
	case <-timer.C:
		t.Fatalf("waited %v for this: %s", Limit, what)
	}
	panic("unreachable: Fatalf does not return")
}

// Closed waits until ch is closed (or sends), as context.Context.Done does, and fails the test
// when that has not happened within Limit.
func Closed[T any](t testing.TB, what string, ch <-chan T) {
	t.Helper()
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case <-ch:
	case <-timer.C:
		t.Fatalf("waited %v for this: %s", Limit, what)
	}
}

type notYet struct{}

func (notYet) Error() string { return "does not hold" }

var errNotYet error = notYet{}

// poll looks at condition until it returns nil, at first often and then every longest. It returns
// the last error.
func poll(limit time.Duration, condition func() error) error {
	deadline := time.Now().Add(limit)
	pause := time.Millisecond
	for {
		err := condition()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}
