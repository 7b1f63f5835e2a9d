package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// progress tells people what goes on: on a terminal by one line that is redrawn in place, elsewhere
// by a line per second. It is an io.Writer for log lines that appear between its own.
type progress struct {
	w        io.Writer
	quiet    bool // only log lines
	terminal bool

	mu    sync.Mutex
	drawn bool // the cursor stands behind a line that will be redrawn
}

func newProgress(w io.Writer, quiet bool) *progress {
	return &progress{w: w, quiet: quiet, terminal: isTerminal(w)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Say prints a line that stays.
func (p *progress) Say(format string, args ...any) {
	if !p.quiet {
		fmt.Fprintf(p, format+"\n", args...)
	}
}

// Write prints whole lines that stay, above the one that is redrawn.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	return p.w.Write(b)
}

// done removes the line that was redrawn.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *progress) clear() {
	if p.drawn {
		io.WriteString(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// draw shows a line: on a terminal in the place of the one before, cut to 80 columns, because a line
// that wraps cannot be redrawn.
func (p *progress) draw(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.terminal {
		io.WriteString(p.w, line+"\n")
		return
	}
	io.WriteString(p.w, "\r"+line[:min(len(line), 79)]+"\x1b[K")
	p.drawn = true
}

// Watch shows the ledger until ctx ends.
func (p *progress) Watch(ctx context.Context, l *ledger) {
	if p.quiet {
		return
	}
	defer p.done()
	every := time.Second
	if p.terminal {
		every = 100 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var r rate
	r.of(time.Now(), l.State().Delivered)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s := l.State()
			p.draw(statusLine(s, r.of(now, s.Delivered)))
		}
	}
}

func statusLine(s state, perSecond float64) string {
	return fmt.Sprintf("committed %s  delivered %s  waiting %s  %s/s  p50 %s ms",
		thousands(s.Committed), thousands(s.Delivered), thousands(s.Missing), thousands(int(perSecond+0.5)), decimals(milliseconds(s.P50)))
}

// rate is the speed of a counter over about the last second.
type rate struct {
	seen []sample
}

type sample struct {
	at time.Time
	n  int
}

func (r *rate) of(now time.Time, n int) float64 {
	r.seen = append(r.seen, sample{now, n})
	for len(r.seen) > 2 && now.Sub(r.seen[1].at) >= time.Second {
		r.seen = r.seen[1:]
	}
	first := r.seen[0]
	if elapsed := now.Sub(first.at); elapsed > 0 {
		return float64(n-first.n) / elapsed.Seconds()
	}
	return 0
}
