package store

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// The statements of the hot path walk the index on seq, whether or not the leaves were ever analysed (autovacuum leaves
// them alone), whatever the limit and the filter.
func TestPlans(t *testing.T) {
	p := newPlans(t)
	p.exec(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'user', g::text, 'Created' || g % 7, '{}' FROM generate_series(1, 200000) AS g`)
	var leaf string
	if err := p.pool.QueryRow(t.Context(), "SELECT tableoid::regclass::text FROM outbox_events LIMIT 1").Scan(&leaf); err != nil {
		t.Fatal(err)
	}
	// An empty leaf may be looked at in any way.
	scan := regexp.MustCompile(`(Seq Scan|Bitmap Heap Scan) on ` + leaf + `\b`)
	sort := regexp.MustCompile(`(?m)^\s*(->)?\s*(Incremental )?Sort\b\s*$`)
	explain := func(name string, params ...string) string {
		t.Helper()
		before := ""
		if strings.HasSuffix(name, "page") { // as Page sends it
			before = p.store.sql["in_order"]
		}
		return p.explain("COSTS OFF", before, name, params...)
	}
	check := func(when, name string, params ...string) {
		t.Helper()
		plan := explain(name, params...)
		if !strings.Contains(plan, leaf+"_seq_idx on "+leaf) {
			t.Errorf("%s %v, %s: no index is walked:\n%s", name, params, when, plan)
		}
		if scan.MatchString(plan) || sort.MatchString(plan) {
			t.Errorf("%s %v, %s: everything is scanned or sorted:\n%s", name, params, when, plan)
		}
	}
	// park looks each event up. What it sorts is those it parks, after that.
	checkPark := func(when string, n int) {
		t.Helper()
		list := func(value string) string { return "{" + strings.Repeat(value+",", n-1) + value + "}" }
		seqs := make([]string, n)
		for i := range seqs {
			seqs[i] = fmt.Sprint(1 + i*(200000/n))
		}
		plan := explain("park", "all", "0", "{"+strings.Join(seqs, ",")+"}", list("00000000-0000-7000-8000-000000000001"),
			list("parked"), list("1"), list("1.5"), list("refused"), list("t"), "1")
		_, lookups, _ := strings.Cut(plan, "Nested Loop")
		found := regexp.MustCompile(`(using|Bitmap Index Scan on) ` + leaf + `_seq_idx( on .*)?\n\s*Index Cond: \(seq = g\.seq\)`)
		if !found.MatchString(lookups) {
			t.Errorf("park of %d events, %s: they are not looked up:\n%s", n, when, plan)
		}
		if regexp.MustCompile(`Seq Scan on `+leaf+`\b`).MatchString(plan) || sort.MatchString(lookups) || regexp.MustCompile(`(Hash|Merge) Join`).MatchString(plan) {
			t.Errorf("park of %d events, %s: everything is scanned, sorted or joined:\n%s", n, when, plan)
		}
	}
	const all, some = "{}", `{Created%,Deleted}`
	const oneLane = "{f,f,t,f}"
	for _, when := range []string{"never analysed", "analysed"} {
		if when == "analysed" {
			p.exec("ANALYZE")
		}
		for _, seq := range []string{"0", "150000", "199990"} {
			check(when, "next_seq", seq)
			for _, filter := range []string{all, some} {
				for _, limit := range []string{"1", "1000", "10000"} {
					hi := map[string]string{"0": "100000"}[seq] // 100000 more, as a reader asks
					for _, lanes := range []string{null, oneLane} {
						check(when, "page", seq, cmp.Or(hi, "200000"), "3:3:", "100000:100000:", all, filter, limit, "4", lanes)
						check(when, "catch_up_page", seq, cmp.Or(hi, "200000"), "3:3:", "0", "3:3:", "0", filter, all, limit, "4", lanes)
					}
				}
			}
		}
		check(when, "max_seq", "1")
		slot := strings.TrimPrefix(leaf, "outbox_events_s")
		for name, plan := range map[string]string{"wheel_slots": explain("wheel_slots"), "wheel_lanes": explain("wheel_lanes", slot)} {
			if !strings.Contains(plan, "Index Scan Backward using "+leaf+"_seq_idx on "+leaf) || scan.MatchString(plan) {
				t.Errorf("%s, %s: no index is walked, or everything is scanned:\n%s", name, when, plan)
			}
			if name == "wheel_lanes" && strings.Count(plan, "outbox_events_s") != 2 { // the index, and its leaf
				t.Errorf("%s, %s: other leaves are looked at:\n%s", name, when, plan)
			}
		}
		for _, n := range []int{1, 100, 1000} {
			checkPark(when, n)
		}
	}
}
