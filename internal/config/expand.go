package config

import (
	"fmt"
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces ${NAME} and ${NAME:-default} by the environment's values, and $$ by a dollar
// sign. Any other dollar sign stands for itself. It works on a value after YAML has been parsed,
// so what a variable holds cannot change the structure of the file.
//
// substituted says that something of the environment is in the result; problem is what is wrong,
// in words without values.
func expand(s string, lookup func(string) (string, bool)) (text string, substituted bool, problem string) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i == len(s)-1 {
			b.WriteString(s)
			return b.String(), substituted, ""
		}
		b.WriteString(s[:i])
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			s = s[i+2:]
			continue
		case '{':
		default:
			b.WriteByte('$')
			s = s[i+1:]
			continue
		}
		inner, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed {
			return "", substituted, "a ${ without its } (write $$ for a dollar sign)"
		}
		name, fallback, hasFallback := strings.Cut(inner, ":-")
		if !variable.MatchString(name) {
			return "", substituted, "what stands between ${ and } is not the name of an environment variable (write $$ for a dollar sign)"
		}
		v, set := lookup(name)
		switch {
		case hasFallback && v == "":
			v = fallback
		case !set:
			return "", substituted, fmt.Sprintf("the environment variable %s is not set; set it, or write ${%s:-default}", name, name)
		default:
			substituted = true
		}
		b.WriteString(v)
		s = rest
	}
}
