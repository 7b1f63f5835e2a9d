package store

import (
	"regexp"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

// The status is read by the index on seq, however full the outbox is, whether or not anything was ever analysed.
func TestStatusPlans(t *testing.T) {
	ctx := t.Context()
	pool := pgtest.Pool(t)
	if err := migrate.Up(ctx, pool, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, pool, ident.Table{Schema: "public", Name: "outbox_events"}, "commitrelay")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Subscribe(ctx, Subscription{Name: "all", Lanes: 16, OnDead: "continue"}, false); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'user', g::text, 'Created', '{}' FROM generate_series(1, 200000) AS g`)
	explain := func(name string, params ...string) (plan string) {
		t.Helper()
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		var values [][]byte
		for _, p := range params {
			values = append(values, []byte(p))
		}
		pg := conn.Conn().PgConn()
		if _, err := pg.Exec(ctx, "BEGIN; "+s.sql["status_plan"]).ReadAll(); err != nil { // as readWaiting does
			t.Fatal(err)
		}
		result := pg.ExecParams(ctx, "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+s.sql[name], values, nil, nil, nil).Read()
		if result.Err != nil {
			t.Fatalf("%s: %v", name, result.Err)
		}
		if _, err := pg.Exec(ctx, "COMMIT").ReadAll(); err != nil {
			t.Fatal(err)
		}
		for _, row := range result.Rows {
			plan += string(row[0]) + "\n"
		}
		return plan
	}
	leaf := regexp.MustCompile(`(Seq Scan on outbox_events|Sort$)`)
	large := regexp.MustCompile(`on outbox_events_s\d.*rows=(\d{6,}) `)
	for _, when := range []string{"never analysed", "analysed"} {
		if when == "analysed" {
			exec("ANALYZE")
		}
		for name, params := range map[string][]string{
			"status_near":    {"all", "{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}", "10000"},
			"status_waiting": {"all", "100000", "110000"},
		} {
			plan := explain(name, params...)
			if leaf.MatchString(plan) || large.MatchString(plan) || !strings.Contains(plan, "_seq_idx") {
				t.Errorf("%s, %s: more is read than is looked at:\n%s", name, when, plan)
			}
		}
	}
}
