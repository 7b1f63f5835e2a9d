//go:build unix

package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/wire"
)

// broker is where the relays deliver to, and where the driver reads what arrived.
type broker interface {
	// Addr is the host:port that the relays' proxies lead to.
	Addr() string

	// URL leads the relays' sink to the broker through a proxy.
	URL(proxy string) string

	// Restart takes the broker away for a while, hard as by kill -9 if it can, and returns when it is
	// there again.
	Restart(ctx context.Context, down time.Duration, hard bool) error

	// RefuseTopic has the broker take no messages of an event type, or take them again.
	RefuseTopic(ctx context.Context, name string, refuse bool) error

	// Read returns what has arrived since it was called last, in the order of arrival. Only called
	// when there are no faults any more.
	Read(ctx context.Context) ([]Arrival, error)

	// Close removes what the run has made.
	Close(ctx context.Context) error
}

// startBroker starts or finds the broker for a sink.
func startBroker(ctx context.Context, o Options, dir, name string) (b broker, err error) {
	switch o.Sink {
	case "nats":
		b, err = startNATS(ctx, o.Program, dir, name)
	case "rabbitmq":
		b, err = openRabbit(ctx, name)
	case "kafka":
		b, err = startKafka(ctx, dir, name)
	default:
		err = fmt.Errorf("no broker for sink %q", o.Sink)
	}
	if err != nil {
		return nil, err // and no nil pointer as a broker
	}
	return b, nil
}

// arrival reads a message. header returns the value of a header, or "".
func arrival(header func(string) string, payload []byte) Arrival {
	a := Arrival{
		Key: Key{header(wire.AggregateType), header(wire.AggregateID)}, EventType: header(wire.Type), Call: parseCall(header(callHeader)),
	}
	var b body
	if id, err := outbox.ParseID(header(wire.ID)); err == nil {
		a.ID = id
	}
	if err := json.Unmarshal(payload, &b); err == nil {
		a.N = b.N
	}
	return a // what cannot be read is nobody's event: the checker says that it was invented
}
