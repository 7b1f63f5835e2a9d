package wire_test

import (
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOwn(t *testing.T) {
	m := relay.Message{
		Event: outbox.Event{ID: outbox.ID{0x01, 15: 0x02}, AggregateType: "order", AggregateID: "47", Type: "OrderPaid"},
		// A zone other than UTC, as a pool with a session time zone may return it.
		CreatedAt: time.Date(2026, 3, 1, 12, 30, 0, 123456000, time.FixedZone("", 2*3600)),
	}
	want := [5]wire.Header{
		{"outbox-id", "01000000-0000-0000-0000-000000000002"},
		{"outbox-type", "OrderPaid"},
		{"outbox-aggregate-type", "order"},
		{"outbox-aggregate-id", "47"},
		{"outbox-time", "2026-03-01T10:30:00.123456Z"},
	}
	if diff := cmp.Diff(want, wire.Own(&m)); diff != "" {
		t.Errorf("headers are a public contract (-want +got):\n%s", diff)
	}
}

func TestFormatTime(t *testing.T) {
	tests := map[string]time.Time{
		"2026-03-01T00:00:00Z":           time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		"9999-12-31T23:59:59.999999Z":    time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC),
		"+010000-01-01T00:00:00Z":        time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC),
		"+294276-12-31T23:59:59.999999Z": time.Date(294276, 12, 31, 23, 59, 59, 999999000, time.UTC),
		"0000-01-01T00:00:00Z":           time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC),
		"-004713-11-24T00:00:00Z":        time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC), // PostgreSQL's first day
		"0001-01-01T00:00:00Z":           {},
	}
	for want, in := range tests {
		if got := wire.FormatTime(in); got != want {
			t.Errorf("FormatTime(%v) = %q, want %q", in, got, want)
		}
	}
}

func TestIsOwn(t *testing.T) {
	for _, name := range []string{"outbox-id", "Outbox-Id", "OUTBOX-AGGREGATE-TYPE", "outbox-time", "outbox-type", "outbox-aggregate-id"} {
		if !wire.IsOwn(name) {
			t.Errorf("IsOwn(%q) = false", name)
		}
	}
	for _, name := range []string{"", "id", "outbox", "outbox-", "outbox-idx", "outbox-trace", "traceparent", "x-outbox-id"} {
		if wire.IsOwn(name) {
			t.Errorf("IsOwn(%q) = true", name)
		}
	}
}
