package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Mode is how the server is stopped.
type Mode int

// The modes of pg_ctl stop.
const (
	Fast      Mode = iota // ends sessions, checkpoints
	Immediate             // as if it had crashed: it recovers at the next start
	Smart                 // waits for the sessions to end
)

func (m Mode) signal() os.Signal {
	switch m {
	case Immediate:
		return syscall.SIGQUIT
	case Smart:
		return syscall.SIGTERM
	default:
		return syscall.SIGINT
	}
}

var errNotRunning = errors.New("temporary PostgreSQL is not running")

// StartAgain starts a cluster that is stopped, on the port that it had, and returns when it
// accepts connections.
func (c *Cluster) StartAgain(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.running() {
		return errors.New("temporary PostgreSQL is running already")
	}
	for attempt := 1; ; attempt++ {
		err := c.start(ctx)
		if err == nil || ctx.Err() != nil {
			c.tested = c.tested || err == nil
			return err
		}
		switch log := c.logTail(); {
		case !c.tested && attempt < 5 && strings.Contains(log, "could not bind"):
			// Someone took the port between our look and the server's start: take another.
			if c.port, err = freePort(); err != nil {
				return err
			}
		case strings.Contains(log, "pre-existing shared memory block"):
			// the processes of a killed postmaster are still on their way out
			if !pause(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		default:
			return fmt.Errorf("%w; the end of its log:\n%s", err, log)
		}
	}
}

// start runs the server and waits until it is ready. If it is not, nothing is left running.
func (c *Cluster) start(ctx context.Context) error {
	// Not bound to ctx: the server outlives the call. Neither does it get the terminal's Ctrl-C,
	// in its own process group: whoever uses it finishes first, and then calls Close.
	cmd := c.Command(context.WithoutCancel(ctx), "postgres", "-D", c.DataDir(), "-p", strconv.Itoa(c.port))
	dieWithParent(cmd.SysProcAttr)
	log, err := os.OpenFile(c.LogFile(), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start temporary PostgreSQL: %w", err)
	}
	defer log.Close() // the server has its own
	cmd.Stdout, cmd.Stderr = log, log
	server, err := launch(cmd)
	if err != nil {
		return fmt.Errorf("start temporary PostgreSQL: %w", err)
	}
	c.server = server
	if err := c.ready(ctx); err != nil {
		c.kill()
		return err
	}
	return nil
}

// ready waits until the server accepts connections. It fails when the server has ended, or with ctx.
func (c *Cluster) ready(ctx context.Context) error {
	for {
		if !c.server.running() {
			return errNotRunning
		}
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		conn, err := pgx.Connect(attempt, c.URL())
		cancel()
		if err == nil {
			return conn.Close(ctx)
		}
		if !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("wait for temporary PostgreSQL: %w: %w", ctx.Err(), err)
		}
	}
}

// Stop stops the server and waits for its end. It fails if that takes more than a minute; a Smart
// stop may, as it waits for the sessions.
func (c *Cluster) Stop(mode Mode) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.server.running() {
		return errNotRunning
	}
	return c.stopWithin(mode, time.Minute)
}

// Restart is Stop and StartAgain.
func (c *Cluster) Restart(ctx context.Context, mode Mode) error {
	if err := c.Stop(mode); err != nil {
		return err
	}
	return c.StartAgain(ctx)
}

// Kill kills the postmaster, as the system does when memory runs out. Its other processes end by
// themselves, a moment later.
func (c *Cluster) Kill() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.server.running() {
		return errNotRunning
	}
	c.kill()
	return nil
}

// Signal sends a signal to the postmaster.
func (c *Cluster) Signal(signal os.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.server.running() {
		return errNotRunning
	}
	return c.server.cmd.Process.Signal(signal)
}

// KillBackend kills (kill -9) one server process of this cluster, whose number pg_backend_pid()
// tells. The postmaster lives on, ends all sessions and recovers; KillBackend returns when the
// server accepts connections again.
func (c *Cluster) KillBackend(ctx context.Context, pid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, err := os.Stat(c.LogFile())
	if err != nil {
		return fmt.Errorf("kill backend %d: %w", pid, err)
	}
	p, err := os.FindProcess(pid)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		return fmt.Errorf("kill backend %d: %w", pid, err)
	}
	// Until the postmaster has noticed, it accepts connections that it will end at once.
	for !strings.Contains(c.logSince(before.Size()), "all server processes terminated") {
		if !c.server.running() {
			return errNotRunning
		}
		if !pause(ctx, 10*time.Millisecond) {
			return fmt.Errorf("wait until the end of backend %d is noticed: %w", pid, ctx.Err())
		}
	}
	return c.ready(ctx)
}

// stopWithin asks the server to stop and waits. It does nothing if it is not running.
func (c *Cluster) stopWithin(mode Mode, limit time.Duration) error {
	if !c.server.running() {
		return nil
	}
	if err := c.server.cmd.Process.Signal(mode.signal()); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop temporary PostgreSQL: %w", err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-c.server.exited:
		return nil
	case <-timer.C:
		return fmt.Errorf("temporary PostgreSQL has not stopped within %v", limit)
	}
}

func (c *Cluster) kill() {
	if c.server.running() {
		_ = c.server.cmd.Process.Kill() // fails only if it has just ended
		<-c.server.exited
	}
}

// logTail is the end of the server's log since its last start.
func (c *Cluster) logTail() string {
	log := c.logSince(0)
	return log[max(0, len(log)-2000):]
}

// logSince is the server's log from an offset on.
func (c *Cluster) logSince(offset int64) string {
	log, err := os.ReadFile(c.LogFile())
	if err != nil {
		return err.Error()
	}
	return string(log[min(offset, int64(len(log))):])
}

// freePort is a port that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// pause waits for d, and reports whether ctx is still on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
