package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/google/go-cmp/cmp"
)

// messages makes one message per word; its letters are the key, the whole is the event type.
func messages(words string) []Message {
	var batch []Message
	for i, w := range strings.Fields(words) {
		batch = append(batch, Message{
			Event: outbox.Event{AggregateType: "t", AggregateID: strings.TrimRight(w, "0123456789"), Type: w},
			Seq:   int64(i + 1), Attempt: 1,
		})
	}
	return batch
}

func outcomes(t *testing.T, batch []Message, err error) []outcomeKind {
	t.Helper()
	kinds := make([]outcomeKind, len(batch))
	if err == nil {
		return kinds
	}
	var b *BatchError
	if !errors.As(err, &b) || len(b.Errs) != len(batch) {
		t.Fatalf("Publish = %v, want a *BatchError with %d entries", err, len(batch))
	}
	for i, e := range b.Errs {
		kinds[i] = outcomeOf(e).kind
	}
	return kinds
}

func TestEachCallsInOrder(t *testing.T) {
	var called []string
	sink := Each(func(_ context.Context, m Message) error {
		called = append(called, m.Event.Type)
		return nil
	})
	if err := sink.Publish(t.Context(), messages("a1 b1 a2 c1")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a1", "b1", "a2", "c1"}, called); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestEachOutcomes(t *testing.T) {
	fault := errors.New("fault")
	var called []string
	sink := Each(func(_ context.Context, m Message) error {
		called = append(called, m.Event.Type)
		switch m.Event.Type {
		case "a1":
			return fault
		case "b1":
			return Permanent(fault)
		case "c1":
			return RetryAfter(fault, time.Minute)
		case "d1":
			return fmt.Errorf("wrapped: %w", Unavailable(fault))
		case "e1":
			panic("boom")
		case "f1":
			return context.DeadlineExceeded // a time-out of its own, not ctx's
		}
		return nil
	})
	batch := messages("a1 b1 c1 d1 e1 f1 g1 a2 b2 c2 d2 e2 f2 g2 a3")
	err := sink.Publish(t.Context(), batch)
	want := []outcomeKind{
		retry, permanent, retry, unavailable, retry, retry, published,
		unknown, unknown, unknown, unknown, unknown, unknown, published, unknown,
	}
	if diff := cmp.Diff(want, outcomes(t, batch, err)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(strings.Fields("a1 b1 c1 d1 e1 f1 g1 g2"), called); diff != "" {
		t.Errorf("later events of a failed key must not be called; calls (-want +got):\n%s", diff)
	}
	be, ok := errors.AsType[*BatchError](err)
	if !ok {
		t.Fatalf("Publish: %v, want a *BatchError", err)
	}
	errs := be.Errs
	if got := outcomeOf(errs[2]).after; got != time.Minute {
		t.Errorf("RetryAfter became %v", got)
	}
	if got := errs[4].Error(); !strings.Contains(got, "boom") || !strings.Contains(got, "each_test.go:") {
		t.Errorf("panic became %q, want its text and its line", got)
	}
	if !errors.Is(errs[0], fault) {
		t.Errorf("error of fn is lost: %v", errs[0])
	}
}

func TestEachRuntimePanicNamesItsLine(t *testing.T) {
	sink := Each(func(_ context.Context, m Message) error {
		var p *Message
		return errors.New(p.Topic)
	})
	err := sink.Publish(t.Context(), messages("a1"))
	if err == nil || !strings.Contains(err.Error(), "nil pointer") || !strings.Contains(err.Error(), "each_test.go:") {
		t.Errorf("Publish = %v, want the panic and its line", err)
	}
}

func TestEachStopsWhenContextEnds(t *testing.T) {
	why := errors.New("lease is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	var called []string
	sink := Each(func(ctx context.Context, m Message) error {
		called = append(called, m.Event.Type)
		if m.Event.Type == "b1" {
			cancel(why)
			return ctx.Err()
		}
		return nil
	})
	batch := messages("a1 b1 c1")
	err := sink.Publish(ctx, batch)
	if diff := cmp.Diff([]outcomeKind{published, unknown, unknown}, outcomes(t, batch, err)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a1", "b1"}, called); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if !errors.Is(err, why) {
		t.Errorf("Publish = %v, want the cause of the context's end", err)
	}
}
