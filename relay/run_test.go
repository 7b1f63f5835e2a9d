package relay_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
)

func TestRunDeliversInOrder(t *testing.T) {
	pool := newOutbox(t)
	sink := &capture{}
	for i := range 10 {
		insert(t, pool, "a", fmt.Sprint(i))
	}
	_, stop := start(t, pool, config(sink))
	sink.waitFor(t, 10)
	for i := 10; i < 20; i++ {
		insert(t, pool, "a", fmt.Sprint(i))
	}
	sink.waitFor(t, 20)
	stop()
	for i, m := range sink.messages() {
		if got, want := string(m.Event.Payload), fmt.Sprint(i); got != want {
			t.Errorf("message %d has payload %s, want %s", i, got, want)
		}
		if m.Topic != "UserCreated" || m.Attempt != 1 || m.Event.AggregateID != "a" {
			t.Errorf("message %d is %+v", i, m)
		}
	}
	// Another relay goes on where this one stopped.
	insert(t, pool, "a", "20")
	start(t, pool, config(sink))
	got := sink.waitFor(t, 21)
	if len(got) != 21 || string(got[20].Event.Payload) != "20" {
		t.Errorf("after a restart: %d messages, the last %s", len(got), got[len(got)-1].Event.Payload)
	}
}

func TestDrain(t *testing.T) {
	pool := newOutbox(t)
	sink := &capture{}
	r, err := relay.New(pool, config(sink))
	if err != nil {
		t.Fatal(err)
	}
	for want := range []int{0, 1, 2, 3} {
		for i := range want {
			insert(t, pool, "a", fmt.Sprint(i))
		}
		n, err := r.Drain(t.Context())
		if n != want || err != nil {
			t.Errorf("Drain() = %d, %v, want %d", n, err, want)
		}
	}
	_, stop := start(t, pool, config(sink))
	testwait.Until(t, "the other relay owns the lane", func() bool {
		var owned bool
		_ = pool.QueryRow(t.Context(), `SELECT owner IS NOT NULL FROM commitrelay.lanes`).Scan(&owned)
		return owned
	})
	if _, err := r.Drain(t.Context()); !errors.Is(err, relay.ErrLanesHeld) {
		t.Errorf("Drain() beside a live relay: %v, want ErrLanesHeld", err)
	}
	stop()
}

func TestOutcomes(t *testing.T) {
	pool := newOutbox(t)
	refusals := map[string]int{}
	sink := &capture{answer: func(batch []relay.Message) error {
		errs := make([]error, len(batch))
		held := map[string]bool{}
		for i, m := range batch {
			p := string(m.Event.Payload)
			switch {
			case held[m.Event.AggregateID]:
				errs[i] = errors.New("held back")
				continue
			case p == `"dead"`:
				errs[i] = relay.Permanent(errors.New("too large"))
			case p == `"twice"` && refusals[p] < 2:
				errs[i] = relay.Retry(errors.New("not now"))
			case p == `"closed"` && refusals[p] < 3:
				errs[i] = relay.Unavailable(errors.New("no such topic"))
			case p == `"never"`:
				errs[i] = relay.Retry(errors.New("never"))
			default:
				continue
			}
			refusals[p]++
			held[m.Event.AggregateID] = true
		}
		return &relay.BatchError{Errs: errs}
	}}
	for _, p := range []string{"dead", "twice", "closed", "never"} {
		insert(t, pool, p, `"`+p+`"`)
		insert(t, pool, p, `"after `+p+`"`)
		insert(t, pool, "good", `"good"`)
	}
	cfg := config(sink)
	cfg.Subscriptions[0].MaxAttempts = 3
	r, stop := start(t, pool, cfg)
	sink.waitFor(t, 10) // 4 good, 4 after, twice, closed
	testwait.Until(t, "nothing is parked", func() bool { return r.Health().Subscriptions[0].Parked == 0 })
	stop()

	got := sink.payloads()
	for _, p := range []string{"twice", "closed"} {
		if a, b := slices.Index(got, `"`+p+`"`), slices.Index(got, `"after `+p+`"`); a < 0 || b < a {
			t.Errorf("%s arrived at %d, the event after it at %d", p, a, b)
		}
	}
	var dead []string
	rows, err := pool.Query(t.Context(), `SELECT payload #>> '{}' || ': ' || attempts || ' ' || last_error FROM commitrelay.parked WHERE state = 'dead' ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			t.Fatal(err)
		}
		dead = append(dead, s)
	}
	if want := []string{"dead: 0 too large", "never: 3 given up after 3 attempts: never"}; !slices.Equal(dead, want) {
		t.Errorf("dead: %q, want %q", dead, want)
	}
	if n := count(t, pool, `SELECT count(*) FROM commitrelay.parked WHERE state <> 'dead'`); n != 0 {
		t.Errorf("%d rows are still parked", n)
	}
	if got := len(sink.messages()); got != 10 {
		t.Errorf("%d messages, want 10: %q", got, sink.payloads())
	}
}

func count(t testing.TB, pool *pgxpool.Pool, sql string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
