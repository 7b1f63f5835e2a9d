package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// fault is one thing wrong with a configuration. Its text is one line, and holds no value that
// could be a secret.
type fault struct {
	at   string // where: "relay.yaml:4", "--lease", "COMMITRELAY_LEASE"
	line int    // in the file; 0 elsewhere
	text string
}

func (f fault) Error() string {
	if f.at == "" {
		return f.text
	}
	return f.at + ": " + f.text
}

// join makes one error of all faults, those of the file in its order first.
func join(faults []fault) error {
	slices.SortStableFunc(faults, func(a, b fault) int {
		if (a.line == 0) != (b.line == 0) {
			return cmp.Compare(b.line, a.line)
		}
		return cmp.Compare(a.line, b.line)
	})
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}

var plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]{0,63}$`)

// showKey is a key as faults name it. In a file with mistakes a value may stand where a key
// belongs, so only what looks like a key is shown.
func showKey(k string) string {
	if plainKey.MatchString(k) {
		return k
	}
	return "(not a name)"
}

func (r *reader) faultf(v value, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if v.key != "" {
		text = v.key + ": " + text
	}
	if v.path != "" {
		text = v.path + ": " + text
	}
	r.faults = append(r.faults, fault{at: v.at, line: v.line, text: text})
}
