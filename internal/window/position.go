package window

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Reading is what one position statement returns: a snapshot, and two counters read after it.
type Reading struct {
	Snapshot Snapshot
	H        int64  // the sequence's value: every number up to it was drawn before
	Next     uint64 // the next transaction id: every transaction that had an id has a lower one
	Run      Run
}

// Position says what is settled: every event visible in Snapshot (I1), and every event with a number up to Floor.
type Position struct {
	Snapshot Snapshot
	H        int64
	Next     uint64
	Bounds   Bounds
	Floor    int64 // numbers up to it are never again compared by transaction id
	Run      Run

	// ID names the position, in the database too. 0 is the beginning, where nothing is visible yet.
	ID int64
}

// newPositionID is random, so that any number of relays can name positions.
func newPositionID() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// Bounds says from which number on a transaction that was running may have events.
type Bounds struct {
	// Pairs are (Next, H) of this and of earlier positions, ascending. A transaction x had no id when a pair with
	// Next <= x was read, so all its numbers are greater than that pair's H.
	Pairs []Pair `json:"pairs,omitempty"`

	// Raised are running transactions that held no lock on the events table after H was read.
	Raised []Raised `json:"raised,omitempty"`
}

// Pair is the next transaction id and the sequence's value of one reading.
type Pair struct {
	Next uint64 `json:"n"`
	H    int64  `json:"h"`
}

// Raised is a transaction that had drawn nothing up to H.
type Raised struct {
	XID uint64 `json:"x"`
	H   int64  `json:"h"`
}

// and returns everything that is known of running transactions from both: it is true of the server, not of a lane.
func (b Bounds) and(o Bounds) Bounds {
	all := slices.Concat(b.Pairs, o.Pairs)
	slices.SortFunc(all, func(x, y Pair) int { return cmp.Or(cmp.Compare(x.Next, y.Next), cmp.Compare(y.H, x.H)) })
	pairs := all[:0]
	for _, p := range all {
		// Of two readings at the same time, one may have seen the lower number and the higher id: it says nothing more.
		if n := len(pairs); n == 0 || pairs[n-1].H < p.H {
			pairs = append(pairs, p)
		}
	}
	raised := slices.Concat(b.Raised, o.Raised)
	slices.SortFunc(raised, func(x, y Raised) int { return cmp.Or(cmp.Compare(x.XID, y.XID), cmp.Compare(y.H, x.H)) })
	raised = slices.CompactFunc(raised, func(x, y Raised) bool { return x.XID == y.XID }) // the first is the higher
	return Bounds{Pairs: pairs, Raised: raised}
}

// maxPairs bounds what a position may grow to while one transaction takes ids and none ends. Dropping a pair only lowers
// bounds, which costs a longer scan and never an event.
const maxPairs = 1024

// of is the greatest number known to lie below every number of transaction x. (I2)
func (b Bounds) of(x uint64, floor int64) int64 {
	bound := floor
	// The newest pair with Next <= x.
	i, found := slices.BinarySearchFunc(b.Pairs, x, func(p Pair, x uint64) int {
		switch {
		case p.Next < x:
			return -1
		case p.Next > x:
			return 1
		}
		return 0
	})
	if found {
		i++
	}
	if i > 0 {
		bound = max(bound, b.Pairs[i-1].H)
	}
	if h, ok := b.raised(x); ok {
		bound = max(bound, h)
	}
	return bound
}

func (b Bounds) raised(x uint64) (int64, bool) {
	for _, r := range b.Raised {
		if r.XID == x {
			return r.H, true
		}
	}
	return 0, false
}

// Advance returns the position that r is once everything between p and it is settled, and the number above which all of that
// lies: nothing is to be read if low == r.H. The reading must be a later one of the same server run.
func (p *Position) Advance(r Reading) (next *Position, low int64) {
	return p.next(r), p.low(r)
}

// low looks at each transaction that was running at p and has ended at r; only those, and numbers drawn since, can have
// made events visible. Running at p were the ids in its snapshot's list and all from Xmax up to Next: Xmax is only the
// last that ended plus one.
func (p *Position) low(r Reading) int64 {
	low := p.H
	for _, x := range p.Snapshot.Xip {
		if r.Snapshot.Ended(x) {
			low = min(low, p.Bounds.of(x, p.Floor))
		}
	}
	// Bounds ascend with x, so the lowest id that has ended decides, save for raised ones, which do not ascend.
	for x := p.Snapshot.Xmax; x < p.Next && x < r.Snapshot.Xmax; x++ {
		if !r.Snapshot.Ended(x) {
			continue
		}
		low = min(low, p.Bounds.of(x, p.Floor))
		if _, ok := p.Bounds.raised(x); !ok {
			break
		}
	}
	return low
}

func (p *Position) next(r Reading) *Position {
	pairs := append(slices.Clip(slices.Clone(p.Bounds.Pairs)), Pair{r.Next, r.H})
	if n := len(pairs); n > 1 && pairs[n-2].Next == r.Next {
		pairs = append(pairs[:n-2], pairs[n-1]) // the newer one of the same id is the higher bound
	}
	return &Position{
		Snapshot: r.Snapshot,
		H:        r.H,
		Next:     r.Next,
		Floor:    p.Floor,
		Run:      r.Run,
		ID:       newPositionID(),
		Bounds: Bounds{
			Pairs: prune(pairs, r.Snapshot),
			Raised: slices.DeleteFunc(slices.Clone(p.Bounds.Raised), func(x Raised) bool {
				return r.Snapshot.Ended(x.XID)
			}),
		},
	}
}

// prune keeps the pairs that some running transaction needs: for each the newest that is not above it, and all from the
// one below Xmax on, where any id may be running.
func prune(pairs []Pair, s Snapshot) []Pair {
	needed := make([]bool, len(pairs))
	keep := func(x uint64) {
		for i := len(pairs) - 1; i >= 0; i-- {
			if pairs[i].Next <= x {
				needed[i] = true
				return
			}
		}
	}
	for _, x := range s.Xip {
		keep(x)
	}
	keep(s.Xmax)
	kept := pairs[:0]
	for i, p := range pairs {
		if needed[i] || p.Next > s.Xmax {
			kept = append(kept, p)
		}
	}
	for len(kept) > maxPairs {
		for i := range maxPairs / 2 {
			kept[i] = kept[2*i]
		}
		kept = append(kept[:maxPairs/2], kept[maxPairs:]...)
	}
	return kept
}

// Lagging returns the transactions running at p whose bound lies more than far below H: when one ends, everything above
// its bound is scanned.
func (p *Position) Lagging(far int64) []uint64 {
	var xs []uint64
	for _, x := range p.Snapshot.Xip {
		if p.H-p.Bounds.of(x, p.Floor) > far {
			xs = append(xs, x)
		}
	}
	return xs
}

// Raise returns p with the note that the given transactions had drawn no number when p was read. The caller proves it: each
// still ran after a look at the locks, made after p was read, that showed none of its on the events table.
func (p *Position) Raise(xs []uint64) *Position {
	raised := slices.DeleteFunc(slices.Clone(p.Bounds.Raised), func(r Raised) bool { return slices.Contains(xs, r.XID) })
	for _, x := range xs {
		raised = append(raised, Raised{x, p.H})
	}
	return &Position{
		Snapshot: p.Snapshot, H: p.H, Next: p.Next, Floor: p.Floor, Run: p.Run, ID: newPositionID(),
		Bounds: Bounds{Pairs: p.Bounds.Pairs, Raised: raised},
	}
}
