package pgtemp

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// oldest is the first major version with xid8, which the tables need.
const oldest = 13

// Installation is a set of PostgreSQL's binaries.
type Installation struct {
	BinDir string
	Major  int // as 15
}

// NotFoundError says that there is no PostgreSQL on this machine, and how to get one.
type NotFoundError struct {
	Version string   // the major version that was asked for; empty: any
	Looked  []string // where
}

func (e *NotFoundError) Error() string {
	what := fmt.Sprintf("PostgreSQL %d or newer", oldest)
	if e.Version != "" {
		what = "PostgreSQL " + e.Version
	}
	return fmt.Sprintf(`no %s found on this machine (looked in %s). Get one:
  Debian, Ubuntu   sudo apt-get install postgresql
  Fedora, RHEL     sudo dnf install postgresql-server
  macOS            brew install postgresql@17
  Alpine           sudo apk add postgresql
  Windows, other   start a server yourself and use it: --database postgres://user@host/database`,
		what, strings.Join(e.Looked, ", "))
}

// Where distributions keep the binaries outside of PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin",                          // Debian, Ubuntu
	"/usr/pgsql-*/bin",                                   // PGDG's RPMs
	"/usr/lib/postgresql*/bin",                           // openSUSE
	"/usr/libexec/postgresql*",                           // Alpine
	"/opt/homebrew/opt/postgresql@*/bin",                 // Homebrew
	"/usr/local/opt/postgresql@*/bin",                    // Homebrew on Intel
	"/Applications/Postgres.app/Contents/Versions/*/bin", // Postgres.app
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",    // Homebrew on Linux
}

// Find looks for PostgreSQL's server binaries: in PATH, where pg_config points, and in the places
// of the usual distributions, newest first. version is a major version as "15", or empty for any
// that commitrelay works with. The error is a *NotFoundError.
func Find(ctx context.Context, version string) (Installation, error) {
	notFound := &NotFoundError{Version: version, Looked: []string{"PATH", "pg_config --bindir"}}
	notFound.Looked = append(notFound.Looked, places...)
	for _, dir := range candidates(ctx) {
		major, err := majorVersion(ctx, dir)
		if err != nil {
			continue // not a server's folder
		}
		if version == "" && major >= oldest || version == strconv.Itoa(major) {
			return Installation{BinDir: dir, Major: major}, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return Installation{}, fmt.Errorf("look for PostgreSQL: %w", err)
	}
	return Installation{}, notFound
}

// candidates are the folders worth a look, the preferred first.
func candidates(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(path))
		// A link in PATH: its neighbours may lack what stands beside its target, as pg_upgrade.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = slices.Insert(dirs, 0, filepath.Dir(target))
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	var found []string
	for _, place := range places {
		matches, _ := filepath.Glob(place) // the patterns are well formed
		found = append(found, matches...)
	}
	slices.SortStableFunc(found, func(a, b string) int { return numberIn(b) - numberIn(a) })
	return append(dirs, found...)
}

var number = regexp.MustCompile(`[0-9]+`)

// numberIn is the version in a folder's name.
func numberIn(path string) int {
	n, _ := strconv.Atoi(number.FindString(path)) // no number: last
	return n
}

var versionText = regexp.MustCompile(`\) ([0-9]+)`) // postgres (PostgreSQL) 15.4 (Debian ...)

// majorVersion asks the server in dir. It fails if dir is not a folder with a server and initdb.
func majorVersion(ctx context.Context, dir string) (int, error) {
	if _, err := exec.LookPath(filepath.Join(dir, "initdb")); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version")
	cmd.Dir = os.TempDir()
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", cmd, err)
	}
	match := versionText.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("%s printed %q: no version", cmd, out)
	}
	return strconv.Atoi(string(match[1]))
}
