package store_test

import (
	"testing"

	"github.com/commitrelay/outbox/internal/store"
)

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		numbers []int
		want    string
	}{
		{nil, ""},
		{[]int{0}, "0"},
		{[]int{0, 1}, "0-1"},
		{[]int{0, 1, 2, 3, 7}, "0-3, 7"},
		{[]int{1, 3, 4, 9, 1022, 1023}, "1, 3-4, 9, 1022-1023"},
	} {
		if got := store.Ranges(c.numbers); got != c.want {
			t.Errorf("%v: got %q, want %q", c.numbers, got, c.want)
		}
	}
}
