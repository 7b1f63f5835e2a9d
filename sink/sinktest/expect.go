package sinktest

import (
	"strings"
	"testing"

	"github.com/commitrelay/outbox/relay"
)

// Expect fails the test for each message of a batch whose outcome, as relay.OutcomeOf names it, is not the wanted one: one word per
// message. err is what Publish returned; Expect returns what it says of each message.
func Expect(t *testing.T, batch []relay.Message, err error, want ...string) []error {
	t.Helper()
	errs := make([]error, len(batch))
	for i, got := range outcomes(t, batch, err) {
		errs[i] = errorOf(err, i)
		if got != want[i] {
			t.Errorf("message %d (%.100q): outcome %s, want %s: %v", i, batch[i].Topic, got, want[i], errs[i])
		}
	}
	return errs
}

// ExpectText fails the test if err is nil, or lacks one of the parts in its text.
func ExpectText(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error is %v, want %q in it", err, part)
		}
	}
}
