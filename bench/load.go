package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
)

// shape says how events are spread over keys. All else is the same everywhere: 200 bytes of JSON, one type.
type shape struct {
	keys   int
	perKey int     // events of one transaction, which all have one key
	hot    float64 // the share that one more key has
}

func (s shape) validate() error {
	if s.keys < 1 || s.perKey < 1 || s.hot < 0 || s.hot > 1 {
		return errors.New("want --keys and --per-key of at least 1, and --hot from 0 to 1")
	}
	return nil
}

const payloadSize = 200

// event makes event number i. Its key follows from the number of its transaction.
func (s shape) event(i int) *outbox.Event {
	r := mix(uint64(i / s.perKey))
	key := fmt.Sprintf("order-%d", r%uint64(s.keys))
	if float64(r>>40)/(1<<24) < s.hot {
		key = "order-hot"
	}
	body := fmt.Sprintf(`{"number":%d,"order":%q,"note":"`, i, key)
	body += strings.Repeat("x", payloadSize-len(body)-2) + `"}`
	return &outbox.Event{ID: outbox.NewID(), AggregateType: "order", AggregateID: key, Type: "OrderPaid", Payload: []byte(body)}
}

// mix spreads numbers over all of uint64, the same way in each run (SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// messages are n events as a sink gets them.
func (s shape) messages(n int, topic string) []relay.Message {
	now := time.Now()
	all := make([]relay.Message, n)
	for i := range all {
		all[i] = relay.Message{Event: *s.event(i), Topic: topic, Seq: int64(i + 1), Attempt: 1, CreatedAt: now}
	}
	return all
}

// copySize is the number of events that one transaction brings into a backlog.
const copySize = 1000

// fill copies a backlog of n events into a table that has the columns which all outboxes have.
func (s shape) fill(ctx context.Context, db *database, table string, n int) error {
	columns := []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload"}
	for first := 0; first < n; first += copySize {
		rows := pgx.CopyFromSlice(min(copySize, n-first), func(i int) ([]any, error) {
			e := s.event(first + i)
			return []any{[16]byte(e.ID), e.AggregateType, e.AggregateID, e.Type, string(e.Payload)}, nil
		})
		if _, err := db.pool.CopyFrom(ctx, pgx.Identifier{table}, columns, rows); err != nil {
			return fmt.Errorf("fill %s: %w", table, err)
		}
	}
	return nil
}
