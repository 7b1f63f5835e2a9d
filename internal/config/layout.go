package config

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	yamlLine = regexp.MustCompile(`line (\d+): `)
	quoted   = regexp.MustCompile(`'[^']*'`)
	lineKey  = regexp.MustCompile(`^[ \t]*(?:- )?[ \t]*([A-Za-z_][A-Za-z0-9_-]*)[ \t]*:`)
)

// syntaxFaults explains why a file is not YAML. The parser stops at its first fault and its line
// is often that of the section around it, so tabs and indentation are looked at here.
func syntaxFaults(file, text string, err error) []fault {
	var faults []fault
	lines := strings.Split(text, "\n")
	add := func(i int, msg string) {
		if m := lineKey.FindStringSubmatch(lines[i]); m != nil {
			msg = m[1] + ": " + msg
		}
		faults = append(faults, fault{at: fmt.Sprintf("%s:%d", file, i+1), line: i + 1, text: msg})
	}
	for i, l := range lines {
		if indent := l[:len(l)-len(strings.TrimLeft(l, " \t"))]; strings.Contains(indent, "\t") && strings.TrimSpace(l) != "" {
			add(i, "a tab in the indentation: YAML allows only spaces there")
		}
	}
	if len(faults) > 0 {
		return faults
	}
	if i, msg := badIndent(lines); msg != "" {
		add(i, msg)
		return faults
	}
	// The parser's words, without the text that some of them quote: it may be part of a secret.
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		_, _ = fmt.Sscan(m[1], &line)
		msg = strings.Replace(msg, m[0], "", 1)
	}
	if strings.Contains(msg, "anchor") {
		msg = "a value that begins with * or & must stand in quotes"
	} else if strings.Contains(msg, "cannot start any token") {
		msg = "a value that begins with @, ` or % must stand in quotes"
	}
	msg = quoted.ReplaceAllStringFunc(msg, func(q string) string {
		if len(q) <= 3 { // a punctuation mark that the parser expected
			return q
		}
		return "'...'"
	})
	return []fault{{at: fmt.Sprintf("%s:%d", file, line), line: line, text: "not valid YAML: " + msg + " (on this line or below it)"}}
}

// badIndent finds the first line of a block whose indentation fits nothing above it.
func badIndent(lines []string) (int, string) {
	open := []int{0}     // the indentations of the sections that are open
	mayIndent := false   // the line before opens a section
	previous := "a line" // its key
	for i, l := range lines {
		body := strings.TrimSpace(l)
		if body == "" || body[0] == '#' || body == "---" {
			continue
		}
		indent := len(l) - len(strings.TrimLeft(l, " "))
		top := open[len(open)-1]
		switch {
		case indent > top && !mayIndent && lineKey.MatchString(l):
			return i, fmt.Sprintf("wrong indentation: %d spaces, but %s above it has a value already", indent, previous)
		case indent > top:
			open = append(open, indent)
		case indent < top:
			for len(open) > 0 && open[len(open)-1] > indent {
				open = open[:len(open)-1]
			}
			if len(open) == 0 || open[len(open)-1] != indent {
				return i, fmt.Sprintf("wrong indentation: %d spaces fit no line above it", indent)
			}
		}
		for strings.HasPrefix(body, "- ") { // the keys of a list's element stand behind the dash
			rest := strings.TrimLeft(body[2:], " ")
			indent += len(body) - len(rest)
			body = rest
			if open[len(open)-1] < indent {
				open = append(open, indent)
			}
		}
		mayIndent = strings.HasSuffix(body, ":") || body == "-"
		if m := lineKey.FindStringSubmatch(l); m != nil {
			previous = m[1]
		}
		if strings.ContainsAny(body, "{[|>\"'") { // text and flow style have rules of their own
			mayIndent = true
		}
	}
	return 0, ""
}
