package demo

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"pgregory.net/rapid"
)

// counts are the figures of a Result that a history determines.
type counts struct {
	Committed, RolledBack, Delivered, Distinct, Lost, Invented, Duplicates, OrderViolations int
}

func countsOf(r Result) counts {
	return counts{r.Committed, r.RolledBack, r.Delivered, r.Distinct, r.Lost, r.Invented, r.Duplicates, r.OrderViolations}
}

func TestCheckFindsWhatWasPlanted(t *testing.T) {
	ann1, ann2, ann3 := event{outbox.NewID(), 1, 1}, event{outbox.NewID(), 1, 2}, event{outbox.NewID(), 1, 3}
	bob1 := event{outbox.NewID(), 2, 1}
	all := []event{ann1, bob1, ann2, ann3}
	altered := ann2
	altered.Version = 7

	for _, test := range []struct {
		name      string
		committed []event
		arrivals  []event
		want      counts
	}{
		{"nothing", nil, nil, counts{}},
		{"all is well", all, all, counts{Committed: 4, Delivered: 4, Distinct: 4}},
		{"users overtake each other", all, []event{bob1, ann1, ann2, ann3}, counts{Committed: 4, Delivered: 4, Distinct: 4}},
		{"a loss", all, []event{ann1, bob1, ann3}, counts{Committed: 4, Delivered: 3, Distinct: 3, Lost: 1}},
		{"an invention", all[:3], all, counts{Committed: 3, Delivered: 4, Distinct: 4, Invented: 1}},
		{"an invention twice", all[:3], append(slices.Clone(all), ann3), counts{Committed: 3, Delivered: 5, Distinct: 4, Invented: 1, Duplicates: 1}},
		{"a duplicate", all, append(slices.Clone(all), ann1), counts{Committed: 4, Delivered: 5, Distinct: 4, Duplicates: 1}},
		{"an inversion", all, []event{ann2, ann1, bob1, ann3}, counts{Committed: 4, Delivered: 4, Distinct: 4, OrderViolations: 1}},
		{"one came before two", all, []event{ann3, ann1, bob1, ann2}, counts{Committed: 4, Delivered: 4, Distinct: 4, OrderViolations: 2}},
		{"only first arrivals count for the order", all, []event{ann1, bob1, ann2, ann1, ann3}, counts{Committed: 4, Delivered: 5, Distinct: 4, Duplicates: 1}},
		{"an altered event", all, []event{ann1, bob1, altered, ann3}, counts{Committed: 4, Delivered: 4, Distinct: 4, Lost: 1, Invented: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger()
			for _, e := range test.committed {
				l.Committed(e)
			}
			for _, e := range test.arrivals {
				l.Received(e)
			}
			if got := countsOf(l.Check()); got != test.want {
				t.Errorf("got %+v\nwant %+v", got, test.want)
			}
			if got := l.State().Missing; got != test.want.Lost {
				t.Errorf("missing: got %d, want %d", got, test.want.Lost)
			}
		})
	}
}

// TestCheckAnyHistory plants faults at random and counts them in another, slower way.
func TestCheckAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLedger()
		var committed, arrivals []event
		versions := map[int64]int{}
		for range rapid.IntRange(0, 60).Draw(t, "transactions") {
			user := rapid.Int64Range(1, 6).Draw(t, "user")
			e := event{outbox.NewID(), user, versions[user] + 1}
			if rapid.IntRange(0, 9).Draw(t, "rolled back") == 0 {
				l.RolledBack()
				if rapid.Bool().Draw(t, "invented") {
					arrivals = append(arrivals, e)
				}
				continue
			}
			versions[user]++
			committed = append(committed, e)
			for range rapid.SampledFrom([]int{1, 1, 1, 1, 0, 2, 3}).Draw(t, "copies") {
				at := max(0, len(arrivals)-rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "early by"))
				arrivals = slices.Insert(arrivals, at, e)
			}
		}

		// The two sides run beside each other: either may hear of an event first.
		for i, j := 0, 0; i < len(committed) || j < len(arrivals); {
			if j == len(arrivals) || i < len(committed) && rapid.Bool().Draw(t, "the writer is next") {
				l.Committed(committed[i])
				i++
			} else {
				l.Received(arrivals[j])
				j++
			}
		}

		var want counts
		want.Committed = len(committed)
		want.RolledBack = l.rolledBack
		want.Delivered = len(arrivals)
		var firsts []event
		for _, e := range arrivals {
			if slices.Contains(firsts, e) {
				want.Duplicates++
				continue
			}
			want.Distinct++
			if !slices.Contains(committed, e) {
				want.Invented++
			}
			if slices.Contains(committed, e) && slices.ContainsFunc(firsts, func(f event) bool {
				return f.User == e.User && f.Version > e.Version && slices.Contains(committed, f)
			}) {
				want.OrderViolations++
			}
			firsts = append(firsts, e)
		}
		for _, e := range committed {
			if !slices.Contains(arrivals, e) {
				want.Lost++
			}
		}
		if got := countsOf(l.Check()); got != want {
			t.Fatalf("got %+v\nwant %+v\ncommitted %v\narrivals %v", got, want, committed, arrivals)
		}
		if got := l.State().Missing; got != want.Lost {
			t.Fatalf("missing: got %d, want %d", got, want.Lost)
		}
	})
}

func TestCheckCountsUnreadableMessagesAsInvented(t *testing.T) {
	l := newLedger()
	l.Unreadable()
	l.Unreadable()
	if got, want := countsOf(l.Check()), (counts{Delivered: 2, Distinct: 2, Invented: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestUncertainCommits(t *testing.T) {
	l := newLedger()
	here, gone := event{outbox.NewID(), 1, 1}, event{outbox.NewID(), 2, 1}
	l.Uncertain(here)
	l.Uncertain(gone)
	l.Received(here)

	failure := errors.New("no answer")
	if err := l.Resolve(func([]outbox.ID) (map[outbox.ID]bool, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("error: got %v, want %v", err, failure)
	}
	if got := l.Check().Invented; got != 1 {
		t.Errorf("before anyone knows: got %d invented, want 1", got)
	}
	if err := l.Resolve(func([]outbox.ID) (map[outbox.ID]bool, error) { return map[outbox.ID]bool{here.ID: true}, nil }); err != nil {
		t.Fatal(err)
	}
	if got, want := countsOf(l.Check()), (counts{Committed: 1, RolledBack: 1, Delivered: 1, Distinct: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	for _, test := range []struct {
		sorted []time.Duration
		p      int
		want   time.Duration
	}{
		{nil, 50, 0},
		{hundred[:1], 50, 1},
		{hundred[:1], 99, 1},
		{hundred[:2], 50, 1},
		{hundred[:3], 50, 2},
		{hundred, 50, 50},
		{hundred, 99, 99},
		{hundred, 100, 100},
	} {
		if got := percentile(test.sorted, test.p); got != test.want {
			t.Errorf("p%d of %d values: got %d, want %d", test.p, len(test.sorted), got, test.want)
		}
	}
}

func TestLatencyRunsFromCommitToFirstArrival(t *testing.T) {
	for _, test := range []struct {
		n    entry
		want time.Duration
	}{
		{entry{committed: 3, received: 10}, 7},
		{entry{committed: 10, received: 3}, 0}, // it arrived before its writer heard of the COMMIT
	} {
		if got := test.n.latency(); got != test.want {
			t.Errorf("%+v: got %d, want %d", test.n, got, test.want)
		}
	}
}
