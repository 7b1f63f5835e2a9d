package store

import (
	"fmt"
	"strings"
	"testing"
)

// What a lane reads of the parked events is its own: dead ones, of which there may be many and for long, are found by an index
// and only where they matter.
func TestParkedPlans(t *testing.T) {
	p := newPlans(t)
	if _, err := p.store.Subscribe(t.Context(), Subscription{Name: "all", Lanes: 64, OnDead: "block"}, false); err != nil {
		t.Fatal(err)
	}
	p.exec(`INSERT INTO commitrelay.parked (subscription, lane, state, epoch, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at, next_attempt)
		SELECT 'all', n % 64, CASE WHEN n % 10 = 0 THEN 'parked' ELSE 'dead' END, 1, 't', n, gen_random_uuid(), 'user', n::text, 'Created', now(),
			CASE WHEN n % 10 = 0 THEN now() END
		FROM generate_series(1, 100000) AS n`)
	const owner = "00000000-0000-7000-8000-000000000001"
	for _, when := range []string{"never analysed", "analysed"} {
		if when == "analysed" {
			p.exec("ANALYZE")
		}
		for _, block := range []bool{false, true} {
			for name, params := range map[string][]string{
				"parked_keys":    {"all", "5", fmt.Sprint(block)},
				"parked_orphans": {"all", "5", fmt.Sprint(block), "1", owner},
			} {
				plan := p.explain("ANALYZE, COSTS OFF, TIMING OFF", "", name, params...)
				if dead := strings.Contains(plan, "parked_dead_idx"); dead != block || strings.Contains(plan, "Seq Scan on parked") || strings.Contains(plan, "parked_subscription_") {
					t.Errorf("%s, %s, dead events block their keys %v: more is read than the lane's:\n%s", name, when, block, plan)
				}
			}
		}
	}
}
