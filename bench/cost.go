package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cost is what something took out of PostgreSQL: processor time of all its processes, those that have ended
// meanwhile included, and bytes of its log.
type cost struct {
	cpu time.Duration
	wal int64
}

// costOf measures what the server does while work runs. Nothing else may use it then.
func (s *server) costOf(ctx context.Context, work func() error) (cost, error) {
	before, err := s.spent(ctx)
	if err != nil {
		return cost{}, err
	}
	if err := work(); err != nil {
		return cost{}, err
	}
	after, err := s.spent(ctx)
	if err != nil {
		return cost{}, err
	}
	return cost{cpu: after.cpu - before.cpu, wal: after.wal - before.wal}, nil
}

// cpuPer is in microseconds.
func (c cost) cpuPer(events int) float64 { return float64(c.cpu.Nanoseconds()) / 1e3 / float64(events) }

func (c cost) walPer(events int) float64 { return float64(c.wal) / float64(events) }

// spent is what it has taken since the server's start.
func (s *server) spent(ctx context.Context) (c cost, err error) {
	if err := s.pool.QueryRow(ctx, query("wal")).Scan(&c.wal); err != nil {
		return cost{}, fmt.Errorf("read the end of the log: %w", err)
	}
	for {
		// A child that ends moves its time to the postmaster's account. If that changed while we looked at the
		// children, one may have been missed.
		before, err := readTimes(s.pid)
		if err != nil {
			return cost{}, err
		}
		children, err := childTimes(s.pid)
		if err != nil {
			return cost{}, err
		}
		after, err := readTimes(s.pid)
		if err != nil {
			return cost{}, err
		}
		if after.ended == before.ended {
			c.cpu = after.own + after.ended + children
			return c, nil
		}
	}
}

// times are what the kernel says a process has used.
type times struct {
	parent     int
	own, ended time.Duration // ended is that of its children that are no more
}

// tick is the unit of /proc/PID/stat. The kernel shows it so to every program, however it counts itself.
const tick = 10 * time.Millisecond

func readTimes(pid int) (times, error) {
	name := fmt.Sprintf("/proc/%d/stat", pid)
	b, err := os.ReadFile(name)
	if err != nil {
		return times{}, fmt.Errorf("read a process's time: %w", err)
	}
	text := string(b)
	// The program's name stands in parentheses and may hold anything; proc(5) counts from it.
	const ppid, utime, stime, cutime, cstime = 1, 11, 12, 13, 14
	f := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(f) <= cstime {
		return times{}, fmt.Errorf("%s: cut short", name)
	}
	var n [cstime + 1]int
	for _, i := range []int{ppid, utime, stime, cutime, cstime} {
		if n[i], err = strconv.Atoi(f[i]); err != nil {
			return times{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return times{
		parent: n[ppid],
		own:    time.Duration(n[utime]+n[stime]) * tick,
		ended:  time.Duration(n[cutime]+n[cstime]) * tick,
	}, nil
}

// childTimes adds up the children of a process.
func childTimes(pid int) (sum time.Duration, err error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if t, err := readTimes(child); err == nil && t.parent == pid { // else it is no more
			sum += t.own
		}
	}
	return sum, nil
}

// peakMemory is the most memory that a process has held so far, in MiB.
func peakMemory(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read a process's memory: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if kb, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.Atoi(strings.Fields(kb)[0])
			return float64(n) / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status: no VmHWM", pid)
}
