package rabbitsink

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/commitrelay/outbox/relay"
	amqp "github.com/rabbitmq/amqp091-go"
)

// tooLarge is what RabbitMQ says when it closes a channel over a message's size. Since 3.8 the
// size of the payload counts.
var tooLarge = regexp.MustCompile(`message size \d+ is larger than (?:configured )?max size (\d+)`)

// sizeLimit reads the broker's max_message_size from a channel's end.
func sizeLimit(reason *amqp.Error) (int, bool) {
	if reason.Code != amqp.PreconditionFailed {
		return 0, false
	}
	m := tooLarge.FindStringSubmatch(reason.Reason)
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1])
	return n, err == nil && n > 0
}

// closeOutcome gives the end of a channel the mark for the one message that was in flight on it.
// An unmarked error is the fault of the whole sink.
func (s *Sink) closeOutcome(t target, reason *amqp.Error) error {
	err := fmt.Errorf("%s: the broker refuses it (%d %s)", t, reason.Code, reason.Reason)
	switch reason.Code {
	case amqp.NotFound:
		if !s.cfg.ExchangeInTopic {
			return fmt.Errorf("rabbitmq: %w: create it, or correct its name", err)
		}
		return relay.Unavailable(err)
	case amqp.AccessRefused, amqp.ResourceLocked:
		return relay.Unavailable(err)
	case amqp.PreconditionFailed, amqp.ContentTooLarge:
		return relay.Permanent(err)
	}
	return relay.Retry(err)
}
