//go:build unix

package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
)

// plant is a bug in the engine or a sink, and the torture that must find it.
type plant struct {
	name    string
	changes []replacement
	options Options
	found   func(*Report) int // how often
}

// plants are the mistakes that this design invites. They are made in a copy of the source: when that
// changes, so do these. Each torture is tuned to its bug: all relays work, and the faults are those that
// matter.
var plants = []plant{
	{
		name: "bound too late",
		changes: []replacement{{
			"internal/window/position.go",
			"bound = max(bound, b.Pairs[i-1].H)",
			"bound = max(bound, b.Pairs[min(i, len(b.Pairs)-1)].H)",
		}},
		options: Options{Calm: true, Rate: 600},
		found:   func(r *Report) int { return r.Lost },
	},
	{
		name: "position stored before the confirm",
		changes: []replacement{{
			"relay/page.go",
			"		v, err := l.attempt(entries)\n",
			"		l.moveTo(window.Open{From: page.Window.From, Window: page.Window, P: page.P})\n" +
				"		if err := l.saveNow(); err != nil {\n			return err\n		}\n" +
				"		v, err := l.attempt(entries)\n",
		}},
		// One relay, so that whoever is killed has a batch in flight; a slow link makes that last.
		options: Options{Relays: 1, Rate: 600, steps: killsBehindSlowLinks},
		found:   func(r *Report) int { return r.Lost },
	},
	{
		name: "no epoch check", // nor of the owner, which is there for servers that lack the last epochs
		changes: []replacement{
			{
				"internal/store/sql/lanes_store.sql",
				"AND l.owner = $19::uuid",
				"AND $19::uuid IS NOT NULL",
			},
			{
				"internal/store/sql/lanes_store.sql",
				"WHERE g.lane = l.lane AND g.epoch = l.epoch)",
				"WHERE g.lane = l.lane)",
			},
			{
				"internal/store/sql/lanes_store.sql",
				"AND g.lane = held.lane AND l.epoch = g.epoch\n",
				"AND g.lane = held.lane\n",
			},
		},
		options: Options{Relays: 2, Rate: 600, Lease: time.Second, Duration: 30 * time.Second, steps: lateWrites},
		found:   func(r *Report) int { return r.UnexplainedDuplicates },
	},
	{
		name: "no I9 inside a batch",
		changes: []replacement{{
			"sink/internal/keyed/keyed.go",
			"		if before, ok := last[k]; ok {\n			b.next[before] = int32(i)\n		} else {\n			b.makeReady(i)\n		}\n",
			"		b.makeReady(i)\n",
		}},
		options: Options{Keys: 6, Rate: 600, Batch: 1000, Kinds: []Kind{TopicGone}},
		found:   func(r *Report) int { return r.OrderViolations },
	},
}

// killsBehindSlowLinks kills relays again and again whose broker answers late.
func killsBehindSlowLinks(o Options) (steps []step) {
	rng := rand.New(rand.NewPCG(uint64(o.Seed), 2))
	for t := time.Second; t < o.Duration-time.Second; {
		steps = append(steps, step{at: t, kind: SlowBroker, slot: 1, delay: 30 * time.Millisecond, direction: tcpproxy.Both, length: time.Second})
		kill := t + 200*time.Millisecond + time.Duration(rng.Int64N(int64(600*time.Millisecond)))
		steps = append(steps, step{at: kill, kind: Kill, slot: 1, length: 50 * time.Millisecond})
		t += o.Lease + 1500*time.Millisecond + time.Duration(rng.Int64N(int64(time.Second)))
	}
	return steps
}

// lateWrites holds back what a relay sends to the database, and freezes it so that it takes nothing back, until
// another one has taken its lanes and stored more, and kills that one just before: the late write is the last
// one, and what the next owner finds.
func lateWrites(o Options) (steps []step) {
	rng := rand.New(rand.NewPCG(uint64(o.Seed), 3))
	late := 1
	const sent = 300 * time.Millisecond // a store is on its way by then
	for t := time.Second; t < o.Duration-3*o.Lease; {
		length := 2*o.Lease + time.Duration(rng.Int64N(int64(o.Lease/2)))
		kill := t + length - 20*time.Millisecond - time.Duration(rng.Int64N(int64(40*time.Millisecond)))
		steps = append(steps,
			step{at: t, kind: HoleDB, slot: late, length: length, direction: tcpproxy.ToServer},
			step{at: t + sent, kind: Freeze, slot: late, length: length},
			step{at: kill, kind: Kill, slot: 3 - late, length: 100 * time.Millisecond})
		if rng.IntN(2) == 0 {
			late = 3 - late
		}
		t += length + 3*o.Lease
	}
	return steps
}

// seedsVariable says by how many seeds each bug must be found. Default 1.
const seedsVariable = "COMMITRELAY_TORTURE_SEEDS"

// TestPlantedBugs proves that the torture can fail: it finds each bug that is planted. With more than one
// seed (`make torture-bugs`) the same tortures without the bugs must also find nothing.
func TestPlantedBugs(t *testing.T) {
	seeds := 1
	if s := os.Getenv(seedsVariable); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q: want a number of seeds", seedsVariable, s)
		}
		seeds = n
	}
	program := build(t)
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			p.options.Program = program
			p.options.RelayProgram = buildWith(t, p.changes)
			for seed := range int64(seeds) {
				t.Run(fmt.Sprint(seed+1), func(t *testing.T) { p.mustBeFound(t, seed+1) })
			}
			if seeds > 1 {
				t.Run("without the bug", func(t *testing.T) {
					p.options.RelayProgram = program
					if report := p.run(t, 1); report.Err() != nil {
						t.Errorf("%v", report.Err())
					}
				})
			}
		})
	}
}

func (p plant) mustBeFound(t *testing.T, seed int64) {
	began := time.Now()
	report := p.run(t, seed)
	t.Logf("%d lost, %d invented, %d out of order, %d duplicates, %d of them unexplained, of %d events, in %v",
		report.Lost, report.Invented, report.OrderViolations, report.Duplicates, report.UnexplainedDuplicates, report.Committed,
		time.Since(began).Round(time.Second))
	if p.found(report) == 0 || report.Err() == nil {
		t.Errorf("the bug was not found: %+v", report)
	}
	if len(report.Problems) > 0 {
		t.Errorf("the relays failed otherwise: %q", report.Problems)
	}
}

// run is a short torture with the bug.
func (p plant) run(t *testing.T, seed int64) *Report {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir()) // what a run keeps that fails as it should goes with the test
	o := p.options
	o.Seed, o.Lanes = seed, or(o.Lanes, lanesOfTests)
	o.Duration, o.Lease, o.Quiet = or(o.Duration, 20*time.Second), or(o.Lease, 2*time.Second), 5*time.Second
	return torture(t, o)
}
