package relay

import (
	"math/rand/v2"
	"time"
)

// backoff is the pause before try n+1: base doubled n-1 times, at most limit, give or take a fifth, so that those who
// failed together do not come back together. It cannot overflow: whatever n, the pause lies between 0.8*base and
// 1.2*limit.
func backoff(base, limit time.Duration, n int) time.Duration {
	d := min(base, limit)
	for i := 1; i < n && d < limit; i++ {
		d = min(2*d, limit)
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
