package natssink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/nats-io/nats.go"
)

// A server ends the connection of a client whose protocol line is longer than its
// max_control_line, 4096 by default. The line holds the subject, the inbox, and two sizes.
const (
	maxSubject     = 3900
	maxInboxPrefix = 64
)

// subjectFault says why a message cannot be published to subject; "" if it can.
func subjectFault(subject string) string {
	if subject == "" {
		return "it is empty"
	}
	if len(subject) > maxSubject {
		return fmt.Sprintf("it has %d bytes, more than %d", len(subject), maxSubject)
	}
	tokenStart := true
	for i := range len(subject) {
		c := subject[i]
		switch {
		case c == '.' && tokenStart:
			return "it has an empty token: it begins with a dot, or two dots follow each other"
		case c == ' ':
			return "it holds a space"
		case c < ' ' || c == 0x7f:
			return "it holds a control character"
		// As part of a longer token they would be plain characters, but no stream can be made for them.
		case c == '*' || c == '>':
			return "it holds a wildcard, * or >"
		}
		tokenStart = c == '.'
	}
	if tokenStart {
		return "it ends with a dot"
	}
	return ""
}

const shownSubject = 200

// shown is a subject for an error: whole unless it is absurdly long.
func shown(subject string) string {
	if len(subject) > shownSubject {
		return fmt.Sprintf("%.*q...", shownSubject, subject)
	}
	return fmt.Sprintf("%q", subject)
}

// encoder makes NATS messages. It uses one message and one header map for all: nats.go copies
// what it publishes.
type encoder struct {
	msg    nats.Msg
	own    [7][1]string // the values of the sink's own headers, which msg.Header points to
	names  [7]string
	count  int
	extra  bool // msg.Header holds an event's own headers
	size   int  // of the message encoded last, headers included
	limit  int64
	stream string
}

func newEncoder(stream string, maxPayload int64) *encoder {
	e := &encoder{limit: maxPayload, stream: stream}
	e.names = [7]string{wire.ID, wire.Type, wire.AggregateType, wire.AggregateID, wire.Time, nats.MsgIdHdr, nats.ExpectedStreamHdr}
	e.count = len(e.names)
	if stream == "" {
		e.count-- // the last one expects a stream
	}
	e.msg.Header = make(nats.Header, len(e.names))
	e.resetHeader()
	return e
}

func (e *encoder) resetHeader() {
	clear(e.msg.Header)
	for i := range e.count {
		e.msg.Header[e.names[i]] = e.own[i][:]
	}
	e.extra = false
}

// encode makes a NATS message of m. Its error is marked Permanent: the event cannot be a NATS
// message, today or tomorrow.
func (e *encoder) encode(m *relay.Message) (*nats.Msg, error) {
	if reason := subjectFault(m.Topic); reason != "" {
		return nil, relay.Permanent(fmt.Errorf("topic %s is no NATS subject: %s", shown(m.Topic), reason))
	}
	if e.extra {
		e.resetHeader()
	}
	e.size = len("NATS/1.0\r\n\r\n") + len(m.Event.Payload)
	for i, h := range wire.Own(m) {
		e.own[i][0] = h.Value
	}
	e.own[5][0] = e.own[0][0] // the event's id makes the server drop a repetition
	e.own[6][0] = e.stream
	for i := range e.count {
		if err := valueFault(e.names[i], e.own[i][0]); err != nil {
			return nil, relay.Permanent(err)
		}
		e.size += headerSize(e.names[i], e.own[i][0])
	}
	for name, value := range m.Event.Headers {
		if wire.IsOwn(name) {
			continue
		}
		if err := headerFault(name, value); err != nil {
			return nil, relay.Permanent(err)
		}
		e.extra = true
		e.msg.Header[name] = []string{value}
		e.size += headerSize(name, value)
	}
	if int64(e.size) > e.limit {
		return nil, relay.Permanent(fmt.Errorf("message of %d bytes, headers included, is larger than the NATS server's max_payload of %d bytes", e.size, e.limit))
	}
	e.msg.Subject, e.msg.Data = m.Topic, m.Event.Payload
	return &e.msg, nil
}

func headerSize(name, value string) int { return len(name) + len(value) + len(": \r\n") }

// notInNames are the printable characters that the client library allows in no header's name.
const notInNames = `"()/,:;<=>?@[\]{}`

// headerFault says why an event's own header cannot travel.
func headerFault(name, value string) error {
	if name == "" {
		return errors.New("a header of the event has an empty name")
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(notInNames, c) >= 0 {
			return fmt.Errorf("header %q cannot be a NATS header: its name holds a blank, a character that is not ASCII, or one of %s", name, notInNames)
		}
	}
	// These are orders to the server: to purge the stream, to expect another one, to hold the
	// message back. Only a message's own time to live is left to the event.
	if len(name) >= 5 && strings.EqualFold(name[:5], "nats-") && name != "Nats-TTL" {
		return fmt.Errorf("header %q is an order to the NATS server, which an event must not give", name)
	}
	return valueFault(name, value)
}

// valueFault says why a value cannot travel: the client would change it.
func valueFault(name, value string) error {
	if strings.IndexByte(value, '\n') >= 0 || strings.IndexByte(value, '\r') >= 0 {
		return fmt.Errorf("header %q cannot be a NATS header: its value holds a line break", name)
	}
	if value != "" && (isBlank(value[0]) || isBlank(value[len(value)-1])) {
		return fmt.Errorf("header %q cannot be a NATS header: its value begins or ends with a blank", name)
	}
	return nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }
