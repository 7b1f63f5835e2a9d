package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/window"
)

// Key is what keeps its order.
type Key struct{ AggregateType, AggregateID string }

// KeyOf is the event's key.
func KeyOf(e *outbox.Event) Key { return Key{e.AggregateType, e.AggregateID} }

// Parking is an event that the lane moves past without its being published.
type Parking struct {
	Seq      int64
	ID       outbox.ID
	Dead     bool
	Attempts int
	Delay    *time.Duration // until the next attempt; nil: it waits behind another, or is dead
	Error    string         // empty: it waits behind another
	Topic    string
}

func (p Parking) state() string {
	if p.Dead {
		return "dead"
	}
	return "parked"
}

func seconds(d *time.Duration) *float64 {
	if d == nil {
		return nil
	}
	s := d.Seconds()
	return &s
}

func (s *Store) park(ctx context.Context, tx pgx.Tx, l Lane, parked []Parking) error {
	n := len(parked)
	seqs, ids, states, attempts := make([]int64, n), make([]string, n), make([]string, n), make([]int32, n)
	delays, errs, topics := make([]*float64, n), make([]*string, n), make([]string, n)
	for i, p := range parked {
		seqs[i], ids[i], states[i], attempts[i] = p.Seq, p.ID.String(), p.state(), int32(p.Attempts)
		delays[i], errs[i], topics[i] = seconds(p.Delay), reason(p.Error), storable(p.Topic)
	}
	args := []any{l.Subscription, l.Lane, seqs, ids, states, attempts, delays, errs, topics, l.Epoch}
	var behind bool
	_, err := s.row(ctx, tx, "park", args, &behind)
	pgErr, _ := errors.AsType[*pgconn.PgError](err)
	if taken := pgErr != nil && pgErr.ConstraintName == "parked_pkey"; taken || err == nil && !behind {
		return s.parkedSequence()
	}
	return err
}

// parkedSequence says that new ids of parked events lie below old ones: a key's later events would go before its earlier ones.
func (s *Store) parkedSequence() error {
	parked := ident.Table{Schema: s.schema, Name: "parked"}
	return personError{fmt.Errorf("the sequence of %s stands below its rows: parked events would lose their order. "+
		"Run: SELECT setval(pg_get_serial_sequence('%s', 'id'), (SELECT max(id) FROM %[1]s))", parked, strings.ReplaceAll(parked.String(), "'", "''"))}
}

// ParkedKey is a key whose later events must wait.
type ParkedKey struct {
	Key
	Waiting int  // events that wait
	Dead    bool // a dead one blocks it
}

// ParkedKeys returns the keys whose events must wait. With deadBlocks a dead event blocks its key.
func (s *Store) ParkedKeys(ctx context.Context, l Lane, deadBlocks bool) ([]ParkedKey, error) {
	args := []any{l.Subscription, l.Lane, deadBlocks}
	return collect(ctx, s, s.pool, "parked_keys", args, func(row pgx.CollectableRow) (k ParkedKey, err error) {
		err = row.Scan(&k.AggregateType, &k.AggregateID, &k.Waiting, &k.Dead)
		return k, err
	})
}

// WakeOrphans makes the first waiting event due of every key that has none due: whoever took away the one before it, by SQL
// or in a fault, could not know of it.
func (s *Store) WakeOrphans(ctx context.Context, l Lane, deadBlocks bool) error {
	return s.exec(ctx, s.pool, "parked_orphans", l.Subscription, l.Lane, deadBlocks, l.Epoch, l.Owner)
}

// DueKey is a key of a lane whose first waiting event is due after In (now, if it is not positive).
type DueKey struct {
	Lane int
	Key
	In time.Duration
}

// DueKeys returns up to limit keys of each lane in the order in which they become due.
func (s *Store) DueKeys(ctx context.Context, subscription string, lanes []int, limit int) ([]DueKey, error) {
	args := []any{subscription, int32s(lanes), limit}
	return collect(ctx, s, s.pool, "parked_due", args, func(row pgx.CollectableRow) (k DueKey, err error) {
		var in float64
		err = row.Scan(&k.Lane, &k.AggregateType, &k.AggregateID, &in)
		k.In = time.Duration(min(in, 3600) * float64(time.Second))
		return k, err
	})
}

// ParkedEvent is a parked event on its way to the sink once more.
type ParkedEvent struct {
	RowID    int64
	Attempts int
	Topic    string
	window.Event
}

// ClaimParked marks waiting events as being sent, and returns them in the order of their keys: the first perKey of each
// key, and none that begins after maxBytes of payload.
func (s *Store) ClaimParked(ctx context.Context, l Lane, keys []Key, perKey, maxBytes int) ([]ParkedEvent, error) {
	types, ids := split(keys)
	args := []any{l.Subscription, l.Lane, l.Epoch, types, ids, perKey, maxBytes, l.Owner}
	return collect(ctx, s, s.pool, "parked_claim", args, func(row pgx.CollectableRow) (e ParkedEvent, err error) {
		var headers []byte
		var created pgtype.Timestamptz
		err = row.Scan(&e.RowID, &e.Attempts, &e.Topic, &e.Seq, (*[16]byte)(&e.ID), &e.AggregateType, &e.AggregateID, &e.Type,
			&e.Payload, &headers, &created)
		if err != nil {
			return e, err
		}
		switch created.InfinityModifier {
		case pgtype.Infinity:
			e.CreatedAt = latest
		case pgtype.NegativeInfinity:
			e.CreatedAt = earliest
		default:
			e.CreatedAt = created.Time.UTC()
		}
		if headers != nil {
			e.Headers, err = parseHeaders(headers)
		}
		return e, err
	})
}

// Settling is what became of a parked event that was being sent and was not published.
type Settling struct {
	RowID    int64
	Dead     bool
	Attempts int
	Delay    *time.Duration // until the next attempt; nil: it waits behind another, or is dead
	Error    string         // empty: it was not tried
}

// split is the columns of keys.
func split(keys []Key) (types, ids []string) {
	types, ids = make([]string, len(keys)), make([]string, len(keys))
	for i, k := range keys {
		types[i], ids[i] = k.AggregateType, k.AggregateID
	}
	return types, ids
}

// SettleParked forgets the events that were published, puts the others back, and makes the first event that still waits
// of each of the given keys due, all in one transaction.
func (s *Store) SettleParked(ctx context.Context, l Lane, published []int64, back []Settling, wake []Key) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		var epoch int64
		held, err := s.row(ctx, tx, "lane_held", []any{l.Subscription, l.Lane, l.Epoch, l.Owner}, &epoch)
		if err != nil {
			return err
		}
		if !held {
			return ErrFenced
		}
		if len(published) > 0 {
			if err := s.exec(ctx, tx, "parked_published", l.Subscription, l.Lane, published); err != nil {
				return err
			}
		}
		if n := len(back); n > 0 {
			ids, states, attempts := make([]int64, n), make([]string, n), make([]int32, n)
			delays, errs := make([]*float64, n), make([]*string, n)
			for i, b := range back {
				ids[i], states[i], attempts[i] = b.RowID, Parking{Dead: b.Dead}.state(), int32(b.Attempts)
				delays[i], errs[i] = seconds(b.Delay), reason(b.Error)
			}
			if err := s.exec(ctx, tx, "parked_settle", l.Subscription, l.Lane, ids, states, attempts, delays, errs); err != nil {
				return err
			}
		}
		if len(wake) == 0 {
			return nil
		}
		types, ids := split(wake)
		err = s.exec(ctx, tx, "parked_wake", l.Subscription, l.Lane, types, ids)
		return err
	})
}

// KeysLeft returns those of the keys that still have events that wait.
func (s *Store) KeysLeft(ctx context.Context, l Lane, keys []Key) (map[Key]bool, error) {
	types, ids := split(keys)
	args := []any{l.Subscription, l.Lane, types, ids}
	list, err := collect(ctx, s, s.pool, "parked_left", args, func(row pgx.CollectableRow) (k Key, err error) {
		return k, row.Scan(&k.AggregateType, &k.AggregateID)
	})
	left := map[Key]bool{}
	for _, k := range list {
		left[k] = true
	}
	return left, err
}

// maxReason bounds what is kept of an error's text, in bytes.
const maxReason = 4096

// reason makes an error's text fit for a column; nil if there is none.
func reason(text string) *string {
	if text == "" {
		return nil
	}
	if len(text) > maxReason {
		text = text[:maxReason] + " (cut)"
	}
	text = storable(text)
	return &text
}

// storable leaves out what a text column cannot hold. Brokers' messages are anybody's bytes.
func storable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}
