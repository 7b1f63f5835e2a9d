//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/testwait"
)

// TestProcesses runs the binary as processes of their own, against a broker that is a process, too:
// both can be killed, frozen and measured. They are built without the race detector, which would
// falsify their memory.
func TestProcesses(t *testing.T) {
	b := buildPrograms(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Memory", b.memory}, // first: it takes the longest
		{"Backlog", b.backlog},
		{"OwnerKilled", b.ownerKilled},
		{"KilledAlone", b.killedAlone},
		{"OwnerFrozen", b.ownerFrozen},
		{"CleanStops", b.cleanStops},
		{"SinkHangs", b.sinkHangs},
		{"DatabaseRestarts", b.databaseRestarts},
		{"BrokerRestarts", b.brokerRestarts},
		{"ReaderOfPipeGone", b.readerOfPipeGone},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t)
		})
	}
}

// built are the programs.
type built struct{ commitrelay, nats string }

func buildPrograms(t *testing.T) built {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-race=false", "-o", dir+string(filepath.Separator), ".", "github.com/nats-io/nats-server/v2")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return built{filepath.Join(dir, "commitrelay"), filepath.Join(dir, "nats-server")}
}

// process is a program that runs. It is killed when the test ends.
type process struct {
	name   string
	cmd    *exec.Cmd
	stderr *logbook
	exited chan struct{}
}

// start runs a program. Its standard output goes to stdout; nil drops it.
func start(t *testing.T, name string, stdout io.Writer, program string, args ...string) *process {
	t.Helper()
	p := &process{name: name, cmd: exec.Command(program, args...), stderr: &logbook{}, exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = stdout, p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // ProcessState tells
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails if it has ended
		<-p.exited
		if t.Failed() {
			t.Logf("%s, pid %d, %v, said:\n%s", p.name, p.cmd.Process.Pid, p.cmd.ProcessState, p.stderr.end())
		}
	})
	return p
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %s: %v", s, p.name, err)
	}
}

// kill ends the process as kill -9 does.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
}

// wait waits for the end and returns the exit code, -1 if a signal was the end.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	testwait.Closed(t, p.name+" ends", p.exited)
	return p.cmd.ProcessState.ExitCode()
}

// stop stops a relay cleanly.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t); code != exitOK {
		t.Errorf("%s: exit code %d after SIGTERM, want %d", p.name, code, exitOK)
	}
	if p.stderr.count("time for shutdown is over") > 0 {
		t.Errorf("%s was not done within shutdown_timeout", p.name)
	}
}

// running fails the test if the process has ended.
func (p *process) running(t *testing.T) {
	t.Helper()
	select {
	case <-p.exited:
		t.Fatalf("%s has ended: %v", p.name, p.cmd.ProcessState)
	default:
	}
}

// awaitLog returns the first line of the log whose message begins so.
func (p *process) awaitLog(t *testing.T, message string) logLine {
	t.Helper()
	var found []logLine
	testwait.UntilNil(t, fmt.Sprintf("%s logs %q", p.name, message), func() error {
		p.running(t)
		found = p.stderr.lines(message)
		if len(found) == 0 {
			return errors.New("it did not")
		}
		return nil
	})
	return found[0]
}

// health asks /readyz, or returns an error while there is nobody to ask.
func (p *process) health() (status int, h healthView, err error) {
	served := p.stderr.lines("health is served")
	if len(served) == 0 {
		return 0, h, errors.New("health is not served yet")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testwait.Limit}
	resp, err := client.Get("http://" + served[0].Address + "/readyz")
	if err != nil {
		return 0, h, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&h)
	return resp.StatusCode, h, err
}

// awaitState waits until /readyz has the status and the one subscription the state.
func (p *process) awaitState(t *testing.T, status int, state string) {
	t.Helper()
	testwait.UntilNil(t, fmt.Sprintf("%s answers %d, %s", p.name, status, state), func() error {
		p.running(t)
		got, h, err := p.health()
		if err != nil {
			return err
		}
		if got != status || h.state() != state || h.Ready != (status == http.StatusOK) {
			return fmt.Errorf("it answers %d, %+v", got, h)
		}
		return nil
	})
}

// healthView is what /readyz and `status --json` have in common.
type healthView struct {
	Ready         bool `json:"ready"`
	Subscriptions []struct {
		Name  string `json:"name"`
		Sink  string `json:"sink"`
		State string `json:"state"`
		Error string `json:"error"`
	} `json:"subscriptions"`
}

func (h healthView) state() string {
	if len(h.Subscriptions) != 1 {
		return fmt.Sprintf("%d subscriptions", len(h.Subscriptions))
	}
	return h.Subscriptions[0].State
}

// logbook keeps what a process writes to its standard error.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

type logLine struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"`
	Msg     string    `json:"msg"`
	Address string    `json:"address"`
}

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// end is the last of it, for a failure.
func (l *logbook) end() string {
	s := l.String()
	return s[max(0, len(s)-2000):]
}

// lines are the complete lines of JSON whose message begins so.
func (l *logbook) lines(message string) (found []logLine) {
	for line := range strings.Lines(l.String()) {
		var j logLine
		if json.Unmarshal([]byte(line), &j) == nil && strings.HasPrefix(j.Msg, message) {
			found = append(found, j)
		}
	}
	return found
}

func (l *logbook) count(message string) int { return len(l.lines(message)) }

// peakMemory is the most physical memory that a process has used, in MiB: its VmHWM. Where the
// system does not tell that, it is what the process uses now.
func peakMemory(t *testing.T, p *process) float64 {
	t.Helper()
	p.running(t)
	pid := fmt.Sprint(p.cmd.Process.Pid)
	var kib float64
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err == nil {
		_, after, _ := bytes.Cut(status, []byte("VmHWM:"))
		_, err = fmt.Sscan(string(after), &kib)
	} else {
		var out []byte
		if out, err = exec.Command("ps", "-o", "rss=", "-p", pid).Output(); err == nil {
			_, err = fmt.Sscan(string(out), &kib)
		}
	}
	if err != nil {
		t.Fatalf("memory of %s: %v", p.name, err)
	}
	return kib / 1024
}
