//go:build unix

package torture

import (
	"strings"
	"testing"
	"time"
)

// lanesOfTests is the number of lanes in tests that do not choose.
const lanesOfTests = 16

// torture runs one and returns its report. What it said is shown if the test fails.
func torture(t *testing.T, o Options) *Report {
	t.Helper()
	var said strings.Builder
	o.Output = &said
	report, err := Run(t.Context(), o)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the run said:\n%s", said.String())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestTorture is the short form of `make torture`, on NATS.
func TestTorture(t *testing.T) {
	report := torture(t, Options{
		Program: build(t), RelayProgram: build(t, raceFlags...),
		Duration: 25 * time.Second, Lanes: lanesOfTests,
	})
	if err := report.Err(); err != nil {
		t.Errorf("%v; by kind: %v", err, report.FaultsByKind)
	}
	if report.Committed == 0 || report.Faults == 0 {
		t.Errorf("%d events were committed under %d faults: nothing was tried", report.Committed, report.Faults)
	}
	if stall, limit := time.Duration(report.LongestStall), time.Duration(report.Lease)+15*time.Second; stall >= limit {
		t.Errorf("an event waited %v, want less than %v: %+v", stall, limit, report.Stalled)
	}
	t.Logf("seed %d: %d events, %d faults, %d duplicates, longest stall %v",
		report.Seed, report.Committed, report.Faults, report.Duplicates, time.Duration(report.LongestStall))
}
