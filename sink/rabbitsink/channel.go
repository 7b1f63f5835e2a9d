package rabbitsink

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// maxInFlight bounds what a call has sent and not yet seen confirmed: what may arrive twice when a
// channel closes. The channels below have room for all of it, so that the library's reader never
// waits for us; it drops a notification that nobody takes for five seconds.
const maxInFlight = 500

// channel is an AMQP channel in confirm mode. One call of Publish uses it at a time.
type channel struct {
	amqp     *amqp.Channel
	confirms chan amqp.Confirmation // closed when the channel is
	returns  chan amqp.Return
	closed   chan *amqp.Error
}

// channel takes an idle channel or opens one.
func (c *conn) channel(ctx context.Context) (*channel, error) {
	c.mu.Lock()
	for len(c.idle) > 0 {
		ch := c.idle[len(c.idle)-1]
		c.idle = c.idle[:len(c.idle)-1]
		if !ch.amqp.IsClosed() {
			c.mu.Unlock()
			return ch, nil
		}
	}
	c.mu.Unlock()
	ch := &channel{
		confirms: make(chan amqp.Confirmation, maxInFlight),
		returns:  make(chan amqp.Return, maxInFlight),
		closed:   make(chan *amqp.Error, 1),
	}
	err := c.call(ctx, "open channel", func() (err error) {
		if ch.amqp, err = c.amqp.Channel(); err != nil {
			return err
		}
		ch.amqp.NotifyPublish(ch.confirms)
		ch.amqp.NotifyReturn(ch.returns)
		ch.amqp.NotifyClose(ch.closed)
		return ch.amqp.Confirm(false)
	})
	if err != nil {
		return nil, err
	}
	return ch, nil
}

// release gives a channel back on which nothing is in flight.
func (c *conn) release(ch *channel) {
	if ch.amqp.IsClosed() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, ch)
}

// discard closes a channel on which something is in flight, behind the caller's back: a broker
// that takes nothing does not answer before it takes again, and until then the connection had
// better stay. A new one would only add to what the broker finds in its buffers.
func (c *conn) discard(ch *channel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || ch.amqp.IsClosed() {
		return // it is closed, or will be together with the connection
	}
	c.running.Go(func() {
		if c.blocked.Load() != nil {
			_ = ch.amqp.Close() // ends with the connection at the latest
			return
		}
		_ = c.call(context.Background(), "close channel", ch.amqp.Close)
	})
}

// checkExchange says whether an exchange exists. To publish to one that does not closes the
// channel, and all that is in flight on it is lost; so it is asked for first, on a channel of its
// own, which closes in its place.
func (c *conn) checkExchange(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	c.mu.Lock()
	known := c.exchanges[name]
	c.mu.Unlock()
	if known {
		return nil
	}
	err := c.call(ctx, fmt.Sprintf("look up exchange %q", name), func() error {
		ch, err := c.amqp.Channel()
		if err != nil {
			return err
		}
		// Passive: neither declares it nor compares its type.
		if err := ch.ExchangeDeclarePassive(name, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		return ch.Close()
	})
	var refused *amqp.Error
	switch {
	case err == nil:
		c.mu.Lock()
		c.exchanges[name] = true
		c.mu.Unlock()
	case errors.As(err, &refused) && refused.Code == amqp.NotFound:
		return &missingExchange{name: name, vhost: c.node.vhost, err: refused}
	}
	return err
}

// forget drops what is known of exchanges: one of them is gone.
func (c *conn) forgetExchanges() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.exchanges)
}

// missingExchange is the fault of whoever chose the exchange: the event, or the sink.
type missingExchange struct {
	name, vhost string
	err         *amqp.Error
}

func (e *missingExchange) Error() string {
	return fmt.Sprintf("exchange %q does not exist in vhost %q (%d %s): create it, or correct its name", e.name, e.vhost, e.err.Code, e.err.Reason)
}
func (e *missingExchange) Unwrap() error { return e.err }
