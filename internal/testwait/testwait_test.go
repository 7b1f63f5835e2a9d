package testwait

import (
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUntilReturnsOnceTheConditionHolds(t *testing.T) {
	calls := 0
	Until(t, "third call", func() bool { calls++; return calls == 3 })
	if calls != 3 {
		t.Errorf("calls = %d, want 3", calls)
	}
}

func TestPollReturnsTheLastError(t *testing.T) {
	want := errors.New("still open")
	if err := poll(0, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("poll = %v, want %v", err, want)
	}
}

func TestRecvAndClosed(t *testing.T) {
	ch := make(chan int, 1)
	ch <- 7
	if got := Recv(t, "a number", ch); got != 7 {
		t.Errorf("Recv = %d, want 7", got)
	}
	close(ch)
	Closed(t, "the end", ch)
}
