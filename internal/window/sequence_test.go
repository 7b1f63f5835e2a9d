package window_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/pgtest"
)

// (g) Why h is not SELECT last_value: nextval shows 32 numbers more there while it writes its WAL record. A value that is
// higher than one read later has run ahead, as a sequence never goes back.
func TestLastValueRunsAhead(t *testing.T) {
	c := cluster(t)
	pool := pgtest.Connect(t, c.URL())
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec("DROP FUNCTION IF EXISTS times_ahead; DROP SEQUENCE IF EXISTS ahead; CREATE SEQUENCE ahead")
	exec(`CREATE FUNCTION times_ahead(reads int, OUT last_value_ahead bigint, OUT function_ahead bigint) LANGUAGE plpgsql AS $$
		DECLARE a bigint; b bigint; c bigint;
		BEGIN
			last_value_ahead := 0; function_ahead := 0; c := 0;
			FOR i IN 1..reads LOOP
				SELECT last_value INTO a FROM ahead;
				b := pg_sequence_last_value('ahead'::regclass);
				IF a > b THEN last_value_ahead := last_value_ahead + 1; END IF;
				IF c > b THEN function_ahead := function_ahead + 1; END IF;
				c := b;
			END LOOP;
		END $$`)
	exec("SELECT nextval('ahead')")

	ctx, stop := context.WithCancel(t.Context())
	const drawers = 2
	drawn := make(chan error, drawers)
	for range drawers {
		conn, err := pgx.Connect(t.Context(), c.URL())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer conn.Close(context.WithoutCancel(ctx))
			for ctx.Err() == nil {
				if _, err := conn.Exec(context.WithoutCancel(ctx), "SELECT max(nextval('ahead')) FROM generate_series(1, 20000)"); err != nil {
					drawn <- err
					return
				}
			}
			drawn <- nil
		}()
	}
	const most, step = 20_000_000, 100_000
	var reads, lastValue, function int64
	for reads < most && function == 0 && (lastValue == 0 || reads < 2*step) {
		var a, b int64
		if err := pool.QueryRow(t.Context(), "SELECT * FROM times_ahead($1)", step).Scan(&a, &b); err != nil {
			t.Fatal(err)
		}
		reads, lastValue, function = reads+step, lastValue+a, function+b
	}
	stop()
	for range drawers {
		if err := <-drawn; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d reads: SELECT last_value ran ahead %d times, pg_sequence_last_value %d times", reads, lastValue, function)
	if function != 0 {
		t.Errorf("pg_sequence_last_value ran ahead: h may be too high, and events are lost")
	}
	if lastValue == 0 {
		t.Errorf("SELECT last_value never ran ahead in %d reads. Run it again on a machine with two free cores; "+
			"if it stays so, this version of PostgreSQL may have mended nextval, and position.sql may say so", reads)
	}
}
