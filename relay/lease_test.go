package relay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/commitrelay/outbox/internal/store"
)

const lease = 10 * time.Second

// pass lets time go by, which costs none inside a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// Publishing ends before the database would give the lane to another: a fifth of the lease earlier.
func TestTenureEndsBeforeTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTenure(t.Context(), store.Lane{}, time.Now(), lease)
		defer tn.close()
		pass(8*time.Second - time.Nanosecond)
		synctest.Wait()
		if err := tn.check(); err != nil {
			t.Errorf("after just under 8s of 10s: %v", err)
		}
		pass(time.Nanosecond)
		synctest.Wait()
		if err := tn.check(); !errors.Is(err, errLeaseOver) {
			t.Errorf("after 8s of 10s: %v, want %v", err, errLeaseOver)
		}
		if cause := context.Cause(tn.ctx); !errors.Is(cause, errLeaseOver) {
			t.Errorf("a call of the sink ends because of %v", cause)
		}
		tn.extend(time.Now()) // too late
		if err := tn.check(); !errors.Is(err, errLeaseOver) {
			t.Errorf("after an extension that came too late: %v", err)
		}
	})
}

// What counts is when a renewal was sent, not when its answer came.
func TestTenureExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTenure(t.Context(), store.Lane{}, time.Now(), lease)
		defer tn.close()
		pass(3 * time.Second)
		sent := time.Now()
		pass(2 * time.Second) // the answer takes this long
		tn.extend(sent)
		pass(6*time.Second - time.Nanosecond)
		synctest.Wait()
		if err := tn.check(); err != nil {
			t.Errorf("just under 8s after the renewal was sent: %v", err)
		}
		pass(time.Nanosecond)
		synctest.Wait()
		if err := tn.check(); !errors.Is(err, errLeaseOver) {
			t.Errorf("8s after the renewal was sent: %v", err)
		}
	})
}

// A process that was frozen wakes up after its lease: it finds out before it publishes, whether its timers have run or not.
func TestTenureAfterAFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tn := newTenure(t.Context(), store.Lane{}, time.Now(), lease)
		defer tn.close()
		tn.deadline.Stop() // frozen
		pass(lease)
		if err := tn.check(); !errors.Is(err, errLeaseOver) {
			t.Errorf("check: %v, want %v", err, errLeaseOver)
		}
		if tn.ctx.Err() == nil {
			t.Error("the tenure goes on")
		}
	})
}
