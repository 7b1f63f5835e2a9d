package kafkasink

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// flight is what a round sends. Its answers go to the publication's errs.
//
// It sends nothing before each record has its place in a partition: what is handed over to a
// client that does not know the topic yet, or while it sends, may find its partition emptied by a
// refusal, and would then be sent without those of its key that were before it.
type flight struct {
	pub      *publication
	client   *client
	sent     []int32
	tags     []tag
	unplaced atomic.Int64 // and 1 as long as more is to come
	placed   chan struct{}
	answered atomic.Int64
	fresh    []string // topics that the client sends to for the first time
}

// tag is a record's context: by it the client's callbacks know the message.
type tag struct {
	context.Context
	flight *flight
	i      int32
	placed bool
}

func newFlight(p *publication, c *client) *flight {
	f := &flight{pub: p, client: c, sent: make([]int32, 0, p.open), tags: make([]tag, 0, p.open), placed: make(chan struct{})}
	f.unplaced.Store(1)
	return f
}

// send hands a message over. wait sends it.
func (f *flight) send(i int) {
	f.sent = append(f.sent, int32(i))
	f.tags = append(f.tags, tag{Context: context.Background(), flight: f, i: int32(i)}) // does not grow: the tags stay where they are
	f.unplaced.Add(1)
	r := f.pub.records.reset(i)
	if !f.client.used[r.Topic] {
		f.client.used[r.Topic] = true
		f.fresh = append(f.fresh, r.Topic)
	}
	r.Context = &f.tags[len(f.tags)-1]
	f.client.kgo.Produce(context.Background(), r, answered)
}

// placements tells flights that their records have a place in a partition.
type placements struct{}

var _ kgo.HookProduceRecordPartitioned = placements{}

func (placements) OnProduceRecordPartitioned(r *kgo.Record, _ int32) {
	t := r.Context.(*tag)
	t.placed = true
	t.flight.oneLess()
}

// answered takes the answer to a record.
func answered(r *kgo.Record, err error) {
	t := r.Context.(*tag)
	t.flight.pub.errs[t.i] = err
	t.flight.answered.Add(1)
	if !t.placed { // it will have no place any more
		t.flight.oneLess()
	}
}

func (f *flight) oneLess() {
	if f.unplaced.Add(-1) == 0 {
		close(f.placed)
	}
}

// awaitTopics waits until the client knows the topics that are new to it. That is a moment after
// their records have a place, and what is flushed before it is left out.
func (f *flight) awaitTopics() {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, topic := range f.fresh {
		for f.client.cause() == nil {
			if leader, _, err := f.client.kgo.PartitionLeader(topic, 0); leader >= 0 || err != nil {
				break
			}
			<-tick.C
		}
	}
}

// wait sends, and returns when all is answered: nil, or why it has killed the client to get there.
// What has no answer then failed, and is not sent any more.
func (f *flight) wait(ctx context.Context) error {
	f.oneLess()
	if len(f.sent) == 0 {
		return nil
	}
	flushed := make(chan struct{})
	defer func() { <-flushed }()
	go func() {
		defer close(flushed)
		<-f.placed
		if f.answered.Load() > 0 {
			// Some are refused before anything is sent. The others may be behind them: take them back.
			_ = f.client.kgo.AbortBufferedRecords(context.Background())
			return
		}
		f.awaitTopics()
		_ = f.client.kgo.Flush(context.Background()) // its only error is its context's
	}()
	timeout := f.pub.sink.cfg.AckTimeout
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	before := int64(0)
	for {
		select {
		case <-flushed:
		case <-ctx.Done():
			f.client.kill(context.Cause(ctx))
		case <-timer.C:
			if now := f.answered.Load(); now > before {
				before = now
				timer.Reset(timeout)
				continue
			}
			f.client.kill(f.client.withDialError(fmt.Errorf("kafka: no acknowledgement for %v", timeout)))
		}
		return f.client.cause() // nil, unless it was killed: by us, or with the sink
	}
}
