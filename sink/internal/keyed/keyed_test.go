package keyed_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/internal/keyed"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// batch makes one message per letter of keys.
func batch(keys string) []relay.Message {
	var ms []relay.Message
	for _, k := range keys {
		ms = append(ms, relay.Message{Event: outbox.Event{AggregateType: "t", AggregateID: string(k)}})
	}
	return ms
}

func takeAll(b *keyed.Batch) []int {
	var taken []int
	for {
		i, ok := b.Next()
		if !ok {
			return taken
		}
		taken = append(taken, i)
	}
}

func TestOnlyOneMessagePerKeyIsInFlight(t *testing.T) {
	b := keyed.New(batch("abacab"))
	steps := []struct {
		settle int // -1: the start
		want   []int
	}{
		{-1, []int{0, 1, 3}},
		{1, []int{5}},
		{0, []int{2}},
		{0, nil}, // a repeated acknowledgement
		{3, nil},
		{2, []int{4}},
		{5, nil},
		{4, nil},
	}
	for _, s := range steps {
		if s.settle >= 0 {
			b.Settle(s.settle, nil)
		}
		if diff := cmp.Diff(s.want, takeAll(b)); diff != "" {
			t.Fatalf("after settling %d (-want +got):\n%s", s.settle, diff)
		}
	}
	if b.Open() != 0 || b.InFlight() != 0 {
		t.Errorf("Open = %d, InFlight = %d, want none", b.Open(), b.InFlight())
	}
	if err := b.Err(errors.New("unused")); err != nil {
		t.Errorf("Err = %v, want nil", err)
	}
}

func TestARefusedMessageHoldsBackItsKey(t *testing.T) {
	b := keyed.New(batch("abaab"))
	takeAll(b)
	refused := errors.New("refused")
	b.Settle(0, refused)
	b.Settle(1, nil)
	if diff := cmp.Diff([]int{4}, takeAll(b)); diff != "" {
		t.Fatalf("ready (-want +got):\n%s", diff)
	}
	b.Settle(4, nil)
	if b.Open() != 0 {
		t.Fatalf("Open = %d, want 0: what is held back is settled", b.Open())
	}
	var err *relay.BatchError
	if !errors.As(b.Err(nil), &err) {
		t.Fatal("Err is no *BatchError")
	}
	if !errors.Is(err.Errs[0], refused) || err.Errs[1] != nil || err.Errs[2] == nil || err.Errs[3] == nil || err.Errs[4] != nil {
		t.Errorf("Errs = %v", err.Errs)
	}
}

func TestErrNamesWhatIsNotSettled(t *testing.T) {
	b := keyed.New(batch("aba"))
	if _, ok := b.Next(); !ok {
		t.Fatal("nothing ready")
	}
	cause := errors.New("connection lost")
	var err *relay.BatchError
	if !errors.As(b.Err(cause), &err) {
		t.Fatal("Err is no *BatchError")
	}
	var got []string
	for _, e := range err.Errs {
		got = append(got, e.Error())
		if !errors.Is(e, cause) {
			t.Errorf("%v does not wrap its cause", e)
		}
	}
	want := []string{"not confirmed: connection lost", "not sent: connection lost", "not sent: connection lost"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRequeueKeepsTheOrder(t *testing.T) {
	b := keyed.New(batch("abcad"))
	for range 3 {
		b.Next()
	}
	b.Settle(1, nil)
	b.Requeue()
	if diff := cmp.Diff([]int{0, 2, 4}, takeAll(b)); diff != "" {
		t.Fatalf("ready (-want +got):\n%s", diff)
	}
	b.Settle(0, nil)
	if diff := cmp.Diff([]int{3}, takeAll(b)); diff != "" {
		t.Fatalf("ready (-want +got):\n%s", diff)
	}
}

// Whatever a broker answers in whatever order: one message per key in flight, per key in order,
// nothing after a refusal, and everything settled in the end.
func TestOrderPerKeyAlwaysHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(rapid.IntRange(0, 4), 1, 30).Draw(t, "keys")
		ms := make([]relay.Message, len(keys))
		for i, k := range keys {
			ms[i].Event.AggregateID = strconv.Itoa(k)
		}
		b := keyed.New(ms)
		var flying []int
		busy := map[int]bool{}
		last := map[int]int{}
		refused := map[int]bool{}
		for b.Open() > 0 {
			switch i, ok := b.Next(); {
			case ok && rapid.IntRange(0, 9).Draw(t, "lose the connection") > 0:
				k := keys[i]
				if busy[k] || refused[k] || last[k] > i {
					t.Fatalf("message %d of key %d sent: busy %v, refused %v, last %d", i, k, busy[k], refused[k], last[k])
				}
				busy[k], last[k] = true, i
				flying = append(flying, i)
			case ok:
				b.Requeue()
				flying, busy = nil, map[int]bool{}
			case len(flying) == 0:
				t.Fatalf("%d messages open, none in flight and none ready", b.Open())
			default:
				n := rapid.IntRange(0, len(flying)-1).Draw(t, "answered")
				i := flying[n]
				flying = append(flying[:n], flying[n+1:]...)
				busy[keys[i]] = false
				if rapid.IntRange(0, 4).Draw(t, "refuse") == 0 {
					refused[keys[i]] = true
					b.Settle(i, fmt.Errorf("no"))
				} else {
					b.Settle(i, nil)
				}
			}
			if b.InFlight() != len(flying) {
				t.Fatalf("InFlight = %d, want %d", b.InFlight(), len(flying))
			}
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	ms := make([]relay.Message, 1000)
	for i := range ms {
		ms[i].Event = outbox.Event{AggregateType: "order", AggregateID: fmt.Sprintf("0190%08x-0000-7000-8000-000000000000", i*7919%950)}
	}
	b.ReportAllocs()
	for b.Loop() {
		f := keyed.New(ms)
		for f.Open() > 0 {
			i, _ := f.Next()
			f.Settle(i, nil)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/message")
}
