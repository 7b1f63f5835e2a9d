//go:build unix

package torture

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/commitrelay/outbox/sink/rabbitsink"
)

func openRabbitSink(f relayFlags, _ *journal) (closingSink, string, error) {
	s, err := rabbitsink.New(rabbitsink.Config{URL: f.url, Exchange: f.name, Name: f.id})
	return s, "{event_type}", err
}

// rabbitBroker is an exchange with one queue in a RabbitMQ that runs already.
type rabbitBroker struct {
	busy sync.Mutex // one restart at a time

	url, ctl, name string
}

// The variables that scripts/services sets.
const (
	rabbitVariable    = "COMMITRELAY_TEST_RABBITMQ"
	rabbitCtlVariable = "COMMITRELAY_TEST_RABBITMQ_CTL"
)

func openRabbit(ctx context.Context, name string) (*rabbitBroker, error) {
	b := &rabbitBroker{url: os.Getenv(rabbitVariable), ctl: os.Getenv(rabbitCtlVariable), name: name}
	if b.url == "" || b.ctl == "" {
		return nil, fmt.Errorf("%s and %s are not set: run `make torture SINK=rabbitmq`, or set them to the URL of a RabbitMQ "+
			"that may be restarted, and to a command that works as rabbitmqctl for it", rabbitVariable, rabbitCtlVariable)
	}
	err := b.with(ctx, func(c *amqp.Channel) error {
		if err := c.ExchangeDeclare(name, amqp.ExchangeDirect, true, false, false, false, nil); err != nil {
			return err
		}
		// One queue, which keeps the order of arrival. If nobody comes to remove it, it expires.
		expires := amqp.Table{"x-expires": (2 * time.Hour).Milliseconds()}
		if _, err := c.QueueDeclare(name, true, false, false, false, expires); err != nil {
			return err
		}
		for i := range topics {
			if err := c.QueueBind(name, topicName(i), name, false, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("prepare RabbitMQ: %w", err)
	}
	return b, nil
}

// with uses a channel of a new connection: none outlives a restart. While the broker is on its way back
// it is tried again.
func (b *rabbitBroker) with(ctx context.Context, use func(*amqp.Channel) error) error {
	for end := time.Now().Add(30 * time.Second); ; {
		err := b.attempt(use)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func (b *rabbitBroker) attempt(use func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(b.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return err
	}
	return use(channel)
}

func (b *rabbitBroker) Addr() string { return hostOf(b.url) }

func (b *rabbitBroker) URL(proxy string) string {
	u, err := url.Parse(b.url)
	if err != nil {
		return b.url
	}
	u.Host = proxy
	return u.String()
}

// Restart stops the broker inside its node, and starts it again: its connections break, what is in its
// queues stays. hard makes no difference.
func (b *rabbitBroker) Restart(ctx context.Context, down time.Duration, _ bool) error {
	b.busy.Lock()
	defer b.busy.Unlock()
	if err := b.control("stop_app"); err != nil {
		return err
	}
	pause(ctx, down)
	// It may refuse to start while it is still busy stopping.
	for tries := 1; ; tries++ {
		err := b.control("start_app")
		if err == nil || tries == 5 {
			return err
		}
		pause(ctx, time.Second)
	}
}

func (b *rabbitBroker) control(verb string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, b.ctl, verb).CombinedOutput(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w: %s", verb, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (b *rabbitBroker) RefuseTopic(ctx context.Context, name string, refuse bool) error {
	err := b.with(ctx, func(c *amqp.Channel) error {
		if refuse {
			return c.QueueUnbind(b.name, name, b.name, nil)
		}
		return c.QueueBind(b.name, name, b.name, false, nil)
	})
	if err != nil {
		return fmt.Errorf("change bindings: %w", err)
	}
	return nil
}

// quietQueue is how long a queue must give nothing until all of it has been read.
const quietQueue = 500 * time.Millisecond

// Read takes messages out of the queue, by one consumer, which keeps their order.
func (b *rabbitBroker) Read(ctx context.Context) ([]Arrival, error) {
	var arrivals []Arrival
	err := b.with(ctx, func(c *amqp.Channel) error {
		const consumer = "torture"
		messages, err := c.Consume(b.name, consumer, true, true, false, false, nil)
		if err != nil {
			return err
		}
		quiet := time.NewTimer(quietQueue)
		defer quiet.Stop()
		for {
			select {
			case m, ok := <-messages:
				if !ok {
					return errors.New("the channel was closed while the queue was being read: what it had given is lost")
				}
				arrivals = append(arrivals, b.arrival(m, len(arrivals)))
				quiet.Reset(quietQueue)
			case <-quiet.C:
				// Canceled first, so that nothing is given to a consumer that no longer looks.
				if err := c.Cancel(consumer, false); err != nil {
					return err
				}
				for m := range messages {
					arrivals = append(arrivals, b.arrival(m, len(arrivals)))
				}
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the queue: %w", err)
	}
	return arrivals, nil
}

func (b *rabbitBroker) arrival(m amqp.Delivery, n int) Arrival {
	a := arrival(func(name string) string { s, _ := m.Headers[name].(string); return s }, m.Body)
	a.Place = fmt.Sprintf("message %d of this reading", n+1)
	return a
}

func (b *rabbitBroker) Close(ctx context.Context) error {
	err := b.with(ctx, func(c *amqp.Channel) error {
		if _, err := c.QueueDelete(b.name, false, false, false); err != nil {
			return err
		}
		return c.ExchangeDelete(b.name, false, false)
	})
	if err != nil {
		return fmt.Errorf("remove the run's queue: %w", err)
	}
	return nil
}
