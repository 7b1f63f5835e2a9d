package torture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// journal is where a relay process notes what it does, one line of JSON each. Every line is written
// before the process goes on, without a buffer of our own: kill -9 loses none. It is safe for
// concurrent use.
type journal struct {
	mu    sync.Mutex
	file  *os.File
	calls int
}

// line is one entry.
type line struct {
	At   int64  `json:"at"`             // Unix time in ns
	What string `json:"what"`           // one of the following
	Call int    `json:"call,omitempty"` // whose

	IDs       []outbox.ID `json:"ids,omitempty"`       // begin: what is being published; repeat: what the broker knew already
	Confirmed []int       `json:"confirmed,omitempty"` // end: which of them are, if not all
	Err       string      `json:"err,omitempty"`       // end: the first error; parked, dead: why
	Lanes     []int       `json:"lanes,omitempty"`     // stored
}

// What lines tell of.
const (
	lineBegin  = "begin"
	lineEnd    = "end"
	lineRepeat = "repeat" // the broker has recognised repetitions, and not kept them
	lineStored = "stored"
	lineParked = "parked"
	lineDead   = "dead"
)

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	return &journal{file: f}, nil
}

func (j *journal) write(l line) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writeLocked(l)
}

func (j *journal) writeLocked(l line) {
	l.At = time.Now().UnixNano()
	text, err := json.Marshal(l)
	if err == nil {
		_, err = j.file.Write(append(text, '\n'))
	}
	if err != nil {
		// Without its journal a relay proves nothing: the driver reports that it has ended.
		panic(fmt.Sprintf("torture: write journal: %v", err))
	}
}

// begin notes a call of Sink.Publish before it is made, and returns its number.
func (j *journal) begin(batch []relay.Message) int {
	ids := make([]outbox.ID, len(batch))
	for i := range batch {
		ids[i] = batch[i].Event.ID
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.calls++
	j.writeLocked(line{What: lineBegin, Call: j.calls, IDs: ids})
	return j.calls
}

// end notes how the call with n messages was answered.
func (j *journal) end(call, n int, err error) {
	l := line{What: lineEnd, Call: call}
	if err != nil {
		l.Confirmed = []int{}
		l.Err = err.Error()
		var each *relay.BatchError
		if errors.As(err, &each) && len(each.Errs) == n {
			l.Err = ""
			for i, err := range each.Errs {
				switch {
				case err == nil:
					l.Confirmed = append(l.Confirmed, i)
				case l.Err == "":
					l.Err = err.Error()
				}
			}
		}
	}
	j.write(l)
}

func (j *journal) close() error { return j.file.Close() }

// entries are what a journal holds.
type entries struct {
	calls   []Call
	stores  []Store
	repeats []Arrival // suppressed: only what identifies them
	other   []string  // parked, dead: for people
}

// readJournal reads what a relay has noted. Its last line may be torn: what that would have told of was
// not done.
func readJournal(path string, relay RelayID) (entries, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return entries{}, fmt.Errorf("read journal: %w", err)
	}
	var e entries
	open := map[int]int{} // calls by number
	for n := 1; len(text) > 0; n++ {
		raw, rest, whole := bytes.Cut(text, []byte{'\n'})
		if !whole {
			break
		}
		text = rest
		var l line
		if err := json.Unmarshal(raw, &l); err != nil {
			return entries{}, fmt.Errorf("read journal %s, line %d: %w", path, n, err)
		}
		if err := e.add(l, relay, open); err != nil {
			return entries{}, fmt.Errorf("read journal %s, line %d: %w", path, n, err)
		}
	}
	return e, nil
}

func (e *entries) add(l line, relay RelayID, open map[int]int) error {
	when := time.Unix(0, l.At)
	switch l.What {
	case lineBegin:
		open[l.Call] = len(e.calls)
		e.calls = append(e.calls, Call{CallID: CallID{relay, l.Call}, Begin: when, IDs: l.IDs, Confirmed: map[outbox.ID]bool{}})
	case lineEnd:
		i, ok := open[l.Call]
		if !ok {
			return fmt.Errorf("call %d ends and never began", l.Call)
		}
		c := &e.calls[i]
		c.End, c.Err = when, l.Err
		if l.Err == "" {
			for _, id := range c.IDs {
				c.Confirmed[id] = true
			}
		}
		for _, k := range l.Confirmed {
			if k >= len(c.IDs) {
				return fmt.Errorf("call %d confirms message %d of %d", l.Call, k, len(c.IDs))
			}
			c.Confirmed[c.IDs[k]] = true
		}
	case lineStored:
		e.stores = append(e.stores, Store{relay, when, l.Lanes})
	case lineRepeat:
		for _, id := range l.IDs {
			e.repeats = append(e.repeats, Arrival{ID: id, Call: CallID{relay, l.Call}, At: when, Suppressed: true, Place: "recognised by the broker"})
		}
	case lineParked, lineDead:
		e.other = append(e.other, fmt.Sprintf("%s %s %s %v: %s", clock(when), relay, l.What, l.IDs, l.Err))
	default:
		return fmt.Errorf("unknown entry %q", l.What)
	}
	return nil
}
