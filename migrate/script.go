package migrate

import (
	"embed"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/internal/psqlvars"
)

//go:embed sql/*.sql
var files embed.FS

// render is a file of sql/ with its variables filled in; extra adds to those of the layout.
func (l layout) render(file string, extra map[string]string) (string, error) {
	text, err := files.ReadFile("sql/" + file)
	if err != nil {
		return "", fmt.Errorf("migrate: %w", err)
	}
	vars := l.vars()
	maps.Copy(vars, extra)
	sql, err := psqlvars.Render(string(text), vars)
	if err != nil {
		return "", fmt.Errorf("migrate: %s: %w", file, err)
	}
	return sql, nil
}

// create is the SQL that makes all tables and gives the roles their rights; the schema is left out
// if it exists.
func (l layout) create(withSchema bool) (string, error) {
	type part struct {
		file  string
		extra map[string]string
	}
	parts := []part{{file: "search_path.sql"}}
	if withSchema {
		parts = append(parts, part{file: "schema.sql"})
	}
	parts = append(parts, part{file: "events.sql"})
	for slot, leaf := range l.leaves() {
		parts = append(parts, part{"leaf.sql", map[string]string{"leaf": leaf, "slot": strconv.Itoa(slot)}})
	}
	parts = append(parts, part{file: "events_seq_idx.sql"}, part{file: "tables.sql"}, part{file: "events_view.sql"})
	var out strings.Builder
	for i, p := range parts {
		sql, err := l.render(p.file, p.extra)
		if err != nil {
			return "", err
		}
		if p.file == "leaf.sql" && p.extra["slot"] != "0" {
			sql = withoutComment(sql)
		} else if i > 0 {
			out.WriteString("\n")
		}
		out.WriteString(sql)
	}
	out.WriteString(l.grants(l.sequence()))
	return out.String(), nil
}

// Print is the SQL that Up runs on a database without our tables, as a script for psql or any
// other client: one transaction. opts.Table needs its schema here.
func Print(opts Options) (string, error) {
	l, err := opts.parse()
	if err != nil {
		return "", err
	}
	if l.events.Schema == "" {
		return "", fmt.Errorf("migrate: print: table %q: write schema.table: without a database there is no search_path", l.events.Name)
	}
	sql, err := l.create(true)
	if err != nil {
		return "", err
	}
	return l.script(sql)
}

// script makes a script of statements: the transaction around them that Up opens itself.
func (l layout) script(sql string) (string, error) {
	begin, err := l.render("begin.sql", nil)
	if err != nil {
		return "", err
	}
	oneLine := strings.NewReplacer("\n", " ", "\r", " ") // a name may hold anything, and must not end the comment
	return fmt.Sprintf(`-- commitrelay, version %d of its tables: the outbox %s (payload %s, %d slots of %v), all else in schema %s.
-- Run it as the role that shall own the tables: psql -v ON_ERROR_STOP=1 -f this-file
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;

%s
%s
COMMIT;
`, Version, oneLine.Replace(l.events.String()), l.payload, l.slots, l.width, oneLine.Replace(ident.Quote(l.schema)), begin, sql), nil
}

// withoutComment drops the comment at the top: once is enough for statements that repeat.
func withoutComment(sql string) string {
	for strings.HasPrefix(sql, "--") {
		_, sql, _ = strings.Cut(sql, "\n")
	}
	return sql
}

// tableName writes a table's name as people do: quoted only where Options.Table wants it.
func tableName(t ident.Table) string {
	quote := func(s string) string {
		if strings.ContainsAny(s, `."`) {
			return ident.Quote(s)
		}
		return s
	}
	if t.Schema == "" {
		return quote(t.Name)
	}
	return quote(t.Schema) + "." + quote(t.Name)
}
