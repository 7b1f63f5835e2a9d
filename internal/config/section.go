package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/commitrelay/outbox/internal/nearest"
)

// reader collects the faults of one configuration while its sections are read.
type reader struct {
	file     string            // the file's name, for faults
	env      map[string]string // the process's environment
	named    map[string]bool   // variables that the file refers to
	set      map[string]value  // what flags and COMMITRELAY_ variables say, by "section.key"
	delivery bool              // sinks and subscriptions are wanted, with their secrets
	offline  bool              // the database's URL may be missing
	known    map[string][]string
	unknown  []unknownKey
	faults   []fault
}

type unknownKey struct {
	value
	kind, name string
	known      []string
}

// value is the text of one key, and where it was written.
type value struct {
	path, key string // of the section, and in it
	at        string
	line      int
	text      string
	tag       string // YAML's type; "!!str" outside of the file
	hidden    bool   // it holds something of the environment: never shown
	bad       bool   // its fault is reported already
}

// section is one mapping of the file. The keys that its reader asks for are the known ones.
type section struct {
	*reader
	path  string // as faults name it: "database", "sinks.bus"
	kind  string // what sections of the same keys share: "database", "sinks.*"
	node  *yaml.Node
	nodes map[string]*yaml.Node // values by key
	known []string
	quiet bool // its variables and secret files may be missing: it is not needed now
}

// section reads a mapping. A missing or empty one has no keys.
func (r *reader) section(path, kind string, n *yaml.Node) *section {
	s := &section{reader: r, path: path, kind: kind, nodes: map[string]*yaml.Node{}}
	n = deref(n)
	if n == nil || n.ShortTag() == "!!null" {
		return s
	}
	if n.Kind != yaml.MappingNode {
		r.faultf(r.place(path, "", n), "want a section of keys, got %s: check the indentation of the lines below it", kindName(n))
		return s
	}
	s.node = n
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch line, dup := first[k.Value]; {
		case k.Kind != yaml.ScalarNode:
			r.faultf(r.place(path, "", k), "a key must be a plain name")
		case k.Value == "<<":
			r.faultf(r.place(path, "", k), "merge keys (<<) are not part of this format: write the keys out")
		case dup:
			r.faultf(r.place(path, showKey(k.Value), k), "duplicate key, first on line %d", line)
		default:
			first[k.Value] = k.Line
			s.nodes[k.Value] = v
		}
	}
	return s
}

// done reports the keys that nobody asked for.
func (s *section) done() {
	s.reader.known[s.kind] = append(s.reader.known[s.kind], s.known...)
	if s.node == nil {
		return
	}
	for i := 0; i+1 < len(s.node.Content); i += 2 {
		k := s.node.Content[i]
		if k.Kind == yaml.ScalarNode && k.Value != "<<" && !slices.Contains(s.known, k.Value) {
			s.unknown = append(s.unknown, unknownKey{s.place(s.path, "", k), s.kind, k.Value, s.known})
		}
	}
}

// child is the node of a key that holds more than one value.
func (s *section) child(key string) *yaml.Node {
	s.known = append(s.known, key)
	return deref(s.nodes[key])
}

// value is the scalar of a key: of a flag, the environment, or the file.
func (s *section) value(key string) (value, bool) {
	s.known = append(s.known, key)
	full := key
	if s.path != "" {
		full = s.path + "." + key
	}
	if v, ok := s.set[full]; ok {
		return v, true
	}
	n := deref(s.nodes[key])
	if n == nil || n.ShortTag() == "!!null" {
		return value{}, false
	}
	return s.scalar(key, n), true
}

func (s *section) scalar(key string, n *yaml.Node) value {
	v := s.place(s.path, key, n)
	if n.Kind != yaml.ScalarNode {
		s.faultf(v, "want one value, got %s", kindName(n))
		v.bad = true
		return v
	}
	v.tag = n.ShortTag()
	text, substituted, problem := expand(n.Value, func(name string) (string, bool) {
		s.named[name] = true
		x, ok := s.env[name]
		return x, ok
	})
	if problem != "" {
		v.bad = true
		if !s.quiet {
			s.faultf(v, "%s", problem)
		}
		return v
	}
	v.text, v.hidden = text, substituted
	return v
}

func (r *reader) place(path, key string, n *yaml.Node) value {
	return value{path: path, key: key, at: r.file + ":" + strconv.Itoa(n.Line), line: n.Line}
}

// show is the value for a fault's text.
func (v value) show() string {
	if v.hidden || strings.Contains(v.text, "://") {
		return "the given value"
	}
	if len(v.text) > 40 {
		return strconv.Quote(v.text[:40] + "...")
	}
	return strconv.Quote(v.text)
}

func deref(n *yaml.Node) *yaml.Node {
	for range 100 { // an alias may lead to an alias
		if n == nil || n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a section of keys"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

// hints completes the unknown keys with what was probably meant.
func (r *reader) hints() {
	for _, u := range r.unknown {
		text := fmt.Sprintf("unknown key %q", showKey(u.name))
		if n := nearest.Name(u.name, u.known); n != "" {
			text += fmt.Sprintf(", did you mean %q?", n)
		} else if home := r.home(u.name, u.kind); home != "" {
			text += fmt.Sprintf(": it is a key of %s, check the indentation", home)
		} else {
			text += ": the keys here are " + strings.Join(u.known, ", ")
		}
		r.faultf(u.value, "%s", text)
	}
}

// home is the kind of section, other than one, that knows a key.
func (r *reader) home(key, other string) string {
	for _, kind := range slices.Sorted(maps.Keys(r.known)) {
		if kind != other && slices.Contains(r.known[kind], key) {
			if kind == "" {
				return "the top level"
			}
			return kind
		}
	}
	return ""
}
