// Package wire holds what consumers see of an event beside its payload: the names and forms of
// its headers. They are a public contract, written down in docs/wire.md.
package wire

import (
	"fmt"
	"strings"
	"time"

	"github.com/commitrelay/outbox/relay"
)

// The headers that every event carries.
const (
	ID            = "outbox-id"             // the event's id, as 01890a5d-ac96-774b-bcce-b302099a8057
	Type          = "outbox-type"           // the event type
	AggregateType = "outbox-aggregate-type" // with AggregateID the key, within which order is kept
	AggregateID   = "outbox-aggregate-id"
	Time          = "outbox-time" // created_at, see FormatTime
)

// Header is one header of an event.
type Header struct{ Name, Value string }

// Own returns the headers that every event carries.
func Own(m *relay.Message) [5]Header {
	return [5]Header{
		{ID, m.Event.ID.String()},
		{Type, m.Event.Type},
		{AggregateType, m.Event.AggregateType},
		{AggregateID, m.Event.AggregateID},
		{Time, FormatTime(m.CreatedAt)},
	}
}

// IsOwn reports whether name is one of the headers that every event carries. An event's own
// header of that name, in whatever case, does not travel: consumers must be able to trust these.
func IsOwn(name string) bool {
	if len(name) < len(ID) || !strings.EqualFold(name[:len("outbox-")], "outbox-") {
		return false
	}
	for _, own := range [...]string{ID, Type, AggregateType, AggregateID, Time} {
		if strings.EqualFold(name, own) {
			return true
		}
	}
	return false
}

// FormatTime writes t in UTC as RFC 3339 with as many decimals as it has, at most nine. Years
// that RFC 3339 cannot write, below 0 or above 9999, get a sign and six digits, as in ISO 8601's
// (and ECMAScript's) expanded years: +294276-12-31T23:59:59.999999Z.
func FormatTime(t time.Time) string {
	t = t.UTC()
	year := t.Year()
	if year >= 0 && year <= 9999 {
		return t.Format(time.RFC3339Nano)
	}
	sign := '+'
	if year < 0 {
		sign, year = '-', -year
	}
	return fmt.Sprintf("%c%06d%s", sign, year, t.Format("-01-02T15:04:05.999999999Z07:00"))
}
