package natssink

import (
	"fmt"
	"testing"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Batches of 1000 events of 200 bytes with 10,000 keys. The server shares the machine.
func BenchmarkPublish(b *testing.B) {
	opts := &server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true, StoreDir: b.TempDir()}
	s, err := server.NewServer(opts)
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "bench", Subjects: []string{"bench.>"}}); err != nil {
		b.Fatal(err)
	}
	sink, err := New(Config{URL: s.ClientURL()})
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	batch := make([]relay.Message, 1000)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch {
			n++
			batch[i] = relay.Message{
				Event: outbox.Event{ID: outbox.NewID(), AggregateType: "order", AggregateID: fmt.Sprintf("order-%d", n%10000), Type: "OrderPaid", Payload: make([]byte, 200)},
				Topic: "bench.OrderPaid",
			}
		}
		if err := sink.Publish(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
