package main

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Each verb runs with tiny numbers against the real servers. What it prints is no measurement, but has all that it should.
func TestVerbs(t *testing.T) {
	for _, test := range []struct {
		args   string
		fields string // in this order
		zero   string // those that may be 0
	}{
		{
			"limit --sink nats --events 500",
			"sink events limit_per_second client_per_second read_per_second batch workers sinks", "batch workers sinks",
		},
		{"drain --sink nats --relays 2 --events 1000 --runs 2 --per-key 5", drainFields, drainZero},
		{"drain --sink rabbitmq --relays 1 --events 500 --hot 0.1", drainFields, drainZero},
		{"drain --sink kafka --relays 1 --events 500 --keys 1", drainFields, drainZero},
		{"latency --rate 200 --duration 1s --per-key 5", "rate events events_per_second p50_ms p99_ms p999_ms", "p50_ms"},
		{
			"insert --connections 2 --slice 100ms --runs 2",
			"connections inserts_per_second ratio_to_tutorial ratio_to_tutorial_indexed ratio_notify pg_cpu_us_per_insert " +
				"tutorial_pg_cpu_us_per_insert tutorial_indexed_pg_cpu_us_per_insert notify_pg_cpu_us_per_insert slice_seconds", "",
		},
		{
			"xmin --rate 200 --duration 1s --events 500",
			"rate events ratio_with_snapshot events_per_second p50_ms p99_ms p50_ms_with_snapshot p99_ms_with_snapshot queue_ratio_with_snapshot " +
				"queue_events_per_second queue_p50_ms queue_p99_ms queue_p50_ms_with_snapshot queue_p99_ms_with_snapshot", "p50_ms p50_ms_with_snapshot",
		},
		{
			"idle --relays 2 --duration 2s", "relays pg_core_percent pg_core_percent_without statements_per_second",
			"pg_core_percent pg_core_percent_without",
		},
		{
			"rivals --events 100",
			"events events_per_second ratio_to_watermill ratio_to_watermill_tuned ratio_to_river ratio_to_river_tuned ratio_to_poller " +
				"ratio_to_poller_without_tick watermill_events_per_second watermill_tuned_events_per_second river_events_per_second " +
				"river_tuned_events_per_second poller_events_per_second poller_without_tick_events_per_second", "",
		},
	} {
		t.Run(test.args, func(t *testing.T) {
			before := databases(t)
			args := strings.Fields(test.args)
			if !slices.Contains(args, "--runs") {
				args = append(args, "--runs", "1")
			}
			var stdout, stderr bytes.Buffer
			if code := execute(append(args, "--json"), &stdout, &stderr); code != 0 {
				t.Fatalf("exit code %d, want 0\n%s", code, &stderr)
			}
			check(t, stdout.Bytes(), strings.Fields(test.fields), strings.Fields(test.zero))
			if after := databases(t); !slices.Equal(after, before) {
				t.Errorf("databases are %v, were %v", after, before)
			}
		})
	}
}

const (
	drainFields = "sink relays events events_per_second limit_per_second ratio_to_limit pg_cpu_us_per_event queue_pg_cpu_us_per_event " +
		"wal_bytes_per_event dead_tuples rss_mb"
	drainZero = "queue_pg_cpu_us_per_event dead_tuples"
)

// check wants these fields and no other, and numbers above zero unless they may be that.
func check(t *testing.T, result []byte, want, zero []string) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(result, &got); err != nil {
		t.Fatalf("%v: %s", err, result)
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, slices.Sorted(slices.Values(want))) {
		t.Errorf("fields are %v", names)
	}
	for name, value := range got {
		if n, ok := value.(float64); ok && (n < 0 || n == 0 && !slices.Contains(zero, name)) {
			t.Errorf("%s is %v", name, n)
		}
	}
}

func databases(t *testing.T) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), os.Getenv("COMMITRELAY_TEST_DATABASE"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	rows, err := conn.Query(t.Context(), `SELECT datname FROM pg_database WHERE datname LIKE 'bench\_%' ORDER BY datname`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"latency --no-doorbell --runs 1": "no doorbell yet",
		"drain --sink redis":             "want nats, rabbitmq or kafka",
		"drain --runs 0":                 "--runs 0",
		"limit --hot 2":                  "--hot from 0 to 1",
	} {
		var stdout, stderr bytes.Buffer
		if code := execute(strings.Fields(args), &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: exit code %d, %s", args, code, &stderr)
		}
	}
}

func TestShape(t *testing.T) {
	s := shape{keys: 10, perKey: 5, hot: 0.1}
	const n = 50_000
	count := map[string]int{}
	for i := range n {
		e := s.event(i)
		if len(e.Payload) != payloadSize || !json.Valid(e.Payload) {
			t.Fatalf("payload of %d bytes: %s", len(e.Payload), e.Payload)
		}
		if first := s.event(i - i%s.perKey); e.AggregateID != first.AggregateID {
			t.Fatalf("events %d and %d of one transaction have different keys", i-i%s.perKey, i)
		}
		count[e.AggregateID]++
	}
	if hot := float64(count["order-hot"]) / n; hot < 0.09 || hot > 0.11 || len(count) != s.keys+1 {
		t.Errorf("the hot key has %v of all, and there are %d keys", hot, len(count))
	}
}

func TestMedian(t *testing.T) {
	type result struct {
		Name string
		N    int
		X    float64
	}
	got := median([]result{{"a", 3, 0.5}, {"a", 1, 8}, {"a", 2, 1}, {"a", 9, 2}})
	if want := (result{"a", 3, 1.5}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if p := percentile([]float64{1, 2, 3, 4}, 50); p != 2 {
		t.Errorf("the median of four is %v, want the second", p)
	}
}

// What the server has spent only grows, and dead tuples are seen in partitions.
func TestCosts(t *testing.T) {
	ctx := t.Context()
	s, err := connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	err = s.withDatabase(ctx, func(db *database) error {
		spent, err := s.costOf(ctx, func() error {
			if err := (shape{keys: 10, perKey: 1}).backlog(ctx, db, logTable, 20_000); err != nil {
				return err
			}
			// Its own session tells at once what it has done.
			conn, err := pgx.Connect(ctx, db.url)
			if err != nil {
				return err
			}
			if _, err := conn.Exec(ctx, "DELETE FROM outbox_events WHERE seq <= 7"); err != nil {
				return err
			}
			return conn.Close(ctx)
		})
		if err != nil {
			return err
		}
		if spent.cpu <= 0 || spent.wal < 20_000*payloadSize {
			t.Errorf("20,000 inserts cost %v and %d bytes", spent.cpu, spent.wal)
		}
		var dead int
		for end := 1000; end > 0 && dead == 0; end-- { // the session may take a moment to end
			if dead, err = db.deadTuples(ctx, logTable.name); err != nil {
				return err
			}
		}
		if dead != 7 {
			t.Errorf("got %d dead tuples, want 7", dead)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
