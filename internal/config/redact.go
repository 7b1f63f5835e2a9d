package config

import (
	"net/url"
	"regexp"
	"strings"
)

// hostOnly is what a further host of a list may look like to be shown.
var hostOnly = regexp.MustCompile(`^[A-Za-z0-9._-]+(:[0-9]{1,5})?(/[A-Za-z0-9_-]*)?$`)

// Redact is the address without passwords, tokens and parameters, for people to read. What
// cannot be taken apart with certainty is masked as a whole, so that a password whose characters
// break the URL does not show.
func Redact(s string) string {
	parts := strings.Split(s, ",") // NATS and PostgreSQL know lists of hosts
	for i, p := range parts {
		if i > 0 && hostOnly.MatchString(p) {
			continue
		}
		shown, ok := redactOne(p)
		if !ok {
			return maskAll(s)
		}
		parts[i] = shown
	}
	return strings.Join(parts, ",")
}

func redactOne(s string) (string, bool) {
	if !strings.Contains(s, "://") {
		return s, s == "" || s == "stdout:"
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || strings.ContainsAny(u.Host+u.Path, "@") || strings.Contains(u.RawQuery+u.Fragment, "@") {
		return "", false
	}
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	if u.User != nil {
		// A user without a password may be a token.
		if _, has := u.User.Password(); has {
			b.WriteString(url.User(u.User.Username()).String() + ":")
		}
		b.WriteString(mask + "@")
	}
	b.WriteString(u.Host)
	switch {
	case u.Path == "" || u.Path == "/":
		b.WriteString(u.Path)
	case u.Scheme == "http" || u.Scheme == "https": // a webhook's path often is its password
		b.WriteString("/" + mask)
	default:
		b.WriteString(u.EscapedPath())
	}
	if u.RawQuery != "" || u.Fragment != "" {
		b.WriteString("?" + mask)
	}
	return b.String(), true
}

var scheme = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,15}://`)

func maskAll(s string) string { return scheme.FindString(s) + mask }

// checkURL says what is wrong with a URL, in words that hold nothing of it.
func checkURL(s string) string {
	const hint = "; characters that are special in a URL are written as %40 for @, %2F for /, %3A for :, %25 for %; or put the password into a file (password_file)"
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "not a valid URL" + hint
	case strings.ContainsAny(u.Host+u.Path, "@") || strings.Contains(u.Fragment+u.RawQuery, "@"):
		return "an @ stands where none belongs" + hint
	case u.Host == "":
		return "the URL names no host"
	}
	return ""
}
