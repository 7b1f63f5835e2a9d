package store

import (
	"regexp"
	"strings"
	"testing"
)

// The status is read by the index on seq, however full the outbox is, whether or not anything was ever analysed.
func TestStatusPlans(t *testing.T) {
	p := newPlans(t)
	if _, err := p.store.Subscribe(t.Context(), Subscription{Name: "all", Lanes: 16, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	p.exec(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'user', g::text, 'Created', '{}' FROM generate_series(1, 200000) AS g`)
	leaf := regexp.MustCompile(`(Seq Scan on outbox_events|Sort$)`)
	large := regexp.MustCompile(`on outbox_events_s\d.*rows=(\d{6,}) `)
	for _, when := range []string{"never analysed", "analysed"} {
		if when == "analysed" {
			p.exec("ANALYZE")
		}
		for name, params := range map[string][]string{
			"status_near":    {"all", "{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}", "10000"},
			"status_waiting": {"all", "100000", "110000"},
		} {
			plan := p.explain("ANALYZE, COSTS OFF, TIMING OFF", p.store.sql["status_plan"], name, params...) // as readWaiting does
			if leaf.MatchString(plan) || large.MatchString(plan) || !strings.Contains(plan, "_seq_idx") {
				t.Errorf("%s, %s: more is read than is looked at:\n%s", name, when, plan)
			}
		}
	}
}
