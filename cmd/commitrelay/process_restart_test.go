//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
)

// logsPairs makes sure that a process has said n times that something went away, and n times that it
// came back: once each, not once per attempt.
func (p *process) logsPairs(t *testing.T, n int, away, back string) {
	t.Helper()
	for _, message := range []string{away, back} {
		if got := p.stderr.count(message); got != n {
			t.Errorf("%s said %q %d times, want %d", p.name, message, got, n)
		}
	}
}

// PostgreSQL is restarted under a running relay, cleanly and as after a crash.
func (b built) databaseRestarts(t *testing.T) {
	cluster := pgtest.Cluster(t, pgtemp.Options{})
	s := newSite(t, b, cluster.URL())
	stop := s.load(10 * time.Millisecond)
	p := s.run(settings{})
	for n, mode := range []pgtemp.Mode{pgtemp.Fast, pgtemp.Immediate} {
		p.awaitState(t, http.StatusOK, "delivering")
		s.broker.awaitMessages(t, s.broker.messages(t)+500)
		if err := cluster.Stop(mode); err != nil {
			t.Fatal(err)
		}
		p.awaitState(t, http.StatusServiceUnavailable, "database_out")
		if err := cluster.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.awaitState(t, http.StatusOK, "delivering")
		s.awaitSameStatus(p)
		s.broker.awaitMessages(t, s.broker.messages(t)+500)
		p.logsPairs(t, n+1, "PostgreSQL does not answer", "PostgreSQL answers again")
	}
	t.Logf("%d transactions failed", stop())
	var tp tape
	s.drain(&tp)
	p.stop(t)
	if repeated := s.verify(&tp); len(repeated) > 0 {
		t.Errorf("%d events repeated, want none: the relay remembers what it has sent", len(repeated))
	}
}

// The broker is restarted under a running relay.
func (b built) brokerRestarts(t *testing.T) {
	s := newSite(t, b, pgtest.URL(t))
	stop := s.load(10 * time.Millisecond)
	p := s.run(settings{})
	for n := range 2 {
		p.awaitState(t, http.StatusOK, "delivering")
		s.broker.awaitMessages(t, s.broker.messages(t)+500)
		s.broker.stop(t)
		p.awaitState(t, http.StatusServiceUnavailable, "sink_down")
		s.awaitSameStatus(p)
		s.broker.start(t)
		p.awaitState(t, http.StatusOK, "delivering")
		s.awaitSameStatus(p)
		s.broker.awaitMessages(t, s.broker.messages(t)+500)
		p.logsPairs(t, n+1, "sink down", "sink up again")
	}
	stop()
	var tp tape
	s.drain(&tp)
	p.stop(t)
	s.verify(&tp)
}

// awaitSameStatus waits until `status --json` says what /readyz says.
func (s *site) awaitSameStatus(p *process) {
	s.t.Helper()
	testwait.UntilNil(s.t, "status --json agrees with /readyz", func() error {
		_, ready, err := p.health()
		if err != nil {
			return err
		}
		var stdout, stderr bytes.Buffer
		if code := execute([]string{"status", "--json", "--database", s.url}, &stdout, &stderr); code != exitOK {
			return fmt.Errorf("status: exit code %d: %s", code, stderr.String())
		}
		var status healthView
		if err := json.Unmarshal(stdout.Bytes(), &status); err != nil {
			return err
		}
		if a, b := fmt.Sprintf("%+v", ready), fmt.Sprintf("%+v", status); a != b {
			return fmt.Errorf("/readyz says %s, status --json %s", a, b)
		}
		return nil
	})
}
