package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
)

func ExampleWriter_Write() {
	ctx := context.Background()
	pool, drop := exampleDatabase()
	defer drop()

	var events outbox.Writer
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO users (id, name) VALUES ('7', 'Ann')`); err != nil {
			return err
		}
		return events.Write(ctx, tx,
			&outbox.Event{AggregateType: "user", AggregateID: "7", Type: "UserCreated", Payload: []byte(`{"name": "Ann"}`)},
			&outbox.Event{AggregateType: "user", AggregateID: "7", Type: "WelcomeMailDue", Headers: map[string]string{"locale": "de"}},
		)
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	rows, _ := pool.Query(ctx, `SELECT event_type || ' ' || aggregate_id FROM outbox_events ORDER BY seq`)
	written, err := pgx.CollectRows(rows, pgx.RowTo[string])
	fmt.Println(written, err)
	// Output: [UserCreated 7 WelcomeMailDue 7] <nil>
}

func ExampleWriter_WriteSQL() {
	ctx := context.Background()
	db, drop := exampleSQLDatabase()
	defer drop()

	var events outbox.Writer
	register := func(id, name string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		if _, err := tx.ExecContext(ctx, `INSERT INTO users (id, name) VALUES ($1, $2)`, id, name); err != nil {
			return err
		}
		err = events.WriteSQL(ctx, tx, &outbox.Event{AggregateType: "user", AggregateID: id, Type: "UserCreated"})
		if err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(register("7", "Ann"))

	var written string
	err := db.QueryRowContext(ctx, `SELECT event_type || ' ' || aggregate_id FROM outbox_events`).Scan(&written)
	fmt.Println(written, err)
	// Output:
	// <nil>
	// UserCreated 7 <nil>
}

func ExampleFaultError() {
	var tx *sql.Tx // it is not used: faults are found before anything is sent
	var events outbox.Writer
	err := events.WriteSQL(context.Background(), tx,
		&outbox.Event{AggregateType: "user", AggregateID: "7", Payload: []byte(`{"tags": ["a\u0000"]}`)})
	fmt.Println(err)

	if fault, ok := errors.AsType[*outbox.FaultError](err); ok {
		fmt.Println("first:", fault.Index, fault.Field)
	}
	// Output:
	// write events: nothing was sent: event 0: event_type is empty
	// event 0: payload at $.tags[0] (byte 12) holds \u0000
	// first: 0 event_type
}

func ExampleWriter_trace() {
	// With OpenTelemetry: carrier := propagation.MapCarrier{}; otel.GetTextMapPropagator().Inject(ctx, carrier)
	events := outbox.Writer{
		Payload: outbox.PayloadBytea,
		Trace: func(ctx context.Context) map[string]string {
			if parent, ok := ctx.Value(traceparent{}).(string); ok {
				return map[string]string{"traceparent": parent}
			}
			return nil
		},
	}
	ctx := context.WithValue(context.Background(), traceparent{}, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	tx := &recorder{}
	fmt.Println(events.Write(ctx, tx, &outbox.Event{AggregateType: "user", AggregateID: "7", Type: "UserCreated"}))
	fmt.Println(tx.args[5])
	// Output:
	// <nil>
	// {"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
}

type traceparent struct{}
