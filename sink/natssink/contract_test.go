package natssink

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestContractEmbedded(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		return destination(t, embedded(t, nil).ClientURL())
	}})
}

func TestContractServer(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		return destination(t, serverURL(t))
	}})
}

// destination makes streams of its own on the server, and subscribers that stand for servers
// which answer as a real one cannot be made to.
func destination(t *testing.T, url string) sinktest.Destination {
	id := outbox.NewID()
	p := "t" + hex.EncodeToString(id[8:])
	nc, js := connect(t, url)
	events := stream(t, js, jetstream.StreamConfig{Name: p, Subjects: []string{p + ".ok.>"}, AllowMsgTTL: true})
	stream(t, js, jetstream.StreamConfig{Name: p + "small", Subjects: []string{p + ".small"}, MaxMsgSize: 1000})
	stream(t, js, jetstream.StreamConfig{Name: p + "full", Subjects: []string{p + ".full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	stream(t, js, jetstream.StreamConfig{Name: p + "bytes", Subjects: []string{p + ".bytes"}, MaxBytes: 100, Discard: jetstream.DiscardNew})
	if _, err := js.Publish(t.Context(), p+".full", nil); err != nil {
		t.Fatal(err)
	}
	stream(t, js, jetstream.StreamConfig{
		Name: p + "each", Subjects: []string{p + ".each"}, MaxMsgsPerSubject: 1,
		Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	})
	if _, err := js.Publish(t.Context(), p+".each", nil); err != nil {
		t.Fatal(err)
	}
	respond := func(subject, answer string) {
		if _, err := nc.Subscribe(p+subject, func(m *nats.Msg) {
			if answer != "" {
				_ = m.Respond([]byte(answer))
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	respond(".nack", `{"error":{"code":400,"err_code":19999,"description":"not this one"},"stream":"STUB","seq":0}`)
	respond(".garbage", `hello`)
	respond(".silent", "")
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}

	px := proxy(t, hostOf(t, url))
	sink := open(t, Config{URL: "nats://" + px.Addr(), AckTimeout: time.Second, ConnectTimeout: time.Second})
	topic := func(subject string) func(*relay.Message) {
		return func(m *relay.Message) { m.Topic = subject }
	}
	header := func(name, value string) func(*relay.Message) {
		return func(m *relay.Message) { m.Event.Headers = map[string]string{name: value} }
	}
	maxPayload := int(nc.MaxPayload())
	return sinktest.Destination{
		Sink: sink, Topic: p + ".ok.events", Arrived: read(t, events).arrived,
		MaxPayload: maxPayload - 1000,
		Refusals: []sinktest.Refusal{
			{Name: "wildcard", Spoil: topic(p + ".ok.*"), Outcome: "permanent", Reason: []string{p + ".ok.*", "wildcard"}},
			{Name: "space", Spoil: topic(p + ".ok.a b"), Outcome: "permanent", Reason: []string{"space"}},
			{Name: "absurdly long subject", Spoil: topic(p + ".ok." + strings.Repeat("x", 1<<20)), Outcome: "permanent", Reason: []string{"bytes, more than"}},
			{Name: "larger than max_payload", Spoil: func(m *relay.Message) { m.Event.Payload = make([]byte, maxPayload) }, Outcome: "permanent", Reason: []string{"max_payload of 1048576 bytes", "message of 10"}},
			{Name: "header with a line break", Spoil: header("a", "b\r\nNats-Rollup: all"), Outcome: "permanent", Reason: []string{`"a"`, "line break"}},
			{Name: "header that orders", Spoil: header("Nats-Rollup", "all"), Outcome: "permanent", Reason: []string{"Nats-Rollup"}},
			{Name: "header with a bad time to live", Spoil: header("Nats-TTL", "soon"), Outcome: "permanent", Reason: []string{"TTL"}},
			{Name: "no stream", Spoil: topic(p + ".nowhere"), Outcome: "unavailable", Reason: []string{p + ".nowhere", "no stream"}},
			{Name: "larger than max_msg_size", Spoil: func(m *relay.Message) { m.Topic, m.Event.Payload = p+".small", make([]byte, 1000) }, Outcome: "permanent", Reason: []string{"max_msg_size 1000", "message of 1", p + "small"}},
			{Name: "stream full of messages", Spoil: topic(p + ".full"), Outcome: "unavailable", Reason: []string{"maximum messages exceeded", p + "full"}},
			{Name: "stream full of bytes", Spoil: topic(p + ".bytes"), Outcome: "unavailable", Reason: []string{"maximum bytes exceeded"}},
			{Name: "subject full", Spoil: topic(p + ".each"), Outcome: "unavailable", Reason: []string{"per subject"}},
			{Name: "negative answer", Spoil: topic(p + ".nack"), Outcome: "retry", Reason: []string{"not this one", p + ".nack"}},
			{Name: "an answer that is none", Spoil: topic(p + ".garbage"), Outcome: "unavailable", Reason: []string{"something else"}},
			{Name: "a listener that is no stream", Spoil: topic(p + ".silent"), Outcome: "unavailable", Reason: []string{p + ".silent", "no stream"}},
		},
		CutAfter: func(toClient bool, n int64) {
			if toClient {
				px.CutAfter(tcpproxy.ToClient, n)
			} else {
				px.CutAfter(tcpproxy.ToServer, n)
			}
		},
		Withhold: func() func() { px.Pause(tcpproxy.ToClient); return px.Resume },
		Stall:    func() func() { px.Pause(tcpproxy.ToServer); return px.Resume },
	}
}
