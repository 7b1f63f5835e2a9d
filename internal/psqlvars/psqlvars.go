// Package psqlvars fills psql's variables into SQL, as psql does, so that one .sql file serves both:
//
//	:"name"  an identifier, quoted
//	:'name'  a literal, quoted
//	:name    the bare value: letters, digits and underscores only
//
// Casts (::), strings, quoted identifiers, comments and dollar quotes are left alone.
package psqlvars

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	variable = regexp.MustCompile(`^:(?:"([A-Za-z0-9_]+)"|'([A-Za-z0-9_]+)'|([A-Za-z_][A-Za-z0-9_]*))`)
	bare     = regexp.MustCompile(`^[A-Za-z0-9_]+$`)

	// What is copied as it stands. An end that is missing is the rest of the text: PostgreSQL says so better.
	opaque = regexp.MustCompile(`(?s)^(?:` + strings.Join([]string{
		`[eE]'(?:[^'\\]|\\.|'')*(?:'|$)`, // escape string
		`'(?:[^']|'')*(?:'|$)`,           // string
		`"(?:[^"]|"")*(?:"|$)`,           // quoted identifier
		`--[^\n]*`,                       // comment
		`::|:=`,                          // cast, assignment
		`[A-Za-z_\x{80}-\x{10FFFF}][A-Za-z0-9_$\x{80}-\x{10FFFF}]*`, // word: no e'' and no $$ begins inside one
		`[0-9]+`,
	}, "|") + `)`)
	dollar = regexp.MustCompile(`^\$(?:[A-Za-z_\x{80}-\x{10FFFF}][A-Za-z0-9_\x{80}-\x{10FFFF}]*)?\$`)
)

// Render replaces the variables in sql by vars. A variable that vars does not hold, or a bare value
// that is more than a word, is an error.
func Render(sql string, vars map[string]string) (string, error) {
	var out strings.Builder
	for rest := sql; rest != ""; {
		if n := skip(rest); n > 0 {
			out.WriteString(rest[:n])
			rest = rest[n:]
			continue
		}
		m := variable.FindStringSubmatch(rest)
		if m == nil {
			out.WriteByte(rest[0])
			rest = rest[1:]
			continue
		}
		name := m[1] + m[2] + m[3]
		value, ok := vars[name]
		if !ok {
			return "", fmt.Errorf("render SQL: variable %s has no value", m[0])
		}
		if strings.ContainsRune(value, 0) {
			return "", fmt.Errorf("render SQL: variable %s holds a zero byte", m[0])
		}
		switch {
		case m[1] != "":
			if value == "" {
				return "", fmt.Errorf("render SQL: variable %s: an identifier is empty", m[0])
			}
			out.WriteString(`"` + strings.ReplaceAll(value, `"`, `""`) + `"`)
		case m[2] != "":
			out.WriteString(literal(value))
		case !bare.MatchString(value):
			return "", fmt.Errorf("render SQL: variable %s: bare value %q is not a word", m[0], value)
		default:
			out.WriteString(value)
		}
		rest = rest[len(m[0]):]
	}
	return out.String(), nil
}

// skip is the length of what stands at the beginning of s and holds no variable; 0: nothing such.
func skip(s string) int {
	if strings.HasPrefix(s, "/*") {
		return comment(s)
	}
	if tag := dollar.FindString(s); tag != "" {
		if i := strings.Index(s[len(tag):], tag); i >= 0 {
			return i + 2*len(tag)
		}
		return len(s)
	}
	return len(opaque.FindString(s))
}

// comment is the length of the comment at the beginning of s. Comments nest in PostgreSQL.
func comment(s string) int {
	depth := 0
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(s[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return len(s)
}

// literal quotes as libpq's PQescapeLiteral: right with standard_conforming_strings on or off.
func literal(s string) string {
	quoted := `'` + strings.ReplaceAll(s, `'`, `''`) + `'`
	if strings.Contains(s, `\`) {
		return ` E` + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
