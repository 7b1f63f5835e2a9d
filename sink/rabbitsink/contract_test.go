package rabbitsink

import (
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
)

func TestContract(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		return destination(t, false)
	}})
}

func TestContractExchangeInTopic(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Open: func(t *testing.T) sinktest.Destination {
		return destination(t, true)
	}})
}

func destination(t *testing.T, exchangeInTopic bool) sinktest.Destination {
	b := newBroker(t)
	exchange := b.exchange("")
	queue := b.queue("ok", exchange, "ok.#", nil)
	b.fullQueue("full", exchange, "full")

	px := b.proxy()
	cfg := Config{URL: b.at(px.Addr()), Exchange: exchange, AckTimeout: time.Second, ConnectTimeout: time.Second}
	prefix := ""
	if exchangeInTopic {
		cfg.Exchange, cfg.ExchangeInTopic, prefix = "", true, exchange+"/"
	}
	topic := func(key string) func(*relay.Message) {
		return func(m *relay.Message) { m.Topic = prefix + key }
	}
	header := func(name, value string) func(*relay.Message) {
		return func(m *relay.Message) { m.Event.Headers = map[string]string{name: value} }
	}
	refusals := []sinktest.Refusal{
		{Name: "unroutable", Spoil: topic("nowhere"), Outcome: "unavailable", Reason: []string{exchange, `"nowhere"`, "312 NO_ROUTE"}},
		{Name: "full queue", Spoil: topic("full"), Outcome: "retry", Reason: []string{"nack", exchange, `"full"`}},
		{Name: "larger than max_message_size", Spoil: func(m *relay.Message) { m.Event.Payload = make([]byte, brokerMax+1) }, Outcome: "permanent", Reason: []string{"1048577", "larger than max", "1048576"}},
		{Name: "long routing key", Spoil: topic("ok." + strings.Repeat("x", 300)), Outcome: "permanent", Reason: []string{"303 bytes", "255"}},
		{Name: "headers larger than a frame", Spoil: header("large", strings.Repeat("x", 200_000)), Outcome: "permanent", Reason: []string{"frame_max", "131072"}},
		{Name: "long header name", Spoil: header(strings.Repeat("x", 256), ""), Outcome: "permanent", Reason: []string{"256 bytes"}},
		{Name: "header that orders", Spoil: header("CC", "elsewhere"), Outcome: "permanent", Reason: []string{`"CC"`}},
	}
	if exchangeInTopic {
		whole := func(topic string) func(*relay.Message) {
			return func(m *relay.Message) { m.Topic = topic }
		}
		refusals = append(refusals,
			sinktest.Refusal{Name: "missing exchange", Spoil: whole(b.name + "nope/key"), Outcome: "unavailable", Reason: []string{b.name + "nope", "404 NOT_FOUND"}},
			sinktest.Refusal{Name: "internal exchange", Spoil: whole("amq.rabbitmq.trace/key"), Outcome: "unavailable", Reason: []string{"amq.rabbitmq.trace", "403"}},
			sinktest.Refusal{Name: "no exchange", Spoil: whole("key"), Outcome: "permanent", Reason: []string{"EXCHANGE/ROUTING-KEY"}},
		)
	}
	return sinktest.Destination{
		Sink: open(t, cfg), Topic: prefix + "ok.events", Arrived: b.read(queue).arrived, MaxPayload: brokerMax,
		Refusals: refusals,
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
