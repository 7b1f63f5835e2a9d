package window

import "fmt"

// Run names one unbroken life of the server's counters (I4). Transaction ids and numbers that were never flushed are
// handed out again after a crash, a restore or a promotion, so what is only in memory counts in the run where it was
// read, and in no other.
type Run struct {
	System   string `json:"system"`   // system identifier of the cluster
	Timeline int64  `json:"timeline"` // of the write-ahead log: a promotion begins another
	Database int64  `json:"database"` // oid
	Started  string `json:"started"`  // of the postmaster
	ID       string `json:"run"`      // of the unlogged row, which crash recovery empties
	Sequence int64  `json:"sequence"` // oid
	Filenode int64  `json:"filenode"` // of the sequence: RESTART IDENTITY changes it
}

// change says in words what has changed from r to is, which differs from it.
func (r Run) change(is Run) string {
	switch {
	case r.System != is.System:
		return "another database cluster"
	case r.Database != is.Database:
		return "another database"
	case r.Sequence != is.Sequence || r.Filenode != is.Filenode:
		return "the sequence was restarted or made anew"
	case r.ID != is.ID:
		return "the server has recovered from a crash, or is a copy"
	default:
		return "the server was restarted"
	}
}

// Void says why a stored position does not continue at reading r, in words for the log, or "" if it does.
func (p *Position) Void(r Reading) string {
	was, is := p.Run, r.Run
	switch {
	case was.System != is.System:
		return "another database cluster (restored, copied or upgraded)"
	case was.Database != is.Database:
		return "another database in the cluster (dropped and restored, or a copy)"
	case was.Sequence != is.Sequence:
		return "another sequence (the events table was made anew)"
	case was.Filenode != is.Filenode:
		return "the sequence was restarted or rewritten"
	case r.H < p.H:
		return fmt.Sprintf("the sequence went back from %d to %d", p.H, r.H)
	case r.Next < p.Next:
		return fmt.Sprintf("the next transaction id went back from %d to %d", p.Next, r.Next)
	}
	return ""
}

func (r Run) renumbered() bool { return r.Filenode == 0 } // no file has it

// Renumbered returns o with a note that the sequence has handed out numbers again: it stays void, as if the sequence had
// been made anew, even when someone has set it right meanwhile.
func (o Open) Renumbered() Open {
	if o.Newest().Run.renumbered() {
		return o
	}
	note := func(p *Position) *Position {
		noted := *p
		noted.Run.Filenode, noted.ID = 0, newPositionID()
		return &noted
	}
	if o.Window == nil {
		o.From = note(o.From)
		return o
	}
	w := *o.Window
	w.To = note(w.To)
	o.Window = &w
	return o
}
