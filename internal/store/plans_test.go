package store

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/migrate"
)

// plans explains the statements of a store, in a database of its own.
type plans struct {
	t     *testing.T
	pool  *pgxpool.Pool
	store *Store
}

// null is the parameter of explain that stands for NULL.
const null = "NULL"

func newPlans(t *testing.T) *plans {
	t.Helper()
	ctx := t.Context()
	pool := pgtest.Pool(t)
	if err := migrate.Up(ctx, pool, migrate.Options{}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, pool, ident.Table{Schema: "public", Name: "outbox_events"}, "commitrelay")
	if err != nil {
		t.Fatal(err)
	}
	return &plans{t, pool, s}
}

func (p *plans) exec(sql string) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql); err != nil {
		p.t.Fatal(err)
	}
}

// explain says how a statement would be executed with these parameters, after others in the same transaction.
func (p *plans) explain(options, before, name string, params ...string) (plan string) {
	p.t.Helper()
	ctx := p.t.Context()
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Release()
	values := make([][]byte, len(params))
	for i, v := range params {
		if v != null {
			values[i] = []byte(v)
		}
	}
	pg := conn.Conn().PgConn()
	if _, err := pg.Exec(ctx, "BEGIN; "+before).ReadAll(); err != nil {
		p.t.Fatal(err)
	}
	result := pg.ExecParams(ctx, "EXPLAIN ("+options+") "+p.store.sql[name], values, nil, nil, nil).Read()
	if result.Err != nil {
		p.t.Fatalf("%s: %v", name, result.Err)
	}
	if _, err := pg.Exec(ctx, "ROLLBACK").ReadAll(); err != nil {
		p.t.Fatal(err)
	}
	for _, row := range result.Rows {
		plan += string(row[0]) + "\n"
	}
	return plan
}
