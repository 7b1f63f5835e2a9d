package outbox_test

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each case in docs/cases.md names a test that exists.
func TestCasesHaveTests(t *testing.T) {
	var code strings.Builder
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		b, err := os.ReadFile(path)
		code.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := regexp.MustCompile(`^\| (C\d+) \|.*\| (\S+) \|$`)
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		row := rows.FindStringSubmatch(lines.Text())
		if row == nil {
			if strings.HasPrefix(lines.Text(), "| C") {
				t.Errorf("no case, or no test: %s", lines.Text())
			}
			continue
		}
		if seen[row[1]] {
			t.Errorf("%s stands there twice", row[1])
		}
		seen[row[1]] = true
		name, sub, _ := strings.Cut(row[2], "/")
		if !strings.Contains(code.String(), fmt.Sprintf("func %s(t *testing.T)", name)) {
			t.Errorf("%s: there is no %s", row[1], name)
		}
		if sub != "" && !strings.Contains(code.String(), fmt.Sprintf("%q", strings.ReplaceAll(sub, "_", " "))) {
			t.Errorf("%s: there is no subtest %q", row[1], sub)
		}
	}
	if len(seen) == 0 {
		t.Error("there are no cases")
	}
}
