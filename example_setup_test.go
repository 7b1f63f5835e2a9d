package outbox_test

import (
	"context"
	"database/sql"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/migrate"
)

// exampleDatabase is a new database with the outbox and a table of users in it. Examples have no
// testing.T: what goes wrong here is a panic.
func exampleDatabase() (pool *pgxpool.Pool, drop func()) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("COMMITRELAY_TEST_DATABASE"))
	must(err)
	server := config.ConnConfig.Copy()
	name := "example_" + outbox.NewID().String()
	exec := func(sql string) {
		conn, err := pgx.ConnectConfig(ctx, server)
		must(err)
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, sql)
		must(err)
	}
	exec("CREATE DATABASE " + ident.Quote(name))
	config.ConnConfig.Database = name
	pool, err = pgxpool.NewWithConfig(ctx, config)
	must(err)
	must(migrate.Up(ctx, pool, migrate.Options{}))
	_, err = pool.Exec(ctx, `CREATE TABLE users (id text PRIMARY KEY, name text NOT NULL)`)
	must(err)
	return pool, func() {
		pool.Close()
		exec("DROP DATABASE " + ident.Quote(name) + " WITH (FORCE)")
	}
}

func exampleSQLDatabase() (*sql.DB, func()) {
	pool, drop := exampleDatabase()
	db := stdlib.OpenDBFromPool(pool)
	return db, func() {
		must(db.Close())
		drop()
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
