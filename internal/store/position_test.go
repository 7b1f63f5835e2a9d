package store

import (
	"testing"

	"pgregory.net/rapid"
)

func TestWiden(t *testing.T) {
	for _, c := range []struct {
		near uint64
		low  uint32
		want uint64
	}{
		{3, 3, 3},
		{700, 705, 705},
		{1<<32 - 2, 1<<32 - 1, 1<<32 - 1},
		{1<<32 - 2, 3, 1<<32 + 3}, // the snapshot lies before the boundary, the next id behind it
		{1<<32 + 3, 1<<32 - 1, 1<<32 - 1},
		{5<<32 - 1, 4, 5<<32 + 4},
		{5<<32 + 10, 12, 5<<32 + 12},
	} {
		if got := widen(c.near, c.low); got != c.want {
			t.Errorf("widen(%d, %d) = %d, want %d", c.near, c.low, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		near := rapid.Uint64Range(1<<31, 1<<62).Draw(t, "near")
		distance := rapid.Int64Range(-1<<31, 1<<31-1).Draw(t, "distance")
		want := near + uint64(distance)
		if got := widen(near, uint32(want)); got != want {
			t.Fatalf("widen(%d, %d) = %d, want %d", near, uint32(want), got, want)
		}
	})
}
