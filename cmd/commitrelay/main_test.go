package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// leakCheck runs the tests and then looks for goroutines that they left behind.
type leakCheck struct{ m *testing.M }

func (l leakCheck) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		code = 1
	}
	return code
}

// TestMain makes this binary commitrelay itself when scripts call it by that name.
func TestMain(m *testing.M) {
	testscript.Main(leakCheck{m}, map[string]func(){"commitrelay": main})
}
