package migrate_test

import (
	"context"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

// statuses are those of a subscription's events by seq.
func statuses(t *testing.T, pool *pgxpool.Pool, subscription string) map[int64]string {
	t.Helper()
	rows, err := pool.Query(context.Background(), `SELECT seq, status FROM commitrelay.events WHERE subscription = $1`, subscription)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int64]string{}
	var seq int64
	var status string
	if _, err := pgx.ForEachRow(rows, []any{&seq, &status}, func() error {
		if _, twice := got[seq]; twice {
			t.Errorf("event %d is listed twice", seq)
		}
		got[seq] = status
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

// published are the seqs with that status, which is all that a lane's position decides.
func published(t *testing.T, pool *pgxpool.Pool) []int64 {
	t.Helper()
	var seqs []int64
	got := statuses(t, pool, "all")
	if len(got) != 8 {
		t.Errorf("%d events are listed, want 8", len(got))
	}
	for seq := int64(1); seq <= 8; seq++ {
		switch got[seq] {
		case "PUBLISHED":
			seqs = append(seqs, seq)
		case "PENDING":
		default:
			t.Errorf("event %d is %q", seq, got[seq])
		}
	}
	return seqs
}

func TestViewByPosition(t *testing.T) {
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	// Numbers 1 to 8, written by the transactions 101, 105, 102, 106, 103, 107, 104, 108.
	exec(t, pool, `INSERT INTO outbox_events (xid, seq, aggregate_type, aggregate_id, event_type) OVERRIDING SYSTEM VALUE
		SELECT xid::text::xid8, seq, 'user', seq, 'UserCreated'
		FROM unnest(ARRAY[101, 105, 102, 106, 103, 107, 104, 108]) WITH ORDINALITY AS e (xid, seq)`)
	exec(t, pool, `INSERT INTO commitrelay.subscriptions (name, lanes, sink, topic) VALUES ('all', 1, 's', 't');
		INSERT INTO commitrelay.lanes (subscription, lane) VALUES ('all', 0)`)

	const (
		none   = `3:3:`
		early  = `104:104:`        // 101, 102, 103
		gap    = `102:106:102,104` // 101, 103, 105
		nearly = `104:108:104`     // all but 104 and 108
		all    = `200:200:`
	)
	type window struct {
		snapshot string
		h, floor int64
		catchUp  string
	}
	for _, c := range []struct {
		name  string
		from  window
		to    *window
		p     int64
		ahead []int64
		want  []int64
	}{
		{name: "the beginning", from: window{snapshot: none}},
		{name: "a position", from: window{snapshot: early, h: 5}, want: []int64{1, 3, 5}},
		{name: "a position with gaps", from: window{snapshot: gap, h: 6}, want: []int64{1, 2, 5}},
		{name: "numbers beyond the position are of another life", from: window{snapshot: all, h: 3}, want: []int64{1, 2, 3}},
		{name: "a floor", from: window{snapshot: early, h: 5, floor: 4}, want: []int64{1, 2, 3, 4, 5}},
		{name: "p and ahead mean nothing without a window", from: window{snapshot: early, h: 5}, p: 8, ahead: []int64{8}, want: []int64{1, 3, 5}},
		{name: "a window begins", from: window{snapshot: early, h: 5}, to: &window{snapshot: nearly, h: 8}, want: []int64{1, 3, 5}},
		{name: "in a window", from: window{snapshot: early, h: 5}, to: &window{snapshot: nearly, h: 8}, p: 3, want: []int64{1, 2, 3, 5}},
		{name: "some ahead", from: window{snapshot: early, h: 5}, to: &window{snapshot: nearly, h: 8}, p: 3, ahead: []int64{6, 7}, want: []int64{1, 2, 3, 5, 6}},
		{name: "all of a window, but what it does not see", from: window{snapshot: none}, to: &window{snapshot: nearly, h: 8}, p: 8, want: []int64{1, 2, 3, 4, 5, 6}},
		{name: "no further than the window", from: window{snapshot: none}, to: &window{snapshot: all, h: 4}, p: 8, want: []int64{1, 2, 3, 4}},
		{name: "a floor in a window", from: window{snapshot: none, floor: 2}, to: &window{snapshot: all, h: 8}, p: 3, want: []int64{1, 2, 3}},

		{
			name: "catching up", from: window{snapshot: early, h: 3},
			to:   &window{snapshot: all, h: 8, floor: 8, catchUp: `{"snapshot": "104:104:", "h": 3}`},
			want: []int64{1, 3},
		},
		{
			name: "catching up, in the middle", from: window{snapshot: early, h: 3}, p: 2, ahead: []int64{7},
			to:   &window{snapshot: all, h: 8, floor: 8, catchUp: `{"snapshot": "104:104:", "h": 5}`},
			want: []int64{1, 2, 3, 5, 7},
		},
		{
			name: "catching up after a restarted sequence: nothing old counts", from: window{snapshot: all, h: 8, floor: 8},
			to: &window{snapshot: all, h: 8, floor: 8, catchUp: `{"snapshot": "3:3:", "h": 0}`},
		},
		{
			name: "catching up with a window that was open", from: window{snapshot: early, h: 3},
			to:   &window{snapshot: all, h: 8, floor: 8, catchUp: `{"snapshot": "104:104:", "h": 3, "settled_snapshot": "104:108:104", "settled_p": 7}`},
			want: []int64{1, 2, 3, 4, 5, 6},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			add := func(w window) int64 {
				return get[int64](t, pool, `INSERT INTO commitrelay.windows (id, snapshot, h, floor, next_xid, run)
					SELECT max(id) + 1, $1::text::pg_snapshot, $2, $3, '200', '{}' FROM commitrelay.windows RETURNING id`, w.snapshot, w.h, w.floor)
			}
			from := add(c.from)
			var to *int64
			catchUp := ""
			if c.to != nil {
				id := add(*c.to)
				to, catchUp = &id, c.to.catchUp
			}
			exec(t, pool, `UPDATE commitrelay.lanes
				SET from_window = $1, to_window = $2, p = $3, ahead = coalesce($4, '{}'::bigint[]), catch_up = nullif($5, '')::jsonb`,
				from, to, c.p, c.ahead, catchUp)
			if diff := cmp.Diff(c.want, published(t, pool)); diff != "" {
				t.Errorf("published (-want +got):\n%s", diff)
			}
		})
	}

	// What is parked says more than the position that went past it.
	exec(t, pool, `INSERT INTO commitrelay.parked (subscription, lane, state, epoch, attempts, last_error, topic, seq, event_id, aggregate_type, aggregate_id, event_type, created_at)
		SELECT 'all', 0, (ARRAY['parked', 'sending', 'dead'])[seq], 1, seq, 'no', 't', seq, id, aggregate_type, aggregate_id, event_type, created_at
		FROM outbox_events WHERE seq <= 3;
		UPDATE commitrelay.lanes SET from_window = (SELECT max(id) FROM commitrelay.windows), to_window = NULL, catch_up = NULL`)
	want := map[int64]string{
		1: "RETRYING", 2: "RETRYING", 3: "DEAD", 4: "PUBLISHED", 5: "PUBLISHED",
		6: "PUBLISHED", 7: "PUBLISHED", 8: "PUBLISHED",
	}
	if diff := cmp.Diff(want, statuses(t, pool, "all")); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	if got := get[string](t, pool, `SELECT concat_ws(' ', attempts, last_error) FROM commitrelay.events WHERE status = 'DEAD'`); got != "3 no" {
		t.Errorf("the dead event has %q", got)
	}

	// It stays when the slots are emptied.
	exec(t, pool, `TRUNCATE outbox_events`)
	maps.DeleteFunc(want, func(seq int64, _ string) bool { return seq > 3 })
	if diff := cmp.Diff(want, statuses(t, pool, "all")); diff != "" {
		t.Errorf("statuses, of an empty table (-want +got):\n%s", diff)
	}
	if got := get[string](t, pool, `SELECT concat_ws(' ', attempts, last_error) FROM commitrelay.events WHERE status = 'DEAD'`); got != "3 no" {
		t.Errorf("the dead event has %q", got)
	}
}

// Each subscription lists what its filter wants, once, in the lane that its key belongs to.
func TestViewByFilter(t *testing.T) {
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{Payload: outbox.PayloadJSONB})
	exec(t, pool, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type) VALUES
		('user', '1', 'UserCreated'), ('user', '2', 'UserLeft'), ('userx', '1', 'User_Left'), ('order', '1', '100%'), ('a\b', '1', '100\'), ('order', '2', '100*')`)
	for _, c := range []struct {
		name                       string
		aggregateTypes, eventTypes []string
		want                       []int64
	}{
		{"all", nil, nil, []int64{1, 2, 3, 4, 5, 6}},
		{"exact", []string{"user"}, nil, []int64{1, 2}},
		{"several", []string{"order", "user"}, nil, []int64{1, 2, 4, 6}},
		{"prefix", []string{"user*"}, nil, []int64{1, 2, 3}},
		{"both", []string{"user*"}, []string{"UserL*", "User_*"}, []int64{2, 3}},
		{"underscore", nil, []string{"User_Left"}, []int64{3}},
		{"percent", nil, []string{"100%"}, []int64{4}},
		{"backslash", []string{`a\b`}, []string{`100\`}, []int64{5}},
		{"percent and prefix", nil, []string{"100%*"}, []int64{4}},
		{"any", nil, []string{"*"}, []int64{1, 2, 3, 4, 5, 6}},
		{"none", []string{"User"}, nil, nil},
	} {
		exec(t, pool, `INSERT INTO commitrelay.subscriptions (name, lanes, sink, topic, aggregate_types, event_types)
			VALUES ($1, 4, 's', 't', coalesce($2, '{}'::text[]), coalesce($3, '{}'::text[]))`, c.name, c.aggregateTypes, c.eventTypes)
		exec(t, pool, `INSERT INTO commitrelay.lanes (subscription, lane) SELECT $1, generate_series(0, 3)`, c.name)
		want := map[int64]string{}
		for _, seq := range c.want {
			want[seq] = "PENDING"
		}
		if diff := cmp.Diff(want, statuses(t, pool, c.name)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	if got := get[int](t, pool, `SELECT count(*) FROM commitrelay.events
		WHERE lane <> hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) & 3`); got != 0 {
		t.Errorf("%d events in a wrong lane", got)
	}
}
