package window

import "fmt"

// Lowest is the number up to which all is settled for good: every event with a number up to it is settled, and no transaction
// that runs can still add one. What lies at or below it is never read again, so it may be removed.
//
// An event with a number up to H is visible in Snapshot, and settled (I1), or belongs to a transaction that was running, whose
// numbers all lie above its bound (I2). So the lowest bound of all that were running is a floor under whatever is left.
func (p *Position) Lowest() int64 {
	low := p.H
	for _, x := range p.Snapshot.Xip {
		low = min(low, p.Bounds.of(x, p.Floor))
	}
	// As in low: bounds ascend with x, save for raised ones.
	for x := p.Snapshot.Xmax; x < p.Next; x++ {
		low = min(low, p.Bounds.of(x, p.Floor))
		if _, ok := p.Bounds.raised(x); !ok {
			break
		}
	}
	return low
}

// Lowest is that of the position where a lane's next window begins, or the one in progress began. r is a reading taken after o was stored: where
// o does not continue, or is catching up, the events that were settled are not known by their numbers, and it is 0. why says so.
func (o Open) Lowest(r Reading) (low int64, why string) {
	if o.Window != nil && o.Window.CatchUp != nil {
		return 0, "it is catching up after a break of the counters"
	}
	if why := o.Void(r); why != "" {
		return 0, fmt.Sprintf("its position is void: %s", why)
	}
	return o.From.Lowest(), ""
}

// Holders are transactions that were running at p, and may have events with numbers up to seq for all that is known: at most limit of them.
func (p *Position) Holders(seq int64, limit int) (xs []uint64) {
	add := func(x uint64) (below bool) {
		if below = p.Bounds.of(x, p.Floor) < seq; below && len(xs) < limit {
			xs = append(xs, x)
		}
		return below
	}
	for _, x := range p.Snapshot.Xip {
		add(x)
	}
	for x := p.Snapshot.Xmax; x < p.Next && len(xs) < limit; x++ {
		if _, raised := p.Bounds.raised(x); !add(x) && !raised {
			break
		}
	}
	return xs
}
