package torture

import (
	"testing"
	"time"
)

func TestStall(t *testing.T) {
	a := event(keyA, 1)
	tests := []struct {
		name    string
		arrives float64
		faults  [][2]float64
		want    float64
	}{
		{"at once", 0, nil, 0},
		{"no fault", 7, nil, 7},
		{"before the writer knew", -1, nil, 0},
		{"a fault all the time", 7, [][2]float64{{-1, 8}}, 0},
		{"a fault and the lease after it", 30, [][2]float64{{5, 6}}, 30 - 11},
		{"overlapping faults", 60, [][2]float64{{20, 20}, {5, 8}, {6, 15}}, 5 + 30}, // excused: 5 to 30
		{"a short one within a long one", 60, [][2]float64{{5, 40}, {6, 7}}, 5 + 10},
		{"a fault long before", 7, [][2]float64{{-20, -15}}, 7},
		{"a lease that reaches into it", 7, [][2]float64{{-20, -8}}, 5},
		{"a fault afterwards", 7, [][2]float64{{8, 9}}, 7},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newScene()
			s.commit(keyA, 1)
			s.arrive(s.call(r1, test.arrives, a), test.arrives, a)
			for _, f := range test.faults {
				s.fault(Restart, Target{}, f[0], f[1])
			}
			s.fault(Join, Target{3, 1}, 0, 0) // no fault
			if got := Check(&s.rec).LongestStall; got != Seconds(at(test.want).Sub(start)) {
				t.Errorf("stall %v, want %v s", time.Duration(got), test.want)
			}
		})
	}
}

// A broker that does not tell the time: the relay's journal does.
func TestArrivalTimeFromJournal(t *testing.T) {
	s := newScene()
	s.commit(keyA, 1)
	s.deliver(r1, 4, event(keyA, 1))
	s.rec.Arrivals[0].At = time.Time{}
	if got, want := Check(&s.rec).LongestStall, Seconds(4100*time.Millisecond); got != want {
		t.Errorf("stall %v, want %v", time.Duration(got), time.Duration(want))
	}
}
