package kafkasink

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		return destination(t, 3, Config{})
	}})
}

func TestContractCompressed(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		return destination(t, 1, Config{Compression: "zstd"})
	}})
}

func destination(t *testing.T, partitions int32, cfg Config) sinktest.Destination {
	b := newBroker(t, brokerURL(t))
	topic := b.topic("ok", partitions)
	b.topic("small", 1, "max.message.bytes=2000")

	px := newProxy(t, b.addr)
	cfg.URL, cfg.AckTimeout, cfg.ConnectTimeout = brokerURL(t), 2*time.Second, 2*time.Second
	s := open(t, cfg)
	// The client heals a cut by itself. Here it finds the broker gone after it, so that it cannot.
	s.connectTCP = func() func(context.Context, string, string) (net.Conn, error) {
		var cut atomic.Bool
		return func(ctx context.Context, network, _ string) (net.Conn, error) {
			if cut.Load() {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("the broker is gone")}
			}
			conn, err := (&net.Dialer{}).DialContext(ctx, network, px.Addr())
			if err != nil {
				return nil, err
			}
			return &watched{Conn: conn, cut: &cut}, nil
		}
	}
	to := func(topic string) func(*relay.Message) {
		return func(m *relay.Message) { m.Topic = topic }
	}
	noise := make([]byte, 5000) // does not shrink
	_, _ = rand.Read(noise)     // never fails
	d := sinktest.Destination{
		Sink: s, Topic: topic, Arrived: b.read(topic).arrived, MaxPayload: 1<<20 - 1000,
		Refusals: []sinktest.Refusal{
			{Name: "larger than the sink's limit", Spoil: func(m *relay.Message) { m.Event.Payload = make([]byte, 1<<20) }, Outcome: "permanent", Reason: []string{"record of 10", "1048588"}},
			{Name: "larger than the topic's limit", Spoil: func(m *relay.Message) { m.Topic, m.Event.Payload = b.name+"small", noise }, Outcome: "permanent", Reason: []string{"record of 5", "max.message.bytes 2000", b.name + "small", "MESSAGE_TOO_LARGE"}},
			{Name: "no such topic", Spoil: to(b.name + "nowhere"), Outcome: "unavailable", Reason: []string{b.name + "nowhere", "does not exist"}},
			{Name: "space", Spoil: to("a b"), Outcome: "permanent", Reason: []string{`"a b"`}},
			{Name: "long name", Spoil: to(strings.Repeat("x", 250)), Outcome: "permanent", Reason: []string{"250 bytes", "249"}},
		},
		Withhold: func() func() { px.Pause(tcpproxy.ToClient); return px.Resume },
		Stall:    func() func() { px.Pause(tcpproxy.ToServer); return px.Resume },
	}
	if cfg.Compression == "" { // else the suite's batches are too small to be cut in the middle
		d.CutAfter = func(toClient bool, n int64) {
			s.cfg.AckTimeout = 300 * time.Millisecond // no acknowledgement will come after the cut
			if toClient {
				px.CutAfter(tcpproxy.ToClient, n)
			} else {
				px.CutAfter(tcpproxy.ToServer, n)
			}
		}
	}
	return d
}

// watched notes that its connection broke.
type watched struct {
	net.Conn
	cut *atomic.Bool
}

func (w *watched) Read(p []byte) (int, error) { return w.note(w.Conn.Read(p)) }

func (w *watched) Write(p []byte) (int, error) { return w.note(w.Conn.Write(p)) }

func (w *watched) note(n int, err error) (int, error) {
	if err != nil && !errors.Is(err, net.ErrClosed) {
		w.cut.Store(true)
	}
	return n, err
}
