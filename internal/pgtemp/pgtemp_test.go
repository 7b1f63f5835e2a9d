package pgtemp_test

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(orphanEnv) != "" {
		beOrphaned()
	}
	goleak.VerifyTestMain(m)
}

// quick are settings for tests that do not care about durability.
var quick = map[string]string{"fsync": "off"}

func start(t *testing.T, opts pgtemp.Options) *pgtemp.Cluster {
	t.Helper()
	c, err := pgtemp.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, c)
	return c
}

func closeAfter(t *testing.T, c *pgtemp.Cluster) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func connect(t *testing.T, c *pgtemp.Cluster) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func execute(t *testing.T, c *pgtemp.Cluster, sql string) {
	t.Helper()
	if _, err := connect(t, c).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t *testing.T, c *pgtemp.Cluster, sql string) T {
	t.Helper()
	rows, err := connect(t, c).Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func command(t *testing.T, c *pgtemp.Cluster, name string, args ...string) {
	t.Helper()
	out, err := c.Command(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func TestStartTakesParametersAndCloseRemovesAll(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "odd ' name")
	if err := os.Mkdir(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	reachable(t, parent)
	c := start(t, pgtemp.Options{Dir: parent, Parameters: map[string]string{
		"fsync": "off", "max_prepared_transactions": "7", "application_name": `it's a \ name`,
	}})
	if got := query[string](t, c, "SHOW max_prepared_transactions"); got != "7" {
		t.Errorf("max_prepared_transactions = %s, want 7", got)
	}
	if got := query[int](t, c, "SELECT current_setting('server_version_num')::int / 10000"); got != c.Major() {
		t.Errorf("Major = %d, the server says %d", c.Major(), got)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(parent)
	if err != nil || len(left) != 0 {
		t.Errorf("left after Close: %v, %v", left, err)
	}
	if _, err := pgx.Connect(t.Context(), c.URL()); err == nil {
		t.Error("the server still answers after Close")
	}
}

// reachable lets the server's user pass through folders of the test.
func reachable(t *testing.T, dir string) {
	t.Helper()
	for d := dir; d != os.TempDir() && d != filepath.Dir(d); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOnlyThePasswordOpens(t *testing.T) {
	t.Parallel()
	c := start(t, pgtemp.Options{Parameters: quick})
	u, err := url.Parse(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("postgres", "guess")
	_, err = pgx.Connect(t.Context(), u.String())
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "28P01" {
		t.Errorf("connect with a wrong password = %v, want 28P01", err)
	}
	if got := query[string](t, c, "SHOW unix_socket_directories"); got != "" {
		t.Errorf("unix_socket_directories = %q, want none", got)
	}
	if info, err := os.Stat(c.Dir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the folder = %v, %v, want 0700", info.Mode(), err)
	}
}

func TestStopStartRestart(t *testing.T) {
	t.Parallel()
	c := start(t, pgtemp.Options{})
	address := c.URL()
	execute(t, c, "CREATE TABLE kept AS SELECT 42 AS n")
	steps := map[string]func() error{
		"fast":      func() error { return c.Restart(t.Context(), pgtemp.Fast) },
		"immediate": func() error { return c.Restart(t.Context(), pgtemp.Immediate) },
		"kill -9": func() error {
			if err := c.Kill(); err != nil {
				return err
			}
			return c.StartAgain(t.Context())
		},
	}
	for name, step := range steps {
		if err := step(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := query[int](t, c, "SELECT n FROM kept"); got != 42 {
			t.Errorf("after %s: n = %d, want 42", name, got)
		}
	}
	if c.URL() != address {
		t.Errorf("URL changed from %s to %s", address, c.URL())
	}
	if err := c.StartAgain(t.Context()); err == nil {
		t.Error("a second start of a running server succeeded")
	}
	if err := c.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(pgtemp.Fast); err == nil {
		t.Error("a second stop succeeded")
	}
}

func TestKillBackendLeavesThePostmaster(t *testing.T) {
	t.Parallel()
	c := start(t, pgtemp.Options{Parameters: quick})
	conn := connect(t, c)
	const started = "SELECT pg_postmaster_start_time()::text"
	before := query[string](t, c, started)
	if err := c.KillBackend(t.Context(), int(conn.PgConn().PID())); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the killed backend answers")
	}
	if after := query[string](t, c, started); after != before {
		t.Errorf("the postmaster was started at %s, then at %s", before, after)
	}
}

func TestDumpAndRestore(t *testing.T) {
	t.Parallel()
	from := start(t, pgtemp.Options{Parameters: quick})
	to := start(t, pgtemp.Options{Parameters: quick})
	execute(t, from, "CREATE TABLE moved AS SELECT 1 AS n")
	dump := filepath.Join(from.Dir(), "dump")
	command(t, from, "pg_dump", "--format", "custom", "--file", dump)
	command(t, to, "pg_restore", "--dbname", to.URL(), dump)
	if got := query[int](t, to, "SELECT n FROM moved"); got != 1 {
		t.Errorf("n = %d, want 1", got)
	}
}

func TestResetWAL(t *testing.T) {
	t.Parallel()
	c := start(t, pgtemp.Options{Parameters: quick})
	if err := c.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	command(t, c, "pg_resetwal", "--epoch", "1", c.DataDir())
	if err := c.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query[bool](t, c, "SELECT pg_current_xact_id()::text::numeric > 4294967296"); !got {
		t.Error("transaction ids are not of epoch 1")
	}
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	old := start(t, pgtemp.Options{Parameters: quick})
	execute(t, old, "CREATE TABLE kept AS SELECT 1 AS n")
	if err := old.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	upgraded, err := pgtemp.Create(t.Context(), pgtemp.Options{Parameters: quick, Password: old.Password(), BinDir: old.BinDir()})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, upgraded)
	command(t, upgraded, "pg_upgrade", "--username", "postgres", "--old-bindir", old.BinDir(), "--new-bindir", upgraded.BinDir(),
		"--old-datadir", old.DataDir(), "--new-datadir", upgraded.DataDir())
	if err := upgraded.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query[int](t, upgraded, "SELECT n FROM kept"); got != 1 {
		t.Errorf("n = %d, want 1", got)
	}
}

func TestCloneAndStandby(t *testing.T) {
	t.Parallel()
	primary := start(t, pgtemp.Options{Parameters: quick})
	execute(t, primary, "CREATE TABLE before AS SELECT 1 AS n")
	const identifier = "SELECT system_identifier::text FROM pg_control_system()"

	clone, err := primary.Clone(t.Context(), pgtemp.Options{Parameters: quick})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, clone)
	if got, want := query[string](t, clone, identifier), query[string](t, primary, identifier); got != want {
		t.Errorf("the clone's system identifier is %s, want %s", got, want)
	}
	execute(t, clone, "INSERT INTO before VALUES (2)")

	standby, err := primary.Standby(t.Context(), pgtemp.Options{Parameters: quick})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, standby)
	execute(t, primary, "CREATE TABLE after AS SELECT 1 AS n")
	testwait.Until(t, "the standby has the table", func() bool {
		return query[bool](t, standby, "SELECT to_regclass('after') IS NOT NULL")
	})
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, standby, "INSERT INTO after VALUES (2)")
}

func TestRestoreTo(t *testing.T) {
	t.Parallel()
	original := start(t, pgtemp.Options{Parameters: quick})
	execute(t, original, "CREATE TABLE done (n integer)")
	backup, err := original.Backup(t.Context(), pgtemp.Options{Parameters: quick})
	if err != nil {
		t.Fatal(err)
	}
	closeAfter(t, backup)
	execute(t, original, "INSERT INTO done VALUES (1)")
	execute(t, original, "SELECT pg_create_restore_point('after the first')")
	execute(t, original, "INSERT INTO done VALUES (2)")
	if err := original.Stop(pgtemp.Immediate); err != nil {
		t.Fatal(err)
	}
	if err := backup.RestoreTo(t.Context(), original, "after the first"); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, backup, "SELECT sum(n) FROM done"); n != 1 {
		t.Errorf("the sum is %d, want 1: what came before the point and nothing else", n)
	}
	execute(t, backup, "INSERT INTO done VALUES (3)")
}

func TestInterruptedStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reachable(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := pgtemp.Start(ctx, pgtemp.Options{Dir: dir})
		result <- err
	}()
	testwait.Until(t, "initdb is at work", func() bool {
		matches, _ := filepath.Glob(filepath.Join(dir, "*", "data", "PG_VERSION"))
		return len(matches) > 0
	})
	cancel()
	if err := testwait.Recv(t, "Start to return", result); err == nil {
		t.Error("Start succeeded although it was interrupted")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestAFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	reachable(t, dir)
	_, err := pgtemp.Start(t.Context(), pgtemp.Options{Dir: dir, Parameters: map[string]string{"shared_buffers": "many"}})
	if err == nil || !strings.Contains(err.Error(), `"shared_buffers"`) {
		t.Errorf("Start = %v, want the server's message about shared_buffers", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	found, err := pgtemp.Find(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"initdb", "postgres", "pg_ctl", "pg_dump"} {
		if _, err := os.Stat(filepath.Join(found.BinDir, name)); err != nil {
			t.Error(err)
		}
	}
	_, err = pgtemp.Find(t.Context(), "99")
	var notFound *pgtemp.NotFoundError
	if !errors.As(err, &notFound) || notFound.Version != "99" {
		t.Fatalf("Find = %v, want a NotFoundError for 99", err)
	}
	for _, want := range []string{"apt-get install", "dnf install", "brew install", "apk add", "--database"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in: %v", want, err)
		}
	}
}

func TestBinDirWithoutServer(t *testing.T) {
	t.Parallel()
	_, err := pgtemp.Start(t.Context(), pgtemp.Options{BinDir: t.TempDir()})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Start = %v, want that there is no initdb", err)
	}
}
