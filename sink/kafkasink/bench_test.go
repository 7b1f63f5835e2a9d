package kafkasink

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/relay"
	"github.com/twmb/franz-go/pkg/kgo"
)

const benchSize = 1000

// benchBatch makes 1,000 events of 200 bytes with 10,000 keys.
func benchBatch(topic string, n int) []relay.Message {
	batch := make([]relay.Message, benchSize)
	payload := make([]byte, 200)
	for i := range batch {
		batch[i] = message(topic)
		batch[i].Event.ID = outbox.ID{}
		batch[i].Event.AggregateID = fmt.Sprintf("order-%d", (n*benchSize+i)%10000)
		batch[i].Event.Payload = payload
	}
	return batch
}

// The broker shares the machine.
func BenchmarkPublish(b *testing.B) {
	for _, lanes := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) {
			k := newBroker(b, brokerURL(b))
			topic := k.topic("bench", 8)
			s := open(b, Config{URL: brokerURL(b)})
			benchLanes(b, lanes, func(ctx context.Context, batch []relay.Message) error { return s.Publish(ctx, batch) }, topic)
		})
	}
}

// What the client library does by itself: one client for all, the same records, no more.
func BenchmarkBare(b *testing.B) {
	for _, lanes := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) {
			k := newBroker(b, brokerURL(b))
			topic := k.topic("bench", 8)
			c, err := kgo.NewClient(kgo.SeedBrokers(k.addr), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()),
				kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)), kgo.DisableClientMetrics())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			benchLanes(b, lanes, func(ctx context.Context, batch []relay.Message) error {
				r := encode(batch)
				var wg sync.WaitGroup
				var failed error
				wg.Add(len(batch))
				for i := range batch {
					c.Produce(ctx, &r.all[i], func(_ *kgo.Record, err error) {
						if err != nil {
							failed = err
						}
						wg.Done()
					})
				}
				wg.Wait()
				return failed
			}, topic)
		})
	}
}

func benchLanes(b *testing.B, lanes int, publish func(context.Context, []relay.Message) error, topic string) {
	batches := make([][]relay.Message, lanes)
	for i := range batches {
		batches[i] = benchBatch(topic, i)
	}
	if err := publish(b.Context(), batches[0]); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	var running sync.WaitGroup
	work := make(chan struct{}, b.N)
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	for lane := range lanes {
		running.Go(func() {
			for range work {
				if err := publish(b.Context(), batches[lane]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	b.ReportMetric(float64(benchSize)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
