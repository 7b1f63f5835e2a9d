package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/pgtest"
)

// demoJSON runs a demo with --json and returns its exit code and its figures.
func demoJSON(t *testing.T, args ...string) (int, map[string]float64) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args = append([]string{"demo", "--json", "--duration", "1s", "--database", pgtest.URL(t)}, args...)
	code := execute(args, &stdout, &stderr)
	t.Logf("exit code %d\n%s%s", code, stdout.String(), stderr.String())

	var fields map[string]any
	d := json.NewDecoder(&stdout)
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("stdout is no JSON: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		t.Errorf("stdout holds more than one JSON object")
	}
	numbers := map[string]float64{}
	for name, v := range fields {
		if n, ok := v.(float64); ok {
			numbers[name] = n
		}
	}
	for name := range strings.FieldsSeq("committed delivered distinct lost invented duplicates order_violations events_per_second p50_ms p99_ms relays") {
		if _, ok := numbers[name]; !ok {
			t.Errorf("%s: got %v, want a number", name, fields[name])
		}
	}
	return code, numbers
}

func TestDemoJSON(t *testing.T) {
	code, got := demoJSON(t, "--rate", "200", "--relays", "2")
	if code != exitOK {
		t.Errorf("exit code: got %d, want %d", code, exitOK)
	}
	for _, name := range []string{"lost", "invented", "duplicates", "order_violations"} {
		if got[name] != 0 {
			t.Errorf("%s: got %v, want 0", name, got[name])
		}
	}
	if got["committed"] == 0 || got["delivered"] != got["committed"] || got["relays"] != 2 {
		t.Errorf("the figures do not add up: %v", got)
	}
}

func TestDemoNaiveJSON(t *testing.T) {
	code, got := demoJSON(t, "--rate", "100", "--naive")
	if got["duplicates"] == 0 || got["relays"] != 3 || got["delivered"] != got["distinct"]+got["duplicates"] {
		t.Errorf("three pollers, and no duplicates: %v", got)
	}
	want := exitOK
	if got["lost"]+got["invented"]+got["order_violations"] > 0 {
		want = exitFailure
	}
	if code != want {
		t.Errorf("exit code: got %d, want %d", code, want)
	}
}

func TestDemoRefusesWhatItCannotShow(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := execute([]string{"demo", "--rate", "-1", "--sink", "redis://k"}, &stdout, &stderr); code != exitUsage {
		t.Errorf("exit code: got %d, want %d", code, exitUsage)
	}
	for _, want := range []string{"rate -1", "sink: want a URL"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr.String())
		}
	}
}

// Ctrl-C in the middle: the process says so, and nothing of it is left, no server and no file.
func TestDemoInterrupted(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "commitrelay")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} { // a temporary PostgreSQL may run as another user
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), binary, "demo", "--duration", "1h", "--rate", "50")
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var output strings.Builder
	interrupted := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		output.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "committed") && !interrupted { // a second one would end it at once
			interrupted = true
			if files, err := filepath.Glob(filepath.Join(dir, "commitrelay-*")); err != nil || len(files) == 0 {
				t.Errorf("no temporary files while it runs: this test looks in the wrong place (%v)", err)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailure {
		t.Errorf("exit code: got %d (%v), want %d\n%s", code, err, exitFailure, output.String())
	}
	if !strings.Contains(output.String(), "interrupted; all that the demo made is removed") {
		t.Errorf("the output does not say what happened:\n%s", output.String())
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		t.Errorf("left behind: %s", f.Name())
	}
}
