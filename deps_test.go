package outbox_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Whoever imports this package gets the standard library, pgconn with what it needs, and nothing else.
func TestDependencies(t *testing.T) {
	const module, pgx = "github.com/commitrelay/outbox", "github.com/jackc/pgx/v5"
	list := func(args ...string) []string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}, args...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		return strings.Fields(string(out))
	}
	allowed := map[string]bool{module: true, module + "/internal/ident": true}
	for _, p := range list(pgx + "/pgconn") {
		allowed[p] = true
	}
	got := list(module)
	for _, p := range got {
		if !allowed[p] {
			t.Errorf("the package imports %s; allowed are the standard library, pgconn with what it imports, and internal/ident", p)
		}
	}
	if len(got) < 3 {
		t.Errorf("go list names only %v", got)
	}
}

// What the tests import ends up in the go.sum of users, too.
func TestDependenciesOfTests(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{join .TestImports "\n"}}{{"\n"}}{{join .XTestImports "\n"}}`, ".")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for _, p := range strings.Fields(string(out)) {
		if !strings.Contains(strings.Split(p, "/")[0], ".") {
			continue // standard library
		}
		ok := false
		for _, allowed := range []string{"github.com/commitrelay/outbox", "github.com/jackc/pgx/v5", "github.com/google/go-cmp", "go.uber.org/goleak", "pgregory.net/rapid"} {
			ok = ok || p == allowed || strings.HasPrefix(p, allowed+"/")
		}
		if !ok {
			t.Errorf("the tests import %s", p)
		}
	}
}
