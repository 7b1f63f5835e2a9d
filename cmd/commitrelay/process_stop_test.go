//go:build unix

package main

import (
	"bufio"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
)

// proxied puts a proxy before the broker.
func (s *site) proxied() *tcpproxy.Proxy {
	s.t.Helper()
	p, err := tcpproxy.Listen(s.broker.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return p
}

// SIGTERM at random moments, before a slow broker and in batches of 20: each relay finishes what is in
// flight, stores it and gives the lane back. The lease is so long that the next one could not go on
// otherwise. Every third time the next one is there already.
func (b built) cleanStops(t *testing.T) {
	s := newSite(t, b, pgtest.URL(t))
	proxy := s.proxied()
	proxy.Delay(10 * time.Millisecond)
	cfg := settings{nats: proxy.Addr(), lease: time.Hour, batch: 20}
	stop := s.load(20 * time.Millisecond)
	relay := s.run(cfg)
	for round := range 30 {
		relay.awaitLog(t, "relay begins")
		if round%2 == 0 { // otherwise at once, while it takes the lane
			s.broker.awaitMessages(t, s.broker.messages(t)+uint64(rand.IntN(100)))
		}
		if round%3 == 0 {
			next := s.run(cfg)
			next.awaitLog(t, "relay begins")
			relay.stop(t)
			relay = next
		} else {
			relay.stop(t)
			relay = s.run(cfg)
		}
	}
	stop()
	var tp tape
	s.drain(&tp)
	relay.stop(t)
	if repeated := s.verify(&tp); len(repeated) > 0 {
		t.Errorf("%d events repeated, want none: clean stops are no faults", len(repeated))
	}
}

// The broker takes events and does not answer any more. A relay that is asked to stop waits for the
// answer for shutdown_timeout and then exits with 0; a second SIGTERM ends it at once.
func (b built) sinkHangs(t *testing.T) {
	s := newSite(t, b, pgtest.URL(t))
	proxy := s.proxied()
	insert := func() {
		t.Helper()
		before := s.broker.messages(t)
		if committed, err := s.write(t.Context(), []string{"k"}, []int{s.number("SELECT count(*) FROM outbox_events")}, false); !committed {
			t.Fatal(err)
		}
		s.broker.awaitMessages(t, before+1)
	}

	settled := func() bool {
		return s.number("SELECT count(*) FROM commitrelay.events WHERE status <> 'PUBLISHED'") == 0
	}

	patient := s.run(settings{nats: proxy.Addr(), shutdown: time.Hour, ack: time.Hour})
	insert()
	testwait.Until(t, "the first event is settled", settled)
	proxy.Pause(tcpproxy.ToClient)
	insert()
	patient.signal(t, syscall.SIGTERM)
	patient.awaitLog(t, "stopping")
	patient.running(t)
	patient.signal(t, syscall.SIGTERM)
	if code := patient.wait(t); code != exitSignal {
		t.Errorf("exit code %d after the second SIGTERM, want %d", code, exitSignal)
	}
	proxy.Resume()

	hasty := s.run(settings{nats: proxy.Addr(), shutdown: 500 * time.Millisecond, ack: time.Hour})
	s.broker.awaitMessages(t, 3) // the one whose answer nobody heard is sent again
	insert()
	testwait.Until(t, "all events are settled", settled)
	proxy.Pause(tcpproxy.ToClient)
	insert()
	hasty.signal(t, syscall.SIGTERM)
	if code := hasty.wait(t); code != exitOK {
		t.Errorf("exit code %d when shutdown_timeout is over, want %d", code, exitOK)
	}
	if hasty.stderr.count("time for shutdown is over") != 1 {
		t.Error("it did not say that it breaks off")
	}
	proxy.Resume()

	last := s.run(settings{lease: time.Hour}) // even that one has given the lane back
	var tp tape
	s.broker.awaitMessages(t, 6)
	s.drain(&tp)
	last.stop(t)
	if repeated := s.verify(&tp); len(repeated) != 2 {
		t.Errorf("%d events repeated, want the 2 that nobody had acknowledged", len(repeated))
	}
}

// With standard output a pipe whose reader goes away, a relay ends, as programs in a pipe do.
func (b built) readerOfPipeGone(t *testing.T) {
	s := newSite(t, b, pgtest.URL(t))
	stop := s.load(5 * time.Millisecond)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := start(t, "relay", w, s.commitrelay, "run", "--database", s.url, "--sink", "stdout:", "--log-format", "json")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, `{"id":`) {
		t.Fatalf("the first line is %q (%v)", line, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	testwait.Closed(t, "the relay ends", p.exited)
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGPIPE && status.ExitStatus() == exitOK {
		t.Errorf("it ended with %v, want SIGPIPE or an exit code that is not 0", p.cmd.ProcessState)
	}
	stop()
}
