package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// fleet is a number of relays, each a process of the real binary.
type fleet struct {
	relays []*exec.Cmd
	logs   []*bytes.Buffer
	ended  chan error // one per relay
}

// program is the binary, built once.
type program struct{ dir, path string }

func buildProgram(ctx context.Context) (_ program, err error) {
	const module = "github.com/commitrelay/outbox"
	source, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return program{}, fmt.Errorf("find module %s (the bench runs in its own folder): %w", module, err)
	}
	dir, err := os.MkdirTemp("", "commitrelay-bench-")
	if err != nil {
		return program{}, fmt.Errorf("build the relay: %w", err)
	}
	p := program{dir: dir, path: filepath.Join(dir, "commitrelay")}
	build := exec.CommandContext(ctx, "go", "build", "-o", p.path, "./cmd/commitrelay")
	build.Dir = strings.TrimSpace(string(source)) // with the versions of its own go.mod
	if out, err := build.CombinedOutput(); err != nil {
		return program{}, errors.Join(fmt.Errorf("build the relay: %w\n%s", err, out), p.remove())
	}
	return p, nil
}

func (p program) remove() error { return os.RemoveAll(p.dir) }

// The configuration of the relays: the defaults, but for where things are. URLs come from the environment.
const configuration = `
database: {url: "${BENCH_DATABASE}"}
sinks:
  bench: {url: "${BENCH_SINK}", %s}
subscriptions:
  - {name: bench, sink: bench, topic: %q}
`

// start starts n relays that share the machine's cores.
func (p program) start(db *database, sinkURL string, d destination, n int) (*fleet, error) {
	config := filepath.Join(p.dir, db.name+".yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, d.Config(), d.Topic()), 0o600); err != nil {
		return nil, fmt.Errorf("configure relays: %w", err)
	}
	f := &fleet{ended: make(chan error, n)}
	for range n {
		cmd := exec.Command(p.path, "run", "--config", config)
		for _, v := range os.Environ() {
			if !strings.HasPrefix(v, "COMMITRELAY_") { // it would change what the relay does
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, "BENCH_DATABASE="+db.url, "BENCH_SINK="+sinkURL, fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/n)))
		log := new(bytes.Buffer)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(fmt.Errorf("start a relay: %w", err), f.stop())
		}
		f.relays, f.logs = append(f.relays, cmd), append(f.logs, log)
		go func() {
			if err := cmd.Wait(); err != nil {
				f.ended <- fmt.Errorf("a relay ended: %w\n%s", err, log)
				return
			}
			f.ended <- nil
		}()
	}
	return f, nil
}

// while calls use, with a context that ends as soon as a relay does.
func (f *fleet) while(ctx context.Context, use func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	used := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case err := <-f.ended:
			f.ended <- err // for stop
			cancel(errors.Join(errors.New("a relay ended before it was told to"), err))
		case <-used:
		}
	}()
	err := use(ctx)
	close(used)
	<-watched
	return err
}

// peakMemory is that of the relay that has needed most.
func (f *fleet) peakMemory() (most float64, err error) {
	for _, r := range f.relays {
		m, err := peakMemory(r.Process.Pid)
		if err != nil {
			return 0, err
		}
		most = max(most, m)
	}
	return most, nil
}

// stop ends the relays as an orchestrator does, and waits for them.
func (f *fleet) stop() (err error) {
	for _, r := range f.relays {
		_ = r.Process.Signal(syscall.SIGTERM) // fails only if it has ended, which is found below
	}
	deadline := time.AfterFunc(patience, func() {
		for _, r := range f.relays {
			_ = r.Process.Kill()
		}
	})
	defer deadline.Stop()
	for range f.relays {
		err = errors.Join(err, <-f.ended)
	}
	return err
}
