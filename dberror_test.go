package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/migrate"
)

func TestDatabaseErrorsSayWhatToDo(t *testing.T) {
	pool := newOutbox(t, migrate.Options{})
	_, err := pool.Exec(t.Context(), `
CREATE TABLE tutorial (id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, status text)`)
	if err != nil {
		t.Fatal(err)
	}
	if err := migrate.Up(t.Context(), pool, migrate.Options{Table: "public.as_bytea", Schema: "as_bytea", Payload: outbox.PayloadBytea}); err != nil {
		t.Fatal(err)
	}
	role := newRole(t, pool)
	for _, c := range []struct {
		name   string
		writer outbox.Writer
		role   bool
		code   string
		want   []string
	}{
		{name: "no table", writer: outbox.Writer{Table: "public.nothing"}, code: "42P01", want: []string{"public.nothing", "commitrelay migrate up"}},
		{name: "no schema", writer: outbox.Writer{Table: "nowhere.outbox_events"}, code: "42P01", want: []string{"commitrelay migrate up"}},
		{name: "another table", writer: outbox.Writer{Table: "tutorial"}, code: "42703", want: []string{"Writer.Table"}},
		{name: "json into bytea", writer: outbox.Writer{Table: "as_bytea"}, code: "42804", want: []string{`set Writer.Payload to "bytea"`}},
		{name: "bytea into json", writer: outbox.Writer{Payload: outbox.PayloadBytea}, code: "42804", want: []string{`set Writer.Payload to "json"`}},
		{name: "text into json", writer: outbox.Writer{Payload: outbox.PayloadText}, code: "42804", want: []string{`set Writer.Payload to "json"`}},
		{name: "no right", role: true, code: "42501", want: []string{"GRANT INSERT (id, aggregate_type, aggregate_id, event_type, payload, headers) ON public.outbox_events"}},
	} {
		for _, many := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				tx := begin(t, pool)
				if c.role {
					if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
						t.Fatal(err)
					}
				}
				events := []*outbox.Event{user("1", `{}`)}
				if many {
					events = append(events, user("2", `{}`))
				}
				err := c.writer.Write(t.Context(), tx, events...)
				var pgErr *pgconn.PgError
				if !errors.As(err, &pgErr) || pgErr.Code != c.code {
					t.Fatalf("got %v, want PostgreSQL's error %s", err, c.code)
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%v: does not say %s", err, want)
					}
				}
			})
		}
	}
}
