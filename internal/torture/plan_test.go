package torture

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func planned(t *testing.T, o Options) []step {
	t.Helper()
	o, err := o.complete()
	if err != nil {
		t.Fatal(err)
	}
	return plan(o)
}

// A seed is worth nothing if it does not bring the same faults again.
func TestPlanFollowsFromTheSeed(t *testing.T) {
	o := Options{Seed: 7, Duration: 5 * time.Minute}
	a, b := fmt.Sprint(planned(t, o)), fmt.Sprint(planned(t, o))
	if a != b {
		t.Errorf("the same seed planned\n%s\nand\n%s", a, b)
	}
	o.Seed = 8
	if fmt.Sprint(planned(t, o)) == a {
		t.Error("another seed planned the same")
	}
}

func TestPlanHasEverything(t *testing.T) {
	for _, sink := range []string{"nats", "rabbitmq", "kafka"} {
		kinds := map[Kind]int{}
		for seed := range int64(20) {
			for _, s := range planned(t, Options{Seed: seed + 1, Sink: sink}) {
				kinds[s.kind]++
				if s.at < warmUp || s.at >= time.Minute {
					t.Errorf("%s is planned outside of the run", s)
				}
			}
		}
		for _, k := range sinkKinds[sink] {
			if kinds[k] == 0 {
				t.Errorf("%s: no %s in 20 plans of a minute", sink, k)
			}
		}
		if len(kinds) != len(sinkKinds[sink]) {
			t.Errorf("%s: planned %v, want kinds out of %v", sink, kinds, sinkKinds[sink])
		}
	}
}

// Whatever is planned, somebody is there to work, and none is started twice.
func TestPlanKeepsBooks(t *testing.T) {
	for seed := range int64(50) {
		alive := map[int]bool{1: true, 2: true, 3: true}
		n := 3
		for _, s := range planned(t, Options{Seed: seed + 1, Duration: 10 * time.Minute}) {
			switch s.kind {
			case Join:
				if alive[s.slot] || s.slot < 1 || s.slot > 5 {
					t.Fatalf("seed %d: %s, and slot %d has a relay", seed+1, s, s.slot)
				}
				alive[s.slot] = true
				n++
			case Restart, Terminate, BrokerDown, TopicGone:
				if s.slot != 0 {
					t.Fatalf("seed %d: %s hits one relay", seed+1, s)
				}
			default:
				if !alive[s.slot] {
					t.Fatalf("seed %d: %s, and slot %d has no relay", seed+1, s, s.slot)
				}
				if s.kind == Leave {
					alive[s.slot] = false
					n--
				}
			}
			if n < 1 {
				t.Fatalf("seed %d: nobody is left after %s", seed+1, s)
			}
		}
	}
}

func TestOptionsFaultsAreReportedTogether(t *testing.T) {
	_, err := Options{Sink: "carrier pigeon", Lanes: 3, Lease: time.Millisecond, Relays: 1000}.complete()
	if err == nil {
		t.Fatal("no fault was found")
	}
	want := []string{"carrier pigeon", "3 lanes", "lease 1ms", "1000 relays"}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not tell of %q", err, w)
		}
	}
	if _, err := (Options{Sink: "kafka", Kinds: []Kind{TopicGone}}).complete(); err == nil {
		t.Error("a fault that Kafka cannot have is accepted")
	}
}
