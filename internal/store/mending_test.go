package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

// Whoever takes the first event of a key away does not wake the next. Nothing else is woken.
func TestWakeOrphans(t *testing.T) {
	for _, deadBlocks := range []bool{false, true} {
		t.Run(fmt.Sprint("dead blocks: ", deadBlocks), func(t *testing.T) {
			d := newDB(t, migrate.Options{})
			hour := time.Hour
			d.parkAll(t, []string{"orphan", "orphan", "waits", "waits", "behind dead", "behind dead", "dead"}, func(i int, p *store.Parking) {
				switch i {
				case 2: // it will wake the one behind it
					p.Attempts, p.Delay, p.Error = 1, &hour, "refused"
				case 4, 6:
					p.Dead, p.Error = true, "too large"
				}
			})
			woken := func() string {
				t.Helper()
				return get[string](t, d.pool, `SELECT coalesce(string_agg(seq::text, ' ' ORDER BY seq), 'none')
					FROM commitrelay.parked WHERE next_attempt <= now()`)
			}
			former := d.lane
			d.acquire(t, &d.lane)
			if err := d.store.WakeOrphans(t.Context(), former, deadBlocks); err != nil {
				t.Fatal(err)
			}
			same(t, "woken by a former owner", "none", woken())
			if err := d.store.WakeOrphans(t.Context(), d.lane, deadBlocks); err != nil {
				t.Fatal(err)
			}
			same(t, "woken", map[bool]string{false: "1 6", true: "1"}[deadBlocks], woken())
		})
	}
}

// A copy of the server has the same run, the same lanes and the same epochs. Only the moment it was started tells.
func TestStoreOnAnotherServer(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "a", "x")
	w := d.window(t)
	run := d.position(t).Run
	run.Started += "0"
	events, _ := d.read(t, 10, 1<<20)
	open := d.load(t)
	open.From = w.To
	settled := store.Settled{Lane: d.lane, Open: open}
	if stored, err := d.store.StoreLanes(t.Context(), run, []store.Settled{settled}, nil); err != nil || len(stored) > 0 {
		t.Errorf("StoreLanes in a run that began at another time: %v, %v", stored, err)
	}
	if err := d.store.StoreParking(t.Context(), run, settled, []store.Parking{parking(events[0])}); !errors.Is(err, store.ErrFenced) {
		t.Errorf("StoreParking in a run that began at another time: %v, want ErrFenced", err)
	}
	same(t, "stored", int64(0), d.load(t).From.H)
	same(t, "parked", int64(0), get[int64](t, d.pool, "SELECT count(*) FROM commitrelay.parked"))
	d.storeLane(t, open)
}

// Without a right to the sequence there is no position: least of all 0, which is that of an empty outbox.
func TestPositionWithoutRight(t *testing.T) {
	d := newDB(t, migrate.Options{})
	role := fmt.Sprintf("blind%d", databases.Add(1))
	d.exec(t, `CREATE ROLE `+role+`;
		GRANT USAGE ON SCHEMA commitrelay TO `+role+`;
		GRANT SELECT ON commitrelay.run TO `+role+`;
		GRANT SELECT ON SEQUENCE outbox_events_seq TO `+role+`;
		CREATE SCHEMA newer;
		GRANT USAGE ON SCHEMA newer TO `+role+`;
		CREATE FUNCTION newer.pg_sequence_last_value(regclass) RETURNS bigint LANGUAGE sql AS
			'SELECT CASE WHEN has_sequence_privilege($1, ''SELECT, USAGE'') THEN pg_catalog.pg_sequence_last_value($1) END'`)
	as := func(path string) *store.Store {
		t.Helper()
		cfg := d.pool.Config()
		cfg.ConnConfig.RuntimeParams["role"] = role
		cfg.ConnConfig.RuntimeParams["search_path"] = path
		return d.open(t, connect(t, cfg))
	}
	servers := map[string]*store.Store{
		"this":    as("public"),
		"a newer": as("newer, pg_catalog, public"), // one that answers with NULL, as it does for an empty sequence
	}
	for name, s := range servers {
		if r, err := s.Position(t.Context()); err != nil || r.H != 0 {
			t.Errorf("position of an empty outbox on %s server: %d, %v", name, r.H, err)
		}
	}
	d.insert(t, "a", "x")
	d.exec(t, "REVOKE SELECT ON SEQUENCE outbox_events_seq FROM "+role)
	for name, want := range map[string][]string{
		"this":    {"position: ", "permission denied for sequence outbox_events_seq"},
		"a newer": {"position: ", "may not read the sequence", `GRANT SELECT ON SEQUENCE `, "outbox_events_seq"},
	} {
		r, err := servers[name].Position(t.Context())
		if err == nil {
			t.Errorf("position without a right on %s server is %d", name, r.H)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("position without a right on %s server: %v; want it to say %q", name, err, part)
			}
		}
	}
}

// What only a person can mend is no reason to wait for the server.
func TestTransient(t *testing.T) {
	for _, err := range []error{store.ErrNoTable} {
		if store.Transient(fmt.Errorf("begin: %w", err)) {
			t.Errorf("Transient(%v) = true", err)
		}
	}
	if !store.Transient(errors.New("connection reset by peer")) {
		t.Error("Transient of a broken connection = false")
	}
}
