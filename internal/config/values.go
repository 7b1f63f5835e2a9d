package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/commitrelay/outbox/internal/nearest"
)

// Each of these reads one key into dst, and leaves dst alone if the key is not set or has a fault.

func (s *section) text(key string, dst *string) (value, bool) {
	v, ok := s.value(key)
	if !ok || v.bad {
		return v, ok
	}
	*dst = v.text
	return v, true
}

// required is text that must be there.
func (s *section) required(key string, dst *string) (value, bool) {
	v, ok := s.text(key, dst)
	switch {
	case !ok:
		var msg strings.Builder
		msg.WriteString(key + " is missing")
		for k := range s.nodes {
			if !slices.Contains(s.known, k) && nearest.Name(k, []string{key}) != "" {
				fmt.Fprintf(&msg, " (is %s meant?)", showKey(k))
				break
			}
		}
		s.faultf(s.here(), "%s", msg.String())
	case !v.bad && v.text == "":
		s.faultf(v, "the value is empty")
		v.bad = true
	}
	return v, ok && !v.bad
}

// here is the place of the section itself.
func (s *section) here() value {
	if s.node == nil {
		return value{path: s.path}
	}
	return s.place(s.path, "", s.node)
}

func (s *section) duration(key string, dst *time.Duration, least time.Duration) {
	v, ok := s.value(key)
	if !ok || v.bad {
		return
	}
	d, err := parseDuration(v.text)
	switch {
	case err != nil:
		s.faultf(v, "%s: %v", v.show(), err)
	case d <= 0 && least > 0:
		s.faultf(v, "%s: a duration must be more than 0", v.show())
	case d < least:
		s.faultf(v, "%s: at least %v", v.show(), least)
	default:
		*dst = d
	}
}

func (s *section) size(key string, dst *int, least, most int) {
	v, ok := s.value(key)
	if !ok || v.bad {
		return
	}
	n, err := parseSize(v.text)
	switch {
	case err != nil:
		s.faultf(v, "%s: %v", v.show(), err)
	case n < least || n > most:
		s.faultf(v, "%s: want %d to %d bytes", v.show(), least, most)
	default:
		*dst = n
	}
}

func (s *section) number(key string, dst *int, least, most int) (value, bool) {
	v, ok := s.value(key)
	if !ok || v.bad {
		return v, false
	}
	n, err := strconv.Atoi(v.text)
	if err != nil || n < least || n > most {
		s.faultf(v, "%s: want a whole number from %d to %d", v.show(), least, most)
		return v, false
	}
	*dst = n
	return v, true
}

func (s *section) yes(key string, dst *bool) {
	v, ok := s.value(key)
	if !ok || v.bad {
		return
	}
	switch v.text {
	case "true":
		*dst = true
	case "false":
		*dst = false
	default:
		s.faultf(v, "%s: want true or false", v.show())
	}
}

func (s *section) choice(key string, dst *string, choices ...string) (value, bool) {
	v, ok := s.value(key)
	if !ok || v.bad {
		return v, false
	}
	if !slices.Contains(choices, v.text) {
		msg := "want " + strings.Join(choices, " or ")
		if n := nearest.Name(v.text, choices); n != "" && !v.hidden {
			msg = fmt.Sprintf("did you mean %q?", n)
		}
		s.faultf(v, "%s: %s", v.show(), msg)
		return v, false
	}
	*dst = v.text
	return v, true
}

// list reads a list of texts; a single text is a list of one.
func (s *section) list(key string) []value {
	n := s.child(key)
	if n == nil || n.ShortTag() == "!!null" {
		return nil
	}
	items := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		items = n.Content
	}
	var vs []value
	for _, item := range items {
		item = deref(item)
		if item == nil {
			continue
		}
		if v := s.scalar(key, item); !v.bad {
			vs = append(vs, v)
		}
	}
	return vs
}

// secret reads `key`, whose value must come from the environment, or the file that `key`_file
// names. A secret written into the configuration itself is refused: it would be copied around
// with it.
func (s *section) secret(key string, dst *Secret) {
	v, ok := s.value(key)
	if ok && !v.bad {
		if !v.hidden {
			s.faultf(v, "write a secret as \"${NAME}\" from the environment, or into a file named by %s_file", key)
		}
		*dst = Secret(v.text)
	}
	var path string
	if f, set := s.filePath(key+"_file", &path); set {
		if ok {
			s.faultf(f, "%s is set, too: choose one", key)
		}
		s.readSecret(f, path, dst)
	}
}

// filePath reads the path of a file, whose content somebody else checks.
func (s *section) filePath(key string, dst *string) (value, bool) {
	v, ok := s.text(key, dst)
	if ok && !v.bad && v.text == "" {
		s.faultf(v, "the path is empty")
		v.bad = true
	}
	return v, ok && !v.bad
}

func (s *section) readSecret(v value, path string, dst *Secret) {
	if s.quiet {
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		if pe, ok := errors.AsType[*os.PathError](err); ok {
			err = pe.Err
		}
		s.faultf(v, "%s: %v", v.show(), err)
		return
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if text == "" {
		s.faultf(v, "%s: the file is empty", v.show())
		return
	}
	*dst = Secret(text)
}
