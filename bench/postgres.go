package main

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/psqlvars"
)

//go:embed sql/*.sql
var files embed.FS

// query is the text of sql/NAME.sql, with psql's variables filled in: names and their values in turn.
func query(name string, vars ...string) string {
	text, err := files.ReadFile(path.Join("sql", name+".sql"))
	if err != nil {
		panic(err) // embedded
	}
	values := map[string]string{}
	for i := 0; i < len(vars); i += 2 {
		values[vars[i]] = vars[i+1]
	}
	sql, err := psqlvars.Render(string(text), values)
	if err != nil {
		panic(fmt.Errorf("sql/%s.sql: %w", name, err))
	}
	return sql
}

// server is the PostgreSQL under test. It runs on this machine, for its processes are watched.
type server struct {
	url  string
	pool *pgxpool.Pool // to its own database, not to those under test
	pid  int           // of the postmaster
	what string
}

func connect(ctx context.Context) (_ *server, err error) {
	s := &server{url: os.Getenv("COMMITRELAY_TEST_DATABASE")}
	if s.url == "" {
		return nil, errors.New(`COMMITRELAY_TEST_DATABASE is not set: run eval "$(../scripts/services env)"`)
	}
	if s.pool, err = pgxpool.New(ctx, s.url); err != nil {
		return nil, fmt.Errorf("COMMITRELAY_TEST_DATABASE: %w", err)
	}
	defer func() {
		if err != nil {
			s.pool.Close()
		}
	}()
	var data, version, fsync string
	err = s.pool.QueryRow(ctx, query("server")).Scan(&data, &version, &fsync)
	if err != nil {
		return nil, fmt.Errorf("connect to COMMITRELAY_TEST_DATABASE: %w", err)
	}
	s.what = fmt.Sprintf("PostgreSQL %s, fsync %s, %d cores for all", version, fsync, runtime.NumCPU())
	lock, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return nil, fmt.Errorf("find the postmaster, which has to run on this machine: %w", err)
	}
	first, _, _ := strings.Cut(string(lock), "\n")
	if s.pid, err = strconv.Atoi(first); err != nil {
		return nil, fmt.Errorf("%s/postmaster.pid: %w", data, err)
	}
	return s, nil
}

func (s *server) String() string { return s.what }

func (s *server) close() { s.pool.Close() }

// database is one of our own, made for one measurement.
type database struct {
	server *server
	name   string
	url    string
	pool   *pgxpool.Pool
}

// maxConns is enough for the writers and what else a verb runs in this process.
const maxConns = 64

// withDatabase calls use with a new database, and drops it.
func (s *server) withDatabase(ctx context.Context, use func(*database) error) (err error) {
	d := &database{server: s, name: "bench_" + strings.ToLower(rand.Text())}
	u, err := url.Parse(s.url)
	if err != nil {
		return errors.New("COMMITRELAY_TEST_DATABASE: not a valid URL")
	}
	u.Path = "/" + d.name
	d.url = u.String()
	// Not from template1: nobody can create a database while another is connected to it.
	if _, err := s.pool.Exec(ctx, "CREATE DATABASE "+d.name+" TEMPLATE template0"); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	defer func() {
		if _, dropErr := s.pool.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+d.name+" WITH (FORCE)"); dropErr != nil {
			err = errors.Join(err, fmt.Errorf("drop the database %s: %w", d.name, dropErr))
		}
	}()
	cfg, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return fmt.Errorf("COMMITRELAY_TEST_DATABASE: %w", err)
	}
	cfg.MaxConns = maxConns
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	defer d.pool.Close()
	return use(d)
}

// run executes a script of sql.
func (d *database) run(ctx context.Context, name string, vars ...string) error {
	if _, err := d.pool.Exec(ctx, query(name, vars...), pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("sql/%s.sql: %w", name, err)
	}
	return nil
}

// deadTuples counts them in a table and its partitions, after the sessions that made them have ended or paused.
func (d *database) deadTuples(ctx context.Context, table string) (n int, err error) {
	if err := d.pool.QueryRow(ctx, query("dead_tuples"), table).Scan(&n); err != nil {
		return 0, fmt.Errorf("count dead tuples: %w", err)
	}
	return n, nil
}
