package window

// Window is the events between two positions: visible at To and not at From, with numbers above Low and up to To.H.
// Its content is fixed and ordered by number, so it can be left and continued anywhere in it.
type Window struct {
	From, To *Position
	Low      int64

	// CatchUp is set on the window that follows a restore or another break of the counters. From is then the position
	// that became void.
	CatchUp *CatchUp
}

// CatchUp describes what a window after a break leaves out. It holds every event with a number up to To.H, but for those
// that were settled before the break.
type CatchUp struct {
	// Events visible in Snapshot with numbers up to H were settled.
	Snapshot string `json:"snapshot"`
	H        int64  `json:"h"`

	// So were events visible in SettledSnapshot with numbers up to SettledP: a window was open then.
	SettledSnapshot string `json:"settled_snapshot,omitempty"`
	SettledP        int64  `json:"settled_p,omitempty"`
}

// Open is the state of a lane: everything visible at From is settled, and of an open window everything with numbers up
// to P and those in Ahead.
type Open struct {
	From   *Position
	Window *Window // nil: none is open
	P      int64
	Ahead  []int64
}

// Newest is the position that was read last. That of a lane that catches up with a break is not the void one where it began.
func (o Open) Newest() *Position {
	if o.Window != nil {
		return o.Window.To
	}
	return o.From
}

// Regressed says that the sequence stands lower than it did, and may have handed out numbers again. (One that was not copied to
// another cluster, and has handed out none there, has not.)
func (o Open) Regressed(r Reading) bool {
	was := o.Newest()
	return r.H < was.H && (r.H > 0 || was.Run.System == r.Run.System)
}

// Void says why what is stored does not continue at reading r, in words for the log, or "" if it does.
func (o Open) Void(r Reading) string { return o.Newest().Void(r) }

// Begin is the position of a reading that follows no other: nothing is known of the transactions that run.
func Begin(r Reading) *Position {
	return &Position{
		ID: newPositionID(), Snapshot: r.Snapshot, H: r.H, Next: r.Next, Run: r.Run,
		Bounds: Bounds{Pairs: []Pair{{r.Next, r.H}}},
	}
}

// Quiet is the position of a reading that was taken while no writer was at work: everything with a number up to r.H is
// committed or will never appear.
func Quiet(r Reading) *Position {
	return &Position{
		Snapshot: r.Snapshot, H: r.H, Next: r.Next, Run: r.Run, ID: newPositionID(),
		Floor:  r.H,
		Bounds: Bounds{Pairs: []Pair{{r.Next, r.H}}},
	}
}

// Recover plans the window that follows a break, from what was stored to a quiet position. Nothing is skipped: where it
// cannot be known whether an event was settled, it is delivered again.
func Recover(old Open, to *Position) Open {
	r := Reading{Snapshot: to.Snapshot, H: to.H, Next: to.Next, Run: to.Run}
	last := old.Newest()
	catchUp := CatchUp{Snapshot: old.From.Snapshot.String(), H: old.From.H}
	p, ahead := old.From.Floor, []int64(nil)
	catchingUp := false
	if w := old.Window; w != nil {
		ahead = old.Ahead
		if w.CatchUp != nil { // the break came in the middle of catching up
			catchingUp = true
			catchUp, p = *w.CatchUp, old.P
		} else {
			catchUp.SettledSnapshot, catchUp.SettledP = w.To.Snapshot.String(), old.P
		}
	}
	sameCluster := last.Run.System == r.Run.System && last.Run.Database == r.Run.Database
	sequenceBroken := r.H < last.H || last.Run.renumbered() ||
		sameCluster && (last.Run.Sequence != r.Run.Sequence || last.Run.Filenode != r.Run.Filenode)
	if sequenceBroken {
		// Numbers start over: what was settled below the floor or ahead says nothing of the events that have them now.
		p, ahead = 0, nil
		if !sameCluster || catchingUp || r.Next < last.Next {
			// Nor can transaction ids be compared.
			catchUp = CatchUp{Snapshot: emptySnapshot.String()}
		}
	}
	// No event has a higher number yet. Those that will are not to be compared, should the counters break once more.
	catchUp.H, catchUp.SettledP = min(catchUp.H, r.H), min(catchUp.SettledP, r.H)
	return Open{
		From:   old.From,
		Window: &Window{From: old.From, To: to, Low: p, CatchUp: &catchUp},
		P:      p,
		Ahead:  ahead,
	}
}
