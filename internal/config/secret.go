package config

import (
	"fmt"
	"io"
	"log/slog"
)

// mask stands for what is not shown.
const mask = "***"

// Secret is text that is never shown: each way of printing it gives a mask.
type Secret string

// Reveal is the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String masks the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// Format masks the secret for every verb of fmt: %d and %x would show it otherwise.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// GoString masks the secret.
func (s Secret) GoString() string { return s.String() }

// LogValue masks the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText masks the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL is an address that may hold a password or a token: each way of printing it leaves those out.
type URL string

// Reveal is the URL itself, secrets included.
func (u URL) Reveal() string { return string(u) }

// String is the URL without secrets.
func (u URL) String() string { return Redact(string(u)) }

// Format prints the URL without secrets, whatever the verb.
func (u URL) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// GoString is the URL without secrets.
func (u URL) GoString() string { return u.String() }

// LogValue is the URL without secrets.
func (u URL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is the URL without secrets.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }
