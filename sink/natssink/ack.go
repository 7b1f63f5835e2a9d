package natssink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/commitrelay/outbox/relay"
	"github.com/nats-io/nats.go"
)

// The answers of JetStream that mean something special, as its errors.json numbers them.
const (
	errMessageTooLarge  = 10054
	errWrongStream      = 10060
	errStoreFailed      = 10077
	errStreamSealed     = 10109
	errTTLInvalid       = 10165
	errTTLDisabled      = 10166
	errAccountExhausted = 10002
)

type pubAck struct {
	Stream    string    `json:"stream"`
	Seq       uint64    `json:"seq"`
	Duplicate bool      `json:"duplicate"` // the stream had it already
	Error     *apiError `json:"error"`
}

type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%s (JetStream error %d)", e.Description, e.ErrCode)
}

var (
	errNoResponders = errors.New("nobody takes the subject")
	errNoAck        = errors.New("the answer is no acknowledgement of JetStream: something else subscribes to the subject and answers")
)

// readAck returns the acknowledgement in m, or errNoResponders, or errNoAck.
func readAck(m *nats.Msg) (pubAck, error) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return pubAck{}, errNoResponders
	}
	if isPlainAck(m.Data) {
		return pubAck{}, nil
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Error == nil && (ack.Stream == "" || ack.Seq == 0) {
		return pubAck{}, errNoAck
	}
	return ack, nil
}

// isPlainAck recognises {"stream":"NAME", "seq":123} as servers write it, with or without what
// may follow: nearly all that ever comes, in a twentieth of the time that encoding/json takes.
func isPlainAck(b []byte) bool {
	b, ok := bytes.CutPrefix(b, []byte(`{"stream":"`))
	if !ok {
		return false
	}
	end := bytes.IndexByte(b, '"') // the name of a stream needs no escapes
	if end <= 0 {
		return false
	}
	b, ok = bytes.CutPrefix(b[end:], []byte(`",`))
	if !ok {
		return false
	}
	b, ok = bytes.CutPrefix(bytes.TrimLeft(b, " "), []byte(`"seq":`))
	if !ok {
		return false
	}
	digits := 0
	for digits < len(b) && b[digits] >= '0' && b[digits] <= '9' {
		digits++
	}
	if digits == 0 || b[0] == '0' || digits == len(b) {
		return false
	}
	return b[digits] == '}' || (b[digits] == ',' && !bytes.Contains(b, []byte(`"error"`)) && !bytes.Contains(b, []byte(`"duplicate"`)))
}

// refusal gives an error answer of JetStream its mark.
func (s *Sink) refusal(subject string, ack pubAck) error {
	e := ack.Error
	err := fmt.Errorf("stream %q refuses subject %s: %w", ack.Stream, shown(subject), e)
	switch e.ErrCode {
	case errMessageTooLarge, errTTLInvalid:
		return relay.Permanent(err)
	case errWrongStream:
		return relay.Unavailable(fmt.Errorf("subject %s belongs to stream %q, not to %q: %w", shown(subject), ack.Stream, s.cfg.Stream, e))
	case errStreamSealed, errTTLDisabled:
		return relay.Unavailable(err)
	case errStoreFailed:
		full := strings.Contains(e.Description, "maximum messages exceeded") || strings.Contains(e.Description, "maximum bytes exceeded")
		subjectFull := strings.Contains(e.Description, "maximum messages per subject exceeded")
		if subjectFull || full && s.cfg.Stream == "" {
			return relay.Unavailable(err)
		}
		return err // the stream is the whole sink, or its store is broken
	case errAccountExhausted:
		return err // all streams of the account
	}
	if e.Code == 429 || e.Code >= 500 {
		return err // the server is not able to, whatever the message
	}
	return relay.Retry(err)
}
