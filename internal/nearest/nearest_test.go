package nearest_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/commitrelay/outbox/internal/nearest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestName(t *testing.T) {
	names := []string{"all", "batch", "event_type", "welcome"}
	for s, want := range map[string]string{
		"al": "all", "lal": "all", "batchsize": "batch", "welcmoe": "welcome", "event-type": "event_type",
		"": "", "mails": "", "something else": "", strings.Repeat("x", 1000): "",
	} {
		if got := nearest.Name(s, names); got != want {
			t.Errorf("%q: got %q, want %q", s, got, want)
		}
	}
	if got := nearest.Name("all", nil); got != "" {
		t.Errorf("without candidates: %q", got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"a", "", 1},
		{"ab", "ba", 1},
		{"abc", "axc", 1},
		{"kitten", "sitting", 3},
		{strings.Repeat("a", 65), "a", 66},
	} {
		for _, got := range []int{nearest.Distance(c.a, c.b), nearest.Distance(c.b, c.a)} {
			if got != c.want {
				t.Errorf("%q and %q: got %d, want %d", c.a, c.b, got, c.want)
			}
		}
	}
}
