package outbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// reserved begins the names of the headers that the relay itself puts on every message.
const reserved = "outbox-"

// withTrace is the event's own headers and those of trace that the event does not have. Names are
// compared as HTTP does, without regard to case. Neither map is changed.
func withTrace(own, trace map[string]string) map[string]string {
	if len(trace) == 0 {
		return own
	}
	all := maps.Clone(own)
	if all == nil {
		all = make(map[string]string, len(trace))
	}
	for name, value := range trace {
		if !hasName(own, name) {
			all[name] = value
		}
	}
	return all
}

func hasName(headers map[string]string, name string) bool {
	for n := range headers {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// checkHeaders checks an event's headers, in the order of their names, and returns their size.
func checkHeaders(f *faults, headers map[string]string) (size int) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value := headers[name]
		size += len(name) + len(value) + 4
		field := fmt.Sprintf("headers[%.40q]", name)
		switch {
		case name == "":
			f.add(field, "has no name")
		case len(name) > MaxNameLength:
			f.add(field, fmt.Sprintf("has a name of %d bytes, at most %d are allowed", len(name), MaxNameLength))
		case strings.HasPrefix(strings.ToLower(name), reserved):
			f.add(field, `is reserved: names that begin with "outbox-" are the relay's own`)
		}
		for i := range len(name) {
			if !isToken(name[i]) {
				f.add(field, "has a name with other characters than letters, digits and !#$%&'*+-.^_`|~")
				break
			}
		}
		checkLine(f, field, value)
	}
	if size > MaxHeadersSize {
		f.add("headers", fmt.Sprintf("have %d bytes, at most %d are allowed", size, MaxHeadersSize))
	}
	return size
}

func isToken(c byte) bool {
	return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// headersJSON is what the headers column gets; ok is false for NULL.
func headersJSON(headers map[string]string) (text string, ok bool) {
	if len(headers) == 0 {
		return "", false
	}
	b, err := json.Marshal(headers)
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(b), true
}
