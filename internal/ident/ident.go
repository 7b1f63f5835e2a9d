// Package ident reads and quotes the names of tables that users configure.
package ident

import (
	"errors"
	"fmt"
	"strings"
)

// Table is a table's name, as it stands in the catalog: no quotes, no case folding.
type Table struct {
	Schema string // empty: to be looked up in the search_path
	Name   string
}

// Parse reads "table" or "schema.table". Names are taken as they are written, capitals included;
// one that holds a dot or a quote is written in double quotes, as in SQL.
func Parse(s string) (Table, error) {
	var parts []string
	for rest := s; ; {
		part, after, err := next(rest)
		if err != nil {
			return Table{}, fmt.Errorf("table name %q: %w", s, err)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return Table{Name: parts[0]}, nil
	case 2:
		return Table{Schema: parts[0], Name: parts[1]}, nil
	}
	return Table{}, fmt.Errorf("table name %q: want schema.table, got %d names", s, len(parts))
}

// next splits one name off s; after is empty or begins with the dot that follows it.
func next(s string) (name, after string, err error) {
	if strings.HasPrefix(s, `"`) {
		for i := 1; i < len(s); i++ {
			if s[i] != '"' {
				continue
			}
			if i+1 < len(s) && s[i+1] == '"' {
				i++
				continue
			}
			name, after = strings.ReplaceAll(s[1:i], `""`, `"`), s[i+1:]
			if after != "" && after[0] != '.' {
				return "", "", errors.New("unexpected text after the closing quote")
			}
			return name, after, Valid(name)
		}
		return "", "", errors.New("the closing quote is missing")
	}
	if i := strings.IndexByte(s, '.'); i >= 0 {
		name, after = s[:i], s[i:]
	} else {
		name = s
	}
	if strings.ContainsAny(name, `"`) {
		return "", "", errors.New("a quote inside a name: write the whole name in double quotes and double the inner ones")
	}
	return name, after, Valid(name)
}

// Valid says whether PostgreSQL can hold name unchanged: 1 to 63 bytes, no zero byte.
func Valid(name string) error {
	switch {
	case name == "":
		return errors.New("a name is empty")
	case len(name) > 63:
		return fmt.Errorf("name %q has %d bytes, PostgreSQL keeps 63", name, len(name))
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("name %q holds a zero byte", name)
	}
	return nil
}

// Quote makes an SQL identifier of a name.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// String is the table's name, quoted for SQL.
func (t Table) String() string {
	if t.Schema == "" {
		return Quote(t.Name)
	}
	return Quote(t.Schema) + "." + Quote(t.Name)
}
