//go:build unix

package torture

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build builds the program of all roles, with what args say.
func build(t *testing.T, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "torture")
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, args...), "./run")...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, text)
	}
	return out
}

// replacement is a place in the source, by its text, and what a planted bug makes of it.
type replacement struct{ file, old, new string }

// buildWith builds the program as if its source were another one. The source itself stays as it is.
func buildWith(t *testing.T, changes []replacement, args ...string) string {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, c := range changes {
		path := filepath.Join(root, filepath.FromSlash(c.file))
		if texts[path] == "" {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("the bug cannot be planted: %v; find the place where it would be made now, and change this test", err)
			}
			texts[path] = string(text)
		}
		if n := strings.Count(texts[path], c.old); n != 1 {
			t.Fatalf("the bug cannot be planted: %s holds this text %d times, want once; find the place where it would be made now, and change this test:\n%s",
				c.file, n, c.old)
		}
		texts[path] = strings.Replace(texts[path], c.old, c.new, 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	dir := t.TempDir()
	for path, text := range texts {
		overlay.Replace[path] = filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(path, root), string(filepath.Separator), "_"))
		if err := os.WriteFile(overlay.Replace[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return build(t, append(args, "-overlay", file)...)
}
