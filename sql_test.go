package outbox_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/migrate"
)

// The write contract is SQL: what any language can do without this package.
func TestPlainSQL(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	tx := begin(t, pool)
	_, err := tx.Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, $3, $4)`,
		"user", "1", "UserCreated", `{"name": "Ann"}`)
	if err != nil {
		t.Fatal(err)
	}
	// The payload of an event may come from jsonb, too.
	_, err = tx.Exec(t.Context(), `INSERT INTO outbox_events (payload, event_type, aggregate_id, aggregate_type) SELECT jsonb_build_object('n', n), 'UserCreated', n, 'user' FROM generate_series(2, 3) AS n`)
	if err != nil {
		t.Fatal(err)
	}
	copied := "user\t4\tUserCreated\t{\"name\": \"a\\\\nb\"}\nuser\t5\tUserDeleted\t\\N\n"
	tag, err := tx.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader(copied), `COPY outbox_events (aggregate_type, aggregate_id, event_type, payload) FROM STDIN`)
	if err != nil || tag.RowsAffected() != 2 {
		t.Fatalf("COPY: %v, %v", tag, err)
	}
	want := []string{`{"name": "Ann"}`, `{"n": 2}`, `{"n": 3}`, `{"name": "a\nb"}`, ``}
	got := stored(t, tx, "outbox_events", "convert_to(payload::text, 'UTF8')")
	if len(got) != len(want) {
		t.Fatalf("got %d events, want %d", len(got), len(want))
	}
	for i, e := range got {
		if e.ID.IsZero() || e.AggregateType != "user" || e.AggregateID != string(rune('1'+i)) || string(e.Payload) != want[i] || e.Headers != nil {
			t.Errorf("event %d: got %+v with %s, want aggregate id %d and %s", i, e, e.Payload, i+1, want[i])
		}
	}
	if got[4].Payload != nil {
		t.Errorf("a NULL payload became %q", got[4].Payload)
	}
}

// A role that has no right but to insert, by column, can write by Writer, by INSERT and by COPY; it
// can neither read nor say what is the table's own to say.
func TestLeastRights(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	role := newRole(t, pool)
	_, err := pool.Exec(t.Context(), `GRANT INSERT (id, aggregate_type, aggregate_id, event_type, payload, headers) ON public.outbox_events TO `+role)
	if err != nil {
		t.Fatal(err)
	}
	writer := func(t *testing.T) pgx.Tx {
		t.Helper()
		tx := begin(t, pool)
		if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	t.Run("may", func(t *testing.T) {
		tx := writer(t)
		var w outbox.Writer
		if err := w.Write(t.Context(), tx, user("1", `{}`)); err != nil {
			t.Fatal(err)
		}
		if err := w.Write(t.Context(), tx, user("2", `{}`), user("3", `{}`)); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('user', '4', 'UserCreated', '{}')`); err != nil {
			t.Fatal(err)
		}
		copied := strings.NewReader("user\t5\tUserCreated\t{}\n")
		if _, err := tx.Conn().PgConn().CopyFrom(t.Context(), copied, `COPY outbox_events (aggregate_type, aggregate_id, event_type, payload) FROM STDIN`); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(context.Background(), `RESET ROLE`); err != nil {
			t.Fatal(err)
		}
		if got := len(stored(t, tx, "outbox_events", "payload")); got != 5 {
			t.Errorf("got %d events, want 5", got)
		}
	})
	for name, sql := range map[string]string{
		"read":           `SELECT id FROM outbox_events`,
		"set xid":        `INSERT INTO outbox_events (xid, aggregate_type, aggregate_id, event_type) VALUES ('3', 'user', '1', 'UserCreated')`,
		"set seq":        `INSERT INTO outbox_events (seq, aggregate_type, aggregate_id, event_type) OVERRIDING SYSTEM VALUE VALUES (1, 'user', '1', 'UserCreated')`,
		"set slot":       `INSERT INTO outbox_events (slot, aggregate_type, aggregate_id, event_type) VALUES (1, 'user', '1', 'UserCreated')`,
		"set created_at": `INSERT INTO outbox_events (created_at, aggregate_type, aggregate_id, event_type) VALUES ('infinity', 'user', '1', 'UserCreated')`,
	} {
		t.Run("may not "+name, func(t *testing.T) {
			_, err := writer(t).Exec(t.Context(), sql)
			var pgErr *pgconn.PgError
			if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
				t.Errorf("got %v, want permission denied", err)
			}
		})
	}
}
