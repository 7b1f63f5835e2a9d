package store_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox/internal/store"
	"github.com/commitrelay/outbox/migrate"
)

// parkAll parks one event per key given, in order; first, for the first of each key, says how.
func (d *db) parkAll(t *testing.T, keys []string, how func(i int, p *store.Parking)) {
	t.Helper()
	for i, k := range keys {
		d.insert(t, k, fmt.Sprint(i))
	}
	events, _ := d.read(t, 100, 1<<30)
	var parked []store.Parking
	for i, e := range events {
		p := store.Parking{Seq: e.Seq, ID: e.ID, Topic: "t"} // waits behind another
		how(i, &p)
		parked = append(parked, p)
	}
	d.storeLane(t, d.load(t), parked...)
}

func key(id string) store.Key { return store.Key{AggregateType: "user", AggregateID: id} }

// claim returns the payloads, without their quotes.
func (d *db) claim(t *testing.T, perKey, maxBytes int, keys ...string) (payloads []string, events []store.ParkedEvent) {
	t.Helper()
	var list []store.Key
	for _, k := range keys {
		list = append(list, key(k))
	}
	events, err := d.store.ClaimParked(t.Context(), d.lane, list, perKey, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		payloads = append(payloads, strings.Trim(string(e.Payload), `"`))
	}
	return payloads, events
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestParkedEventsKeepTheirOrder(t *testing.T) {
	d := newDB(t, migrate.Options{})
	ctx := t.Context()
	hour, past := time.Hour, -time.Second
	//        0    1    2    3    4    5    6
	d.parkAll(t, []string{"a", "b", "a", "c", "a", "b", "d"}, func(i int, p *store.Parking) {
		switch i {
		case 0: // due
			p.Attempts, p.Delay, p.Error = 1, &past, "refused\x00 \xff"
		case 1, 3: // later
			p.Attempts, p.Delay, p.Error = 2, &hour, "no such topic"
		case 6:
			p.Attempts, p.Dead, p.Error = 3, true, "too large"
		}
	})
	keys := func(deadBlocks bool) map[string][2]any {
		t.Helper()
		list, err := d.store.ParkedKeys(ctx, d.lane, deadBlocks)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string][2]any{}
		for _, k := range list {
			all[k.AggregateID] = [2]any{k.Waiting, k.Dead}
		}
		return all
	}
	same(t, "keys that wait", map[string][2]any{"a": {3, false}, "b": {2, false}, "c": {1, false}}, keys(false))
	same(t, "keys that wait, dead ones too", map[string][2]any{"a": {3, false}, "b": {2, false}, "c": {1, false}, "d": {0, true}}, keys(true))
	due := func() (ids []string) {
		t.Helper()
		list, err := d.store.DueKeys(ctx, "all", []int{0}, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range list {
			if k.In <= 0 {
				ids = append(ids, k.AggregateID)
			} else if k.In > time.Hour || k.In < 10*time.Minute {
				t.Errorf("key %s is due in %v, want half an hour or an hour", k.AggregateID, k.In)
			}
		}
		return ids
	}
	same(t, "keys that are due", []string{"a"}, due())
	if first := get[string](t, d.pool, "SELECT first_error FROM commitrelay.parked WHERE aggregate_id = 'a' AND seq = 1"); first != "refused \uFFFD" {
		t.Errorf("the reason is kept as %q", first)
	}

	got, events := d.claim(t, 2, 1<<20, "a", "d", "nobody")
	same(t, "claimed, two of a key", []string{"0", "2"}, got)
	if events[0].Attempts != 1 || events[0].Topic != "t" || events[1].Attempts != 0 {
		t.Errorf("claimed %+v", events)
	}
	same(t, "sending", "2", get[string](t, d.pool, "SELECT count(*)::text FROM commitrelay.parked WHERE state = 'sending'"))
	same(t, "keys that wait while some are being sent", map[string][2]any{"a": {3, false}, "b": {2, false}, "c": {1, false}}, keys(false))

	// The first was published, the second refused again; then the key's next one waits behind it.
	later := 30 * time.Minute
	err := d.store.SettleParked(ctx, d.lane, []int64{events[0].RowID},
		[]store.Settling{{RowID: events[1].RowID, Attempts: 1, Delay: &later, Error: "again"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "keys after that", map[string][2]any{"a": {2, false}, "b": {2, false}, "c": {1, false}}, keys(false))
	same(t, "due after that", []string(nil), due())
	got, _ = d.claim(t, 10, 1<<20, "a", "b", "c")
	same(t, "claimed before its time", []string(nil), got)
	d.exec(t, "UPDATE commitrelay.parked SET next_attempt = next_attempt - interval '30 min' WHERE aggregate_id = 'a'")
	got, _ = d.claim(t, 10, 1<<20, "a")
	same(t, "claimed after that", []string{"2", "4"}, got)
	// A relay that dies here leaves them as they are: the next owner sends them first.
	d.acquire(t, &d.lane)
	got, events = d.claim(t, 10, 1<<20, "a")
	same(t, "claimed by the next owner", []string{"2", "4"}, got)
	// The first one is dead now, and the key goes on.
	err = d.store.SettleParked(ctx, d.lane, nil, []store.Settling{
		{RowID: events[0].RowID, Dead: true, Attempts: 2, Error: "too often"}, {RowID: events[1].RowID},
	}, []store.Key{key("a"), key("b"), key("nobody")})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "woken, but for the one that has a time of its own", []string{"a"}, due())
	same(t, "keys with a dead one", map[string][2]any{"a": {1, true}, "b": {2, false}, "c": {1, false}, "d": {0, true}}, keys(true))
	same(t, "errors of the dead one", "again / too often", get[string](t, d.pool,
		"SELECT concat_ws(' / ', first_error, last_error) FROM commitrelay.parked WHERE state = 'dead' AND aggregate_id = 'a'"))
}

func TestClaimIsBounded(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.parkAll(t, []string{"a", "a", "b", "b", "a"}, func(_ int, p *store.Parking) { p.Error, p.Delay = "refused", new(time.Duration) })
	got, _ := d.claim(t, 10, 1, "b", "a")
	same(t, "a claim of next to nothing is one event", []string{"2"}, got)
	got, _ = d.claim(t, 10, 6, "b", "a") // each has 3 bytes
	same(t, "6 bytes, in the order of the keys asked for", []string{"2", "3"}, got)
	got, _ = d.claim(t, 1, 1<<20, "a", "b")
	same(t, "one of each key", []string{"0", "2"}, got)
	old := d.lane
	d.acquire(t, &d.lane)
	if events, err := d.store.ClaimParked(t.Context(), old, []store.Key{key("a")}, 10, 1<<20); err != nil || len(events) != 0 {
		t.Errorf("claimed with an old epoch: %v, %v", events, err)
	}
}

// Parking the same event again, as after a commit whose answer was lost, changes nothing.
func TestParkingTwice(t *testing.T) {
	d := newDB(t, migrate.Options{})
	d.insert(t, "a", "0")
	d.insert(t, "a", "1")
	events, _ := d.read(t, 10, 1<<20)
	d.storeLane(t, d.load(t), parking(events[0]))
	d.storeLane(t, d.load(t), parking(events[0]), parking(events[1]))
	got, _ := d.claim(t, 10, 1<<20, "a")
	same(t, "claimed", []string{"0", "1"}, got)
}

// What the events table takes, the table of parked events takes, too.
func TestLongKeysCanBeParked(t *testing.T) {
	d := newDB(t, migrate.Options{})
	long := make([]string, 3)
	for i := range long {
		// Nothing that could be compressed: an index entry has a third of a page.
		long[i] = get[string](t, d.pool, "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 160)")[:5000]
		d.exec(t, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $1, $1, '1')`, long[i])
	}
	events, _ := d.read(t, 10, 1<<20)
	var parked []store.Parking
	var keys []store.Key
	now := time.Duration(0)
	for _, e := range events {
		p := parking(e)
		p.Delay, p.Topic, p.Error = &now, e.AggregateID, strings.Repeat(e.AggregateID, 3)
		parked = append(parked, p)
		keys = append(keys, store.KeyOf(&e.Event))
	}
	d.storeLane(t, d.load(t), parked...)
	waiting, err := d.store.ParkedKeys(t.Context(), d.lane, false)
	if err != nil || len(waiting) != len(long) {
		t.Errorf("%d keys wait, %v; want %d", len(waiting), err, len(long))
	}
	due, err := d.store.DueKeys(t.Context(), "all", []int{0}, 10)
	if err != nil || len(due) != len(long) {
		t.Errorf("%d keys are due, %v; want %d", len(due), err, len(long))
	}
	claimed, err := d.store.ClaimParked(t.Context(), d.lane, keys, 1, 1<<20)
	if err != nil || len(claimed) != len(long) {
		t.Fatalf("claimed %d, %v", len(claimed), err)
	}
	for i, e := range claimed {
		if e.AggregateID != long[i] || e.AggregateType != long[i] || e.Type != long[i] || e.Topic != long[i] {
			t.Errorf("event %d came back with other names", i)
		}
	}
	if n := get[int](t, d.pool, "SELECT max(octet_length(last_error)) FROM commitrelay.parked"); n > 4200 {
		t.Errorf("%d bytes are kept of a reason", n)
	}
	if err := d.store.SettleParked(t.Context(), d.lane, []int64{claimed[0].RowID}, nil, keys); err != nil && !errors.Is(err, store.ErrFenced) {
		t.Error(err)
	}
}
