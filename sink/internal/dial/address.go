// Package dial holds what sinks need to reach their brokers: addresses whose secrets do not
// show, TLS from files, and connections that can be given up.
package dial

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

const encodeHint = "special characters in a password are written as %40 for @, %2F for /, %3A for :, %23 for #, %3F for ?, %25 for %; or set user and password apart from the URL"

// ParseURL reads a broker's address of one of the given schemes. No error shows any part of the
// URL: it may hold a password, and a password that breaks the URL may turn up in any part of it.
func ParseURL(raw string, schemes ...string) (*url.URL, error) {
	want := "want " + strings.Join(schemes, ":// or ") + "://"
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !slices.Contains(schemes, scheme) {
		return nil, errors.New("not a URL of a known scheme: " + want + "HOST:PORT")
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("not a valid URL: " + encodeHint)
	case strings.Count(rest, "@") > 1 || strings.Contains(rest, "@") && u.User == nil:
		return nil, errors.New("an @ stands where none belongs: " + encodeHint)
	case u.Hostname() == "":
		return nil, fmt.Errorf("the URL names no host: %sHOST:PORT", want)
	case u.Fragment != "" || strings.Contains(rest, "#"):
		return nil, errors.New("a # stands where none belongs: " + encodeHint)
	}
	return u, nil
}
