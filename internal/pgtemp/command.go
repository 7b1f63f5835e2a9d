package pgtemp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Command is a command that runs as the server's user in a folder that it may write to, Dir, with
// PGHOST, PGUSER, PGPASSWORD and so on set for this cluster. name is one of PostgreSQL's own, as
// pg_dump or pg_resetwal, found in BinDir; or a path. It is killed, with what it has started, when
// ctx ends.
func (c *Cluster) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	if !strings.ContainsRune(name, filepath.Separator) {
		name = filepath.Join(c.binDir, name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.dir
	cmd.Env = c.environment()
	cmd.SysProcAttr = c.account.attributes()
	cmd.Cancel = func() error { return killGroup(cmd.Process) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// environment is ours without what would lead PostgreSQL's tools elsewhere. Their messages are in
// English, because we read some.
func (c *Cluster) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") && !strings.HasPrefix(e, "HOME=") {
			env = append(env, e)
		}
	}
	return append(env, "LC_ALL=C", "HOME="+c.dir, "PGHOST=127.0.0.1", "PGPORT="+strconv.Itoa(c.port),
		"PGUSER="+superuser, "PGPASSWORD="+c.password, "PGDATABASE=postgres", "PGSSLMODE=disable")
}

// run runs cmd. Its output becomes part of the error.
func run(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Clone makes a copy of a running cluster, with the same system identifier, as a restored backup
// has, and starts it as a server of its own. Version, BinDir and Password of opts are not used.
func (c *Cluster) Clone(ctx context.Context, opts Options) (*Cluster, error) {
	return c.backup(ctx, opts)
}

// Standby is Clone, but the copy follows this cluster by streaming replication until it is
// promoted.
func (c *Cluster) Standby(ctx context.Context, opts Options) (*Cluster, error) {
	return c.backup(ctx, opts, "--write-recovery-conf")
}

// Backup is Clone, but the copy is not started: StartAgain starts it as it is, RestoreTo as it
// became later.
func (c *Cluster) Backup(ctx context.Context, opts Options) (*Cluster, error) {
	return c.copied(ctx, opts)
}

func (c *Cluster) backup(ctx context.Context, opts Options, args ...string) (*Cluster, error) {
	copied, err := c.copied(ctx, opts, args...)
	if err != nil {
		return nil, err
	}
	return started(ctx, copied)
}

func (c *Cluster) copied(ctx context.Context, opts Options, args ...string) (*Cluster, error) {
	opts.BinDir, opts.Password = c.binDir, c.password
	copied, err := prepare(ctx, opts)
	if err != nil {
		return nil, err
	}
	cmd := copied.Command(ctx, "pg_basebackup", append(args, "--pgdata", copied.DataDir(), "--checkpoint", "fast", "--no-sync")...)
	cmd.Env = c.environment() // from here to there
	err = run(cmd)
	if err == nil {
		err = copied.configure(opts.Parameters)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy temporary PostgreSQL: %w", err), copied.Close())
	}
	return copied, nil
}

// RestoreTo starts a Backup of the original as what the original was at a point that
// pg_create_restore_point named there later: a point-in-time restore, on a timeline of its own. It
// reads the write-ahead log from the original's folder, and returns when the copy is a primary.
func (c *Cluster) RestoreTo(ctx context.Context, original *Cluster, point string) error {
	signal := filepath.Join(c.DataDir(), "recovery.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return fmt.Errorf("restore temporary PostgreSQL: %w", err)
	}
	err := c.account.own(signal)
	if err == nil {
		err = c.configure(map[string]string{
			"restore_command":        fmt.Sprintf(`cp "%s/pg_wal/%%f" "%%p"`, original.DataDir()),
			"recovery_target_name":   point,
			"recovery_target_action": "promote",
			"hot_standby":            "off", // it answers only when it is done
		})
	}
	if err != nil {
		return fmt.Errorf("restore temporary PostgreSQL: %w", err)
	}
	return c.StartAgain(ctx)
}

// Promote makes a standby a primary, and returns when it is one.
func (c *Cluster) Promote(ctx context.Context) error {
	return run(c.Command(ctx, "pg_ctl", "promote", "--wait", "--pgdata", c.DataDir()))
}
