package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/ident"
)

// DefaultMaxPayload is the default of Writer.MaxPayload. The tightest of the brokers' own limits are
// 1,048,576 bytes for headers and payload (NATS) and for a record (Kafka); RabbitMQ takes 16 MiB.
// What is left to them is room for the event's headers and the relay's own.
const DefaultMaxPayload = 1_000_000

// MaxWriteSize is the most bytes that the events of one call may have together. All of them go to the
// server in one message, which ends at 1 GiB and may need twice their size.
const MaxWriteSize = 256 << 20

// Tx is a transaction of pgx: pgx.Tx, *pgxpool.Tx, or a wrapper of one. Commit and Rollback are never
// called; they are asked for so that a pool or a bare connection, on which an event would be
// committed alone, does not compile.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// SQLTx is a transaction of database/sql: *sql.Tx, or what GORM, sqlx, bun and ent make of it.
// Like Tx it asks for Commit and Rollback to keep out *sql.DB and *sql.Conn.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	Commit() error
	Rollback() error
}

// Writer writes events into the outbox, in the caller's transaction. Its zero value writes JSON into
// public.outbox_events. It holds no connection. It is safe for concurrent use as long as its fields
// do not change.
type Writer struct {
	// Table is the events table: "table", to be found in the search_path, or "schema.table"; names
	// as they stand in the catalog, capitals included. Default "public.outbox_events".
	Table string

	// Payload is the type of the payload column, as it was given to `commitrelay migrate`. Most
	// mistakes are errors at the first Write; but PostgreSQL turns bytea into text without a word.
	// Default PayloadJSON.
	Payload PayloadType

	// MaxPayload is the most bytes that one event's Payload may have (for jsonb: also as PostgreSQL
	// prints it). What a broker would refuse is better refused here, while the caller can still act.
	// Raise it if your broker takes more. Default DefaultMaxPayload.
	MaxPayload int

	// Trace gives headers that are added to all events of a call, as the trace context in ctx:
	// traceparent, tracestate. A header that an event has itself is left alone. Called once per call
	// of Write, concurrently if Write is. Default: none.
	Trace func(ctx context.Context) map[string]string
}

// Write inserts events in tx, with one statement, in the order given. They become real if and when tx
// commits. A zero ID is filled in by NewID.
//
// All faults of all events are reported in one error, one *FaultError each, before anything is sent:
// tx is as usable as before, and no event was changed. After an error of the database, which is
// wrapped, tx must be rolled back, as PostgreSQL demands; IDs that were filled in stay, so that a
// repetition writes the same. No events is no error.
func (w *Writer) Write(ctx context.Context, tx Tx, events ...*Event) error {
	stmt, args, err := w.prepare(ctx, events)
	if err != nil || len(events) == 0 {
		return err
	}
	tag, err := tx.Exec(ctx, stmt, args...)
	if err != nil {
		return w.explain(err, len(events))
	}
	if !tag.Insert() {
		return nil // a wrapper that does not tell
	}
	return w.taken(tag.RowsAffected(), len(events))
}

// WriteSQL is Write for a transaction of database/sql, with any driver for PostgreSQL.
func (w *Writer) WriteSQL(ctx context.Context, tx SQLTx, events ...*Event) error {
	stmt, args, err := w.prepare(ctx, events)
	if err != nil || len(events) == 0 {
		return err
	}
	result, err := tx.ExecContext(ctx, stmt, args...)
	if err != nil {
		return w.explain(err, len(events))
	}
	n, err := result.RowsAffected()
	if err != nil {
		return nil // a driver that does not tell
	}
	return w.taken(n, len(events))
}

// prepare checks the writer and the events, fills in IDs, and builds the statement.
func (w *Writer) prepare(ctx context.Context, events []*Event) (stmt string, args []any, err error) {
	table, errTable := ident.Parse(w.table())
	if err := errors.Join(errTable, w.checkSettings()); err != nil {
		return "", nil, fmt.Errorf("outbox.Writer: %w", err)
	}
	if len(events) == 0 {
		return "", nil, nil
	}
	var trace map[string]string
	if w.Trace != nil {
		trace = w.Trace(ctx)
	}
	rows, err := w.check(events, trace)
	if err != nil {
		return "", nil, err
	}
	for _, e := range events {
		if e.ID.IsZero() {
			e.ID = NewID()
		}
	}
	stmt, args = insert(table, w.payloadType(), rows)
	return stmt, args, nil
}

func (w *Writer) checkSettings() error {
	var errs []error
	switch w.payloadType() {
	case PayloadJSON, PayloadJSONB, PayloadBytea, PayloadText:
	default:
		errs = append(errs, fmt.Errorf("Payload is %q, want json, jsonb, bytea or text", w.Payload))
	}
	if w.MaxPayload < 0 {
		errs = append(errs, fmt.Errorf("MaxPayload is %d, want a number of bytes, or 0 for %d", w.MaxPayload, DefaultMaxPayload))
	}
	return errors.Join(errs...)
}

func (w *Writer) table() string {
	if w.Table == "" {
		return "public.outbox_events"
	}
	return w.Table
}

func (w *Writer) payloadType() PayloadType {
	if w.Payload == "" {
		return PayloadJSON
	}
	return w.Payload
}

func (w *Writer) maxPayload() int {
	if w.MaxPayload == 0 {
		return DefaultMaxPayload
	}
	return w.MaxPayload
}
