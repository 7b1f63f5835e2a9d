package migrate_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
)

// The reader's proof rests on this: a transaction has its id before it draws its first number.
//
// To see it, another session keeps nextval waiting (ALTER SEQUENCE, not yet committed). A
// transaction that waits there must hold the lock on its own id already.
func TestTransactionHasIDBeforeItDrawsANumber(t *testing.T) {
	const columns = `aggregate_type, aggregate_id, event_type, payload`
	statements := map[string]string{
		"INSERT":                            `INSERT INTO outbox_events (` + columns + `) VALUES ('a', '1', 'c', '{}')`,
		"INSERT of several rows":            `INSERT INTO outbox_events (` + columns + `) VALUES ('a', '1', 'c', '{}'), ('a', '2', 'c', '{}')`,
		"DEFAULTs in another order":         `INSERT INTO outbox_events (seq, slot, xid, ` + columns + `) VALUES (DEFAULT, DEFAULT, DEFAULT, 'a', '1', 'c', '{}')`,
		"DEFAULTs in another order, 2 rows": `INSERT INTO outbox_events (seq, slot, xid, ` + columns + `) VALUES (DEFAULT, DEFAULT, DEFAULT, 'a', '1', 'c', '{}'), (DEFAULT, DEFAULT, DEFAULT, 'a', '2', 'c', '{}')`,
		"seq alone":                         `INSERT INTO outbox_events (seq, ` + columns + `) VALUES (DEFAULT, 'a', '1', 'c', '{}')`,
		"seq alone, 2 rows":                 `INSERT INTO outbox_events (seq, ` + columns + `) VALUES (DEFAULT, 'a', '1', 'c', '{}'), (DEFAULT, 'a', '2', 'c', '{}')`,
		"OVERRIDING USER VALUE":             `INSERT INTO outbox_events (seq, ` + columns + `) OVERRIDING USER VALUE VALUES (42, 'a', '1', 'c', '{}')`,
		"OVERRIDING USER VALUE, 2 rows":     `INSERT INTO outbox_events (seq, ` + columns + `) OVERRIDING USER VALUE VALUES (42, 'a', '1', 'c', '{}'), (43, 'a', '2', 'c', '{}')`,
		"INSERT ... SELECT":                 `INSERT INTO outbox_events (` + columns + `) SELECT 'a', g, 'c', '{}' FROM generate_series(1, 1) AS g`,
		"INSERT ... SELECT of several rows": `INSERT INTO outbox_events (` + columns + `) SELECT 'a', g, 'c', '{}' FROM generate_series(1, 3) AS g ORDER BY g`,
		"INSERT in a WITH":                  `WITH e AS (INSERT INTO outbox_events (` + columns + `) VALUES ('a', '1', 'c', '{}') RETURNING seq) SELECT * FROM e`,
		"INSERT by a function":              `DO $$ BEGIN INSERT INTO outbox_events (` + columns + `) VALUES ('a', '1', 'c', '{}'); END $$`,
		"COPY":                              "a\t1\tc\t{}\n",
		"COPY of several rows":              "a\t1\tc\t{}\na\t2\tc\t{}\na\t3\tc\t{}\n",
	}
	pool := pgtest.Pool(t)
	up(t, pool, migrate.Options{})
	if get[int](t, pool, `SELECT current_setting('server_version_num')::integer`) >= 150000 {
		merge := func(rows int) string {
			return fmt.Sprintf(`MERGE INTO outbox_events AS e USING generate_series(1, %d) AS g ON e.seq = -g
				WHEN NOT MATCHED THEN INSERT (seq, xid, `+columns+`) VALUES (DEFAULT, DEFAULT, 'a', g, 'c', '{}')`, rows)
		}
		statements["MERGE"], statements["MERGE of several rows"] = merge(1), merge(3)
	}
	for name, sql := range statements {
		t.Run(name, func(t *testing.T) {
			if !hasIDWhileItWaitsForANumber(t, pool, `outbox_events_seq`, sql) {
				t.Error("the transaction had no id yet when it was about to draw a number")
			}
			if got := get[int](t, pool, `SELECT count(*) FROM outbox_events WHERE pg_xact_status(xid) IS DISTINCT FROM 'committed'`); got != 0 {
				t.Errorf("%d events with an id that is not their transaction's", got)
			}
		})
	}

	// The test can tell: a plain DEFAULT nextval is what ALWAYS protects from.
	exec(t, pool, `CREATE SEQUENCE plain_seq;
		CREATE TABLE plain (xid xid8 DEFAULT pg_current_xact_id(), seq bigint DEFAULT nextval('plain_seq'))`)
	if hasIDWhileItWaitsForANumber(t, pool, `plain_seq`, `INSERT INTO plain (seq, xid) VALUES (DEFAULT, DEFAULT), (DEFAULT, DEFAULT)`) {
		t.Error("a plain DEFAULT nextval passes this test: it tests nothing")
	}
}

// hasIDWhileItWaitsForANumber runs sql as the first statement of a transaction while nobody can draw numbers, and says
// whether it holds a transaction id when it stands still. Then it lets it go on, and checks its events' ids.
func hasIDWhileItWaitsForANumber(t *testing.T, pool *pgxpool.Pool, sequence, sql string) bool {
	t.Helper()
	ctx := context.Background()
	writer, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Release()
	pid := writer.Conn().PgConn().PID()

	gate, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(ctx) }()
	if _, err := gate.Exec(ctx, `ALTER SEQUENCE `+sequence+` CACHE 1`); err != nil {
		t.Fatal(err)
	}

	done := make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(ctx, writer, func(tx pgx.Tx) error { return write(ctx, tx, sql) })
	}()
	testwait.Until(t, "the writer waits for the sequence", func() bool {
		return get[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND relation = $2::text::regclass AND NOT granted)`, pid, sequence)
	})
	hasID := get[bool](t, pool, `SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'transactionid' AND granted)`, pid)
	if err := gate.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := testwait.Recv(t, "the writer has committed", done); err != nil {
		t.Fatal(err)
	}
	return hasID
}

// write runs sql, which is the text of a COPY if it holds tabs, and checks that all its events have
// the id of this transaction.
func write(ctx context.Context, tx pgx.Tx, sql string) error {
	var err error
	if !strings.Contains(sql, "\t{}") {
		_, err = tx.Exec(ctx, sql)
	} else {
		_, err = tx.Conn().PgConn().CopyFrom(ctx, io.Reader(strings.NewReader(sql)),
			`COPY outbox_events (aggregate_type, aggregate_id, event_type, payload) FROM STDIN`)
	}
	if err != nil || strings.Contains(sql, "plain") {
		return err
	}
	var rows, right int
	err = tx.QueryRow(ctx, `
		SELECT count(*), count(*) FILTER (WHERE xid = pg_current_xact_id())
		FROM outbox_events
		WHERE xmin = pg_current_xact_id()::xid`).Scan(&rows, &right)
	if err == nil && (rows == 0 || rows != right) {
		return fmt.Errorf("%d events, %d of them with the transaction's id", rows, right)
	}
	return err
}
