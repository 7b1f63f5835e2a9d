package window

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestParseSnapshot(t *testing.T) {
	for _, c := range []struct {
		text string
		want Snapshot
		back string // String of it; empty: text
	}{
		{text: "3:3:", want: Snapshot{Xmin: 3, Xmax: 3}},
		{text: "10:20:", want: Snapshot{Xmin: 10, Xmax: 20}},
		{text: "10:20:10", want: Snapshot{Xmin: 10, Xmax: 20, Xip: []uint64{10}}},
		{text: "10:20:10,14,19", want: Snapshot{Xmin: 10, Xmax: 20, Xip: []uint64{10, 14, 19}}},
		{text: "10:20:14,10", want: Snapshot{Xmin: 10, Xmax: 20, Xip: []uint64{10, 14}}, back: "10:20:10,14"},
		{
			text: "4294967290:4294967302:4294967290,4294967301",
			want: Snapshot{Xmin: 4294967290, Xmax: 4294967302, Xip: []uint64{4294967290, 4294967301}},
		},
		{text: "18446744073709551615:18446744073709551615:", want: Snapshot{Xmin: 1<<64 - 1, Xmax: 1<<64 - 1}},
	} {
		got, err := ParseSnapshot(c.text)
		if err != nil || got.Xmin != c.want.Xmin || got.Xmax != c.want.Xmax || !slices.Equal(got.Xip, c.want.Xip) {
			t.Errorf("ParseSnapshot(%q) = %+v, %v; want %+v", c.text, got, err, c.want)
		}
		if c.back == "" {
			c.back = c.text
		}
		if got.String() != c.back {
			t.Errorf("ParseSnapshot(%q).String() = %q, want %q", c.text, got.String(), c.back)
		}
	}
	for _, text := range []string{
		"", "3", "3:3", "3:3:3:3", ":3:", "3::", "a:3:", "3:a:", "3:9:a", "3:9:4,", "3:9:,4", "3:9:4,,5",
		"-3:3:", "3:9:-4", "3.5:9:", " 3:3:", "3:18446744073709551616:",
	} {
		if got, err := ParseSnapshot(text); err == nil {
			t.Errorf("ParseSnapshot(%q) = %+v, want an error", text, got)
		}
	}
}

// snapshots draws any snapshot that PostgreSQL could return.
func snapshots() *rapid.Generator[Snapshot] {
	return rapid.Custom(func(t *rapid.T) Snapshot {
		base := rapid.SampledFrom([]uint64{3, 1000, 1<<32 - 20, 1 << 32, 1<<40 + 7}).Draw(t, "base")
		n := rapid.IntRange(0, 40).Draw(t, "width")
		s := Snapshot{Xmin: base, Xmax: base + uint64(n)}
		for x := s.Xmin; x < s.Xmax; x++ {
			if rapid.Bool().Draw(t, "running") {
				s.Xip = append(s.Xip, x)
			}
		}
		if len(s.Xip) == 0 {
			s.Xmin = s.Xmax
		} else {
			s.Xmin = s.Xip[0]
		}
		return s
	})
}

func TestSnapshotText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := snapshots().Draw(t, "snapshot")
		got, err := ParseSnapshot(want.String())
		if err != nil || got.String() != want.String() || got.Xmin != want.Xmin || got.Xmax != want.Xmax || !slices.Equal(got.Xip, want.Xip) {
			t.Fatalf("%+v as text is %q, and that is %+v, %v", want, want.String(), got, err)
		}
	})
}

func TestSnapshotEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshots().Draw(t, "snapshot")
		for x := max(s.Xmin, 6) - 3; x < s.Xmax+3; x++ {
			if want := x < s.Xmax && !slices.Contains(s.Xip, x); s.Ended(x) != want {
				t.Fatalf("snapshot %s: Ended(%d) = %v, want %v", s, x, s.Ended(x), want)
			}
		}
	})
	for x := range uint64(10) {
		if emptySnapshot.Ended(x + 3) {
			t.Errorf("the empty snapshot sees transaction %d", x+3)
		}
	}
}
