//go:build unix

package torture

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
)

// fleet is the relay processes, each in a slot.
type fleet struct {
	o        Options
	dir      string
	name     string
	database *database
	broker   broker
	slots    []*slot // from 1

	mu       sync.Mutex
	problems []string
	watching sync.WaitGroup
}

// slot is a place for one relay at a time, with its links to the servers.
type slot struct {
	number     int
	toDatabase *tcpproxy.Proxy
	toBroker   *tcpproxy.Proxy

	mu      sync.Mutex
	life    int
	process *process
	wanted  bool // to end: whoever ends it has said so
}

func newFleet(o Options, dir, name string, db *database, b broker) (*fleet, error) {
	f := &fleet{o: o, dir: dir, name: name, database: db, broker: b, slots: []*slot{nil}}
	for n := 1; n <= o.slots(); n++ {
		s := &slot{number: n}
		var errs [2]error
		s.toDatabase, errs[0] = tcpproxy.Listen(db.cluster.Addr())
		s.toBroker, errs[1] = tcpproxy.Listen(b.Addr())
		f.slots = append(f.slots, s)
		if err := errors.Join(errs[:]...); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

// start starts a relay in a slot that has none. once is a relay that delivers what is due and ends.
func (f *fleet) start(number int, once bool) (RelayID, error) {
	s := f.slots[number]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && s.process.running() {
		return RelayID{}, fmt.Errorf("slot %d has a relay", number)
	}
	s.life++
	id := RelayID{number, s.life}
	url, err := f.database.urlThrough(s.toDatabase.Addr())
	if err != nil {
		return id, err
	}
	flags := relayFlags{
		id: id.String(), database: url, sink: f.o.Sink, url: f.broker.URL(s.toBroker.Addr()), name: f.name,
		journal: f.journal(id), lanes: f.o.Lanes, lease: f.o.Lease, batch: f.o.Batch, once: once,
	}
	p, err := launch(f.log(id), or(f.o.RelayProgram, f.o.Program), flags.args()...)
	if err != nil {
		return id, err
	}
	s.process, s.wanted = p, once
	f.watching.Go(func() { f.watch(s, p, id) })
	return id, nil
}

func (f *fleet) journal(id RelayID) string { return filepath.Join(f.dir, id.String()+".journal") }
func (f *fleet) log(id RelayID) string     { return filepath.Join(f.dir, id.String()+".log") }

// watch waits for the end of a relay. One that nobody wanted, or that is not clean, is a problem.
func (f *fleet) watch(s *slot, p *process, id RelayID) {
	<-p.exited
	s.mu.Lock()
	wanted := s.wanted
	s.mu.Unlock()
	state := p.cmd.ProcessState
	killed := state != nil && state.Sys().(syscall.WaitStatus).Signaled() && state.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if wanted && (killed || state.Success()) {
		return
	}
	f.problem("relay %s has ended by itself: %v; see %s", id, state, f.log(id))
}

func (f *fleet) problem(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
}

// running is the relay in a slot. ok is false if there is none.
func (f *fleet) running(number int) (p *process, id RelayID, ok bool) {
	s := f.slots[number]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || !s.process.running() || s.wanted {
		return nil, RelayID{}, false
	}
	return s.process, RelayID{number, s.life}, true
}

// kill ends the relay in a slot as kill -9 does.
func (f *fleet) kill(number int) (RelayID, bool) {
	p, id, ok := f.running(number)
	if ok {
		f.expectEnd(number)
		p.kill()
	}
	return id, ok
}

func (f *fleet) expectEnd(number int) {
	s := f.slots[number]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = true
}

// patience is how long a relay may take to stop in good order: its own limits, and some more.
const patience = 30 * time.Second

// leave asks the relay in a slot to stop, and waits for its end.
func (f *fleet) leave(number int) (RelayID, bool) {
	p, id, ok := f.running(number)
	if !ok {
		return id, false
	}
	f.expectEnd(number)
	_ = p.signal(syscall.SIGTERM) // fails if it has ended, which watch tells
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		f.problem("relay %s has not stopped within %v of SIGTERM", id, patience)
		p.kill()
	}
	return id, true
}

// count is the number of relays that run.
func (f *fleet) count() int {
	n := 0
	for number := range f.slots[1:] {
		if _, _, ok := f.running(number + 1); ok {
			n++
		}
	}
	return n
}

// ids are all relays there ever were.
func (f *fleet) ids() []RelayID {
	var ids []RelayID
	for _, s := range f.slots[1:] {
		s.mu.Lock()
		for life := 1; life <= s.life; life++ {
			ids = append(ids, RelayID{s.number, life})
		}
		s.mu.Unlock()
	}
	return ids
}

// leaveAll stops all relays in good order.
func (f *fleet) leaveAll() {
	var leaving sync.WaitGroup
	for number := range f.slots[1:] {
		leaving.Go(func() { f.leave(number + 1) })
	}
	leaving.Wait()
}

// close ends what still runs.
func (f *fleet) close() {
	for number, s := range f.slots {
		if s == nil {
			continue
		}
		f.kill(number)
		s.mu.Lock()
		p := s.process
		s.mu.Unlock()
		if p != nil {
			p.kill()
		}
		for _, proxy := range []*tcpproxy.Proxy{s.toDatabase, s.toBroker} {
			if proxy != nil {
				_ = proxy.Close() // it has no error
			}
		}
	}
	f.watching.Wait()
}
