package outbox_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// goList is what go list says of packages that are not the standard library's.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps"}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	return slices.Compact(lines)
}

// Whoever imports this package gets the standard library, pgconn with what it needs, and nothing else.
func TestDependencies(t *testing.T) {
	const module, paths = "github.com/commitrelay/outbox", "{{if not .Standard}}{{.ImportPath}}{{end}}"
	allowed := append(goList(t, "-f", paths, "github.com/jackc/pgx/v5/pgconn"), module, module+"/internal/ident")
	got := goList(t, "-f", paths, module)
	for _, p := range got {
		if !slices.Contains(allowed, p) {
			t.Errorf("the package imports %s; allowed are the standard library, pgconn with what it imports, and internal/ident", p)
		}
	}
	if !slices.Contains(got, module+"/internal/ident") {
		t.Errorf("go list names only %v", got)
	}
}

// The modules that the tests need end up in the go.sum of users, too.
func TestDependenciesOfTests(t *testing.T) {
	const modules = "{{with .Module}}{{.Path}}{{end}}"
	allowed := append(goList(t, "-f", modules, "github.com/jackc/pgx/v5/pgxpool", "github.com/jackc/pgx/v5/stdlib"),
		"github.com/commitrelay/outbox", "github.com/google/go-cmp", "go.uber.org/goleak", "pgregory.net/rapid")
	for _, m := range goList(t, "-test", "-f", modules, ".") {
		if !slices.Contains(allowed, m) {
			t.Errorf("the tests need the module %s", m)
		}
	}
}
