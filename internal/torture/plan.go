package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
)

// step is a fault of the plan.
type step struct {
	at        time.Duration // after the start
	kind      Kind
	slot      int           // whose; 0: a server
	length    time.Duration // how long it lasts; of a kill: until there is a new relay
	delay     time.Duration // of a slow link
	direction tcpproxy.Direction
	hard      bool // the broker is killed, not stopped
	topic     int
}

func (s step) String() string {
	text := fmt.Sprintf("%6.2fs %s", s.at.Seconds(), s.kind)
	if s.slot > 0 {
		text += fmt.Sprintf(" r%d", s.slot)
	}
	if s.length > 0 {
		text += fmt.Sprintf(" for %.2fs", s.length.Seconds())
	}
	if detail := s.detail(); detail != "" {
		text += " (" + detail + ")"
	}
	return text
}

// detail is what a fault's own words do not tell.
func (s step) detail() string {
	switch s.kind {
	case HoleDB, HoleBroker:
		return "held back: " + ways[s.direction]
	case SlowDB, SlowBroker:
		return fmt.Sprintf("%v late: %s", s.delay, ways[s.direction])
	case BrokerDown:
		if s.hard {
			return "killed"
		}
		return "stopped"
	case TopicGone:
		return topicName(s.topic)
	}
	return ""
}

var ways = map[tcpproxy.Direction]string{
	tcpproxy.ToServer: "what the relay sends", tcpproxy.ToClient: "what the server answers", tcpproxy.Both: "both ways",
}

// warmUp is the time without faults at the start, so that there are relays to hit.
const warmUp = 2 * time.Second

// weights say how often each kind comes.
var weights = map[Kind]int{
	Kill: 5, Freeze: 5, Join: 3, Leave: 3, Restart: 2, Terminate: 2, BrokerDown: 2, TopicGone: 2,
	CutDB: 3, CutBroker: 3, HoleDB: 3, HoleBroker: 3, SlowDB: 2, SlowBroker: 2,
}

// plan is the faults of a run. It follows from the options alone: the same seed, the same faults at
// the same times. They come in bursts of up to three, which may overlap with what still lasts; some
// pauses between bursts are so long that all consequences must be over.
func plan(o Options) []step {
	p := &planner{
		rng: rand.New(rand.NewPCG(uint64(o.Seed), 1)), lease: o.Lease, end: o.Duration, kinds: o.Kinds,
		least: o.Relays, alive: make([]bool, o.slots()+1), busy: map[string]time.Duration{},
	}
	for slot := 1; slot <= o.Relays; slot++ {
		p.alive[slot] = true
	}
	for t := warmUp; t < p.end; {
		burst := make([]time.Duration, p.burst())
		for i := range burst {
			burst[i] = t + p.between(0, 1500*time.Millisecond)
		}
		slices.Sort(burst) // one after the other, for who is there depends on those before
		for _, at := range burst {
			p.add(at)
		}
		t = burst[len(burst)-1]
		if calm := p.lease + grace + 2*time.Second; p.rng.IntN(4) == 0 && t+2*calm < p.end {
			t = max(t, p.over) + calm
			continue
		}
		t += p.between(500*time.Millisecond, 4*time.Second)
	}
	return p.steps
}

type planner struct {
	rng   *rand.Rand
	lease time.Duration
	end   time.Duration
	kinds []Kind
	least int // relays below which none leaves

	steps []step
	alive []bool                   // by slot
	busy  map[string]time.Duration // until when, by what: one fault at a time on each
	over  time.Duration            // when all that lasts has ended
}

// burst is 1 to 3, mostly 1.
func (p *planner) burst() int { return max(1, p.rng.IntN(4)) }

func (p *planner) between(low, high time.Duration) time.Duration {
	return low + time.Duration(p.rng.Int64N(int64(high-low)+1))
}

// add plans one fault at t, if the kind that the dice choose is possible then.
func (p *planner) add(t time.Duration) {
	if len(p.kinds) == 0 || t >= p.end {
		return
	}
	s := step{at: t.Round(time.Millisecond), kind: p.kind()}
	if s.kind == Leave && p.count() < p.least && slices.Contains(p.kinds, Join) {
		s.kind = Join // so that there are mostly several
	}
	s.slot = p.pick(s.kind != Join)
	s.direction = tcpproxy.Direction(1 + p.rng.IntN(3))
	if s.slot == 0 {
		return // no slot is free for a join
	}
	what := fmt.Sprintf("%s of slot %d", s.kind, s.slot)
	switch s.kind {
	case Kill, Freeze, Leave, Join:
		what = fmt.Sprintf("slot %d", s.slot)
		if s.kind == Leave && p.count() < 2 {
			return // somebody must work
		}
	case Restart, Terminate:
		what, s.slot = "database", 0
	case BrokerDown, TopicGone:
		what, s.slot = "broker", 0
	}
	long := p.rng.IntN(2) == 0
	switch s.kind {
	case Kill:
		s.length = p.between(100*time.Millisecond, time.Second)
		if long { // the others must take over
			s.length = p.between(p.lease, 2*p.lease)
		}
	case Freeze:
		s.length = p.between(100*time.Millisecond, p.lease*3/4)
		if long {
			s.length = p.between(p.lease*5/4, p.lease*2)
		}
	case Restart:
		s.length = p.between(0, time.Second)
	case BrokerDown:
		s.length, s.hard = p.between(0, 2*time.Second), p.rng.IntN(2) == 0
	case TopicGone:
		s.length, s.topic = p.between(500*time.Millisecond, 3*time.Second), p.rng.IntN(topics)
	case HoleDB, HoleBroker:
		s.length = p.between(p.lease/4, p.lease*3/2)
	case SlowDB, SlowBroker:
		s.length, s.delay = p.between(p.lease/2, p.lease*2), p.between(2*time.Millisecond, 60*time.Millisecond)
	}
	s.length = s.length.Round(time.Millisecond)
	if p.busy[what] > s.at {
		return
	}
	const settle = 500 * time.Millisecond // for what the fault hit to be itself again
	p.busy[what] = s.at + s.length + settle
	p.over = max(p.over, s.at+s.length)
	switch s.kind {
	case Join:
		p.alive[s.slot] = true
	case Leave:
		p.alive[s.slot] = false
		p.busy[what] = s.at + 2*time.Second
	}
	p.steps = append(p.steps, s)
}

func (p *planner) kind() Kind {
	total := 0
	for _, k := range p.kinds {
		total += weights[k]
	}
	n := p.rng.IntN(total)
	for _, k := range p.kinds {
		if n -= weights[k]; n < 0 {
			return k
		}
	}
	panic("unreachable: n is less than the sum")
}

// pick chooses a slot that has a relay, or that has none; 0 if there is none such.
func (p *planner) pick(alive bool) int {
	var able []int
	for slot := 1; slot < len(p.alive); slot++ {
		if p.alive[slot] == alive {
			able = append(able, slot)
		}
	}
	if len(able) == 0 {
		return 0
	}
	return able[p.rng.IntN(len(able))]
}

// count is the number of slots that have a relay.
func (p *planner) count() int {
	n := 0
	for _, alive := range p.alive {
		if alive {
			n++
		}
	}
	return n
}
