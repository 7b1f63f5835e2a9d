// Package pgtemp runs a temporary PostgreSQL from binaries found on the machine, for the demo and
// for tests that stop, kill, copy and upgrade servers.
//
//	cluster, err := pgtemp.Start(ctx, pgtemp.Options{})
//	defer cluster.Close()
//	pool, err := pgxpool.New(ctx, cluster.URL())
//
// Only the user who started it can get in: the server listens on the loopback interface alone and
// asks for a random password there. It has no socket in the file system, except for the private
// ones that pg_upgrade makes for itself.
package pgtemp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options say what kind of server to start. The zero value is a good one.
type Options struct {
	// Version is the major version to run, as "15". Default: the one in PATH, else the newest found.
	Version string

	// BinDir is the folder with initdb, postgres and so on. Default: found as Find does.
	BinDir string

	// Parameters are server settings, as in postgresql.conf: {"max_prepared_transactions": "64"}.
	// All others have the server's defaults, fsync included: set it off only where speed matters
	// more than honest latencies.
	Parameters map[string]string

	// Password is that of the superuser, "postgres". Default: a random one. Give a cluster that
	// pg_upgrade is to fill the old one's, because pg_upgrade carries passwords over.
	Password string

	// Dir is the folder in which the cluster's own folder is made. Default: that of temporary files.
	Dir string
}

// A Cluster is a PostgreSQL server of our own with its data. Its methods may be called
// concurrently; those that start and stop the server wait for one another.
type Cluster struct {
	binDir   string
	major    int
	dir      string   // ours, holds all the rest
	account  *account // nil: the user we are
	password string
	port     int // fixed by the first start

	mu     sync.Mutex // held while starting and stopping
	tested bool       // the server has run on this port
	server *process   // nil: stopped
}

// Start creates a cluster and starts it. It returns when the server accepts connections, which
// takes a second or two, most of it for initdb. When no PostgreSQL is found the error is a
// *NotFoundError that says how to get one. When ctx ends before the server is ready everything is
// removed; afterwards the server does not depend on ctx. Call Close in the end, also when the
// process is asked to end by a signal. On Linux the server stops by itself should this process be
// killed.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	c, err := Create(ctx, opts)
	if err != nil {
		return nil, err
	}
	return started(ctx, c)
}

// started starts a new cluster and closes it again if that fails.
func started(ctx context.Context, c *Cluster) (*Cluster, error) {
	if err := c.StartAgain(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Create makes a cluster that is not started yet, as pg_upgrade wants its new one: StartAgain
// starts it.
func Create(ctx context.Context, opts Options) (*Cluster, error) {
	c, err := prepare(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := c.initdb(ctx, opts.Parameters); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// prepare finds the binaries and a user to run them, and makes an empty folder.
func prepare(ctx context.Context, opts Options) (*Cluster, error) {
	install := Installation{BinDir: opts.BinDir}
	var err error
	if opts.BinDir == "" {
		install, err = Find(ctx, opts.Version)
	} else {
		install.Major, err = majorVersion(ctx, opts.BinDir)
	}
	if err != nil {
		return nil, err
	}
	who, base, err := chooseHome(ctx, install.BinDir, opts.Dir)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(base, "commitrelay-pg-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for a temporary PostgreSQL: %w", err)
	}
	c := &Cluster{binDir: install.BinDir, major: install.Major, dir: dir, account: who, password: opts.Password, port: port}
	if c.password == "" {
		c.password = rand.Text()
	}
	if err := who.own(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("give %s to user %s: %w", dir, who.name, err), c.Close())
	}
	return c, nil
}

// chooseHome picks a user that may run the binaries, and a folder in which this user may work.
func chooseHome(ctx context.Context, binDir, dir string) (*account, string, error) {
	bases := []string{dir}
	if dir == "" {
		bases = []string{os.TempDir(), "/tmp", "/var/tmp"}
	}
	var errs []error
	for _, base := range bases {
		for _, who := range accounts() {
			cmd := exec.CommandContext(ctx, filepath.Join(binDir, "postgres"), "--version")
			cmd.Dir = base // fails if the user cannot get there
			cmd.SysProcAttr = who.attributes()
			err := cmd.Run()
			if err == nil {
				return who, base, nil
			}
			errs = append(errs, fmt.Errorf("run %s as %s in %s: %w", cmd.Path, who, base, err))
		}
	}
	return nil, "", fmt.Errorf("no user can run PostgreSQL: %w", errors.Join(errs...))
}

func (c *Cluster) initdb(ctx context.Context, parameters map[string]string) error {
	secret := filepath.Join(c.dir, "password")
	if err := os.WriteFile(secret, []byte(c.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	defer os.Remove(secret)
	if err := c.account.own(secret); err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	// One locale for all machines. Local connections are trusted: there is no socket for them
	// but the one that pg_upgrade makes, which only the cluster's user can open.
	cmd := c.Command(ctx, "initdb", "--pgdata", c.DataDir(), "--no-sync", "--no-locale", "--encoding", "UTF8",
		"--username", superuser, "--pwfile", secret, "--auth-local", "trust", "--auth-host", "scram-sha-256")
	if err := run(cmd); err != nil {
		return err
	}
	return c.configure(parameters)
}

// configure appends parameters to postgresql.conf, where a later line wins.
func (c *Cluster) configure(parameters map[string]string) error {
	all := map[string]string{"listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
	maps.Copy(all, parameters)
	var lines []string
	quote := strings.NewReplacer(`'`, `''`, `\`, `\\`)
	for name, value := range all {
		lines = append(lines, fmt.Sprintf("%s = '%s'\n", name, quote.Replace(value)))
	}
	slices.Sort(lines)
	f, err := os.OpenFile(filepath.Join(c.DataDir(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("configure temporary PostgreSQL: %w", err)
	}
	_, err = f.WriteString("\n" + strings.Join(lines, ""))
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("configure temporary PostgreSQL: %w", err)
	}
	return nil
}

// Close stops the server, fast and if that takes long the hard way, and removes all of the
// cluster. Calling it again does nothing.
func (c *Cluster) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.stopWithin(Fast, 10*time.Second)
	if err != nil {
		err = c.stopWithin(Immediate, 10*time.Second)
	}
	if err != nil {
		c.kill()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove temporary PostgreSQL: %w", err)
	}
	return nil
}

const superuser = "postgres"

// URL connects a superuser to the database "postgres". It holds the password, and stays the same
// when the server is started again.
func (c *Cluster) URL() string { return c.URLFor("postgres") }

// URLFor is URL for another database.
func (c *Cluster) URLFor(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, c.password),
		Host: c.Addr(), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Addr is the host:port the server listens on.
func (c *Cluster) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// Password is the superuser's.
func (c *Cluster) Password() string { return c.password }

// Major is the server's major version, as 15.
func (c *Cluster) Major() int { return c.major }

// BinDir is the folder of the server's binaries.
func (c *Cluster) BinDir() string { return c.binDir }

// Dir is a folder that the server's user may write to and that Close removes: a place for dumps.
func (c *Cluster) Dir() string { return c.dir }

// DataDir is the data directory.
func (c *Cluster) DataDir() string { return filepath.Join(c.dir, "data") }

// LogFile is where the server writes its log.
func (c *Cluster) LogFile() string { return filepath.Join(c.dir, "server.log") }
