package sinktest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const faultVariable = "SINKTEST_FAULT"

// The suite passes a sink that keeps the contract. With a fault in the environment it is the
// subject of the test below.
func TestContract(t *testing.T) {
	Run(t, Harness{Open: func(t *testing.T) Destination {
		return newMemory(os.Getenv(faultVariable)).destination()
	}})
}

// The suite finds each of these faults, in the case that is there for it.
func TestFaultsAreFound(t *testing.T) {
	faults := map[string]string{
		"sends twice":              "everything_arrives_once_and_in_order",
		"reverses the batch":       "everything_arrives_once_and_in_order",
		"keeps the batch":          "everything_arrives_once_and_in_order",
		"drops headers":            "payloads_and_headers_arrive_unchanged",
		"goes on after a refusal":  "refused_messages_hold_back_their_key_only",
		"one answer for all":       "many_refused_messages_in_one_batch",
		"goes on after a cut":      "connections_cut_in_the_middle_of_a_batch",
		"does not see a cut":       "connections_cut_in_the_middle_of_a_batch",
		"does not wait":            "acknowledgements_withheld",
		"does not see the context": "a_context_that_has_ended",
	}
	for fault, found := range faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-test.run=^TestContract$/^"+found+"$")
			cmd.Env = append(os.Environ(), faultVariable+"="+fault)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestContract/"+found) {
				t.Errorf("the suite does not find it: %v\n%s", err, out)
			}
		})
	}
}
