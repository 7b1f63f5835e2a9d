package demo

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
)

func TestProgressRedrawsOneLineOnATerminal(t *testing.T) {
	var out bytes.Buffer
	p := &progress{w: &out, terminal: true}
	p.Say("ready")
	p.draw("one")
	p.draw("two")
	p.Say("a warning")
	p.draw("three")
	p.done()
	p.done()
	want := "ready\n" + "\rone\x1b[K" + "\rtwo\x1b[K" + "\r\x1b[Ka warning\n" + "\rthree\x1b[K" + "\r\x1b[K"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestProgressLineFitsATerminal(t *testing.T) {
	var out bytes.Buffer
	p := &progress{w: &out, terminal: true}
	p.draw(statusLine(state{Committed: 12345678, Delivered: 12345678, Missing: 1234567, P50: time.Hour}, 123456))
	if line := strings.Trim(out.String(), "\r\x1b[K"); len(line) > 79 {
		t.Errorf("%d characters: %s", len(line), line)
	}
}

func TestProgressElsewhereIsLines(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	p := newProgress(file, false)
	p.draw(statusLine(state{Committed: 1234, Delivered: 1200, Missing: 34, P50: 3140 * time.Microsecond}, 499.6))
	p.done()
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if want := "committed 1,234  delivered 1,200  waiting 34  500/s  p50 3.1 ms\n"; string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestQuietProgressShowsOnlyWarnings(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out, true)
	p.Say("hello")
	p.Watch(context.Background(), newLedger())
	if _, err := p.Write([]byte("a warning\n")); err != nil {
		t.Fatal(err)
	}
	if out.String() != "a warning\n" {
		t.Errorf("got %q, want the warning alone", out.String())
	}
}

func TestRateIsThatOfTheLastSecond(t *testing.T) {
	var r rate
	start := time.Now()
	for i, want := range []float64{0, 100, 100, 100, 250, 400, 400} { // each half second
		at := start.Add(time.Duration(i) * 500 * time.Millisecond)
		n := min(i, 3)*50 + max(i-3, 0)*200
		if got := r.of(at, n); got != want {
			t.Errorf("after %v: got %v, want %v", at.Sub(start), got, want)
		}
	}
}

func TestStateShowsTheNewestLatencies(t *testing.T) {
	l := newLedger()
	for range 2 * recentLatencies {
		l.note(&entry{committed: 1, received: 10})
	}
	for range recentLatencies/2 + 1 {
		l.note(&entry{committed: 1, received: 3})
	}
	if got := l.State().P50; got != 2 {
		t.Errorf("got p50 %d, want 2", got)
	}
	l.Committed(event{ID: outbox.NewID()})
	if s := l.State(); s.Committed != 1 || s.Missing != 1 || s.Delivered != 0 {
		t.Errorf("got %+v", s)
	}
}
