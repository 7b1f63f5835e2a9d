package kafkasink

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// keyed gives messages one key.
func keyed(key string, batch ...relay.Message) []relay.Message {
	for i := range batch {
		batch[i].Event.AggregateID = key
	}
	return batch
}

func idsOf(batch []relay.Message) []string {
	var ids []string
	for _, m := range batch {
		ids = append(ids, m.Event.ID.String())
	}
	return ids
}

func TestRecords(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 4, "cleanup.policy=compact") // takes no record without a key
	r := b.read(topic)
	s := open(t, Config{URL: brokerURL(t)})
	batch := keyed("a key", message(topic), message(topic), message(topic), message(topic))
	batch[1].Event.Payload = nil
	batch[2].Event.Payload = []byte{}
	batch[3].Event.AggregateID = ""
	before := time.Now().Truncate(time.Millisecond)
	publishAll(t, s, batch, "published", "published", "published", "published")
	testwait.Until(t, "all arrive", func() bool { return len(r.records()) == 4 })
	byID := map[string]*kgo.Record{}
	for _, rec := range r.records() {
		byID[headersOf(rec)["outbox-id"]] = rec
	}
	partition := byID[batch[0].Event.ID.String()].Partition
	for i, m := range batch[:3] {
		rec := byID[m.Event.ID.String()]
		if string(rec.Key) != "a key" || rec.Partition != partition {
			t.Errorf("record %d: key %q, partition %d, want partition %d", i, rec.Key, rec.Partition, partition)
		}
		if rec.Timestamp.Before(before) {
			t.Errorf("record %d: timestamp %v is not that of publishing", i, rec.Timestamp)
		}
	}
	if rec := byID[batch[1].Event.ID.String()]; rec.Value != nil {
		t.Errorf("without a payload: value %q, want null", rec.Value)
	}
	if rec := byID[batch[2].Event.ID.String()]; rec.Value == nil || len(rec.Value) != 0 {
		t.Errorf("with an empty payload: value %v, want an empty one", rec.Value)
	}
	if rec := byID[batch[3].Event.ID.String()]; rec.Key == nil || len(rec.Key) != 0 {
		t.Errorf("with an empty aggregate id: key %v, want an empty one", rec.Key)
	}
}

func TestCompression(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	for want, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} { // by Kafka's numbers
		topic := b.topic(name, 1)
		r := b.read(topic)
		m := message(topic)
		m.Event.Payload = []byte(strings.Repeat(`{"a":1}`, 200))
		publishAll(t, open(t, Config{URL: brokerURL(t), Compression: name}), []relay.Message{m}, "published")
		testwait.Until(t, "it arrives", func() bool { return len(r.records()) == 1 })
		rec := r.records()[0]
		if got := int(rec.Attrs.CompressionType()); got != want || string(rec.Value) != string(m.Event.Payload) {
			t.Errorf("%s: compression %d, want %d; value %.20q", name, got, want, rec.Value)
		}
	}
}

// Events for a topic that does not exist wait for it, and nothing else does.
func TestAMissingTopic(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	ok, missing := b.topic("ok", 2), b.name+"missing"
	r := b.read(ok)
	s := open(t, Config{URL: brokerURL(t)})
	var batch []relay.Message
	var want []string
	for range 500 {
		batch = append(batch, message(ok), message(missing))
		want = append(want, "published", "unavailable")
	}
	errs := publishAll(t, s, batch, want...)
	sinktest.ExpectText(t, errs[1], missing, "does not exist")
	testwait.Until(t, "those for the other topic arrive", func() bool { return len(r.records()) == 500 })
	topics, err := b.admin.ListTopics(t.Context(), missing)
	if err != nil || topics.Has(missing) {
		t.Errorf("the topic was created (%v)", err)
	}
	b.topic("missing", 1)
	publishAll(t, s, batch[1:2], "published")
}

func TestAutoTopicCreation(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	s := open(t, Config{URL: brokerURL(t), AllowAutoTopicCreation: true})
	topic := b.name + "made"
	t.Cleanup(func() { _, _ = b.admin.DeleteTopic(context.Background(), topic) })
	publishAll(t, s, []relay.Message{message(topic), message(topic)}, "published", "published")
}

// The sink has published to the topic. It is deleted, and later made anew: with another identity,
// and without what the broker knew of the producer.
func TestATopicThatIsDeletedAndMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic, other := b.topic("", 2), b.topic("other", 1)
	s := open(t, Config{URL: brokerURL(t)})
	batch := []relay.Message{message(topic), message(other), message(topic)}
	publishAll(t, s, batch, "published", "published", "published")
	b.delete(topic)
	errs := publishAll(t, s, batch, "unavailable", "published", "unavailable")
	sinktest.ExpectText(t, errs[0], topic, "does not exist")
	b.create(topic, 1)
	publishAll(t, s, batch, "published", "published", "published")
	b.delete(topic)
	b.create(topic, 3)
	r := b.read(topic)
	publishAll(t, s, batch, "published", "published", "published")
	testwait.Until(t, "both arrive", func() bool { return len(r.records()) == 2 })
}

// A key whose events go to several topics: each waits for those before it, whatever their topic.
func TestAKeyThatChangesItsTopic(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	x, y := b.topic("x", 2), b.topic("y", 2)
	r := b.read(x, y)
	s := open(t, Config{URL: brokerURL(t)})
	batch := keyed("k", message(x), message(x), message(y), message(x), message(b.name+"missing"), message(y), message(x))
	batch = append(batch, message(y))
	publishAll(t, s, batch, "published", "published", "published", "published", "unavailable", "unknown", "unknown", "published")
	testwait.Until(t, "five arrive", func() bool { return len(r.records()) == 5 })
	for _, held := range batch[4:7] {
		if slices.Contains(r.ids(), held.Event.ID.String()) {
			t.Errorf("an event arrived that had to wait for the one before it")
		}
	}
}

// One too large in the middle of several requests' worth of one key's records.
func TestNothingPassesARefusedRecord(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	r := b.read(topic)
	s := open(t, Config{URL: brokerURL(t), MaxMessageBytes: 8 << 20})
	publishAll(t, s, []relay.Message{message(topic)}, "published") // so that five requests may be in flight
	for round := range 5 {
		var batch []relay.Message
		var want []string
		for i := range 40 {
			m := message(topic)
			m.Event.Payload = make([]byte, 150_000)
			word := "published"
			if i == 21 {
				m.Event.Payload = make([]byte, 2<<20)
				word = "permanent"
			}
			if i > 21 {
				word = "unknown"
			}
			batch, want = append(batch, m), append(want, word)
		}
		keyed(fmt.Sprint("k", round), batch...)
		batch = append(batch, message(topic)) // of another key, behind it in the same partition
		want = append(want, "published")
		errs := publishAll(t, s, batch, want...)
		sinktest.ExpectText(t, errs[21], "record of 2097", "max.message.bytes 1048588", topic)
		first := 1 + round*41
		taken := append(slices.Clone(batch[:21]), batch[40])
		testwait.Until(t, "those that were taken arrive", func() bool { return len(r.ids()) >= first+22 })
		if got := r.ids()[first:]; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(idsOf(taken)))) {
			t.Fatalf("round %d: arrived are %d records, want those before the refused one and the other key's", round, len(got))
		}
		publishAll(t, s, batch[22:40], want[:18]...)
		testwait.Until(t, "the rest arrives", func() bool { return len(r.ids()) == first+40 })
		first += 22
		if got := r.ids()[first:]; !slices.Equal(got, idsOf(batch[22:40])) {
			t.Errorf("round %d: the rest is out of order", round)
		}
		publishAll(t, s, batch[21:22], "permanent") // known by now to be more than a batch
		batch[21].Event.Payload = nil
		publishAll(t, s, batch[21:22], "published") // so that the next round can count
		testwait.Until(t, "it arrives", func() bool { return len(r.ids()) == first+19 })
	}
}

// A topic that takes less than a batch, though each record would fit.
func TestATopicWithSmallBatches(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1, "max.message.bytes=3000")
	r := b.read(topic)
	s := open(t, Config{URL: brokerURL(t)})
	var batch []relay.Message
	for i := range 400 {
		m := message(topic)
		m.Event.AggregateID = fmt.Sprint(i % 7)
		m.Event.Payload = make([]byte, 10+i)
		batch = append(batch, m)
	}
	published := slices.Repeat([]string{"published"}, len(batch))
	publishAll(t, s, batch, published...)
	publishAll(t, s, batch[:1], "published")
	testwait.Until(t, "all arrive", func() bool { return len(r.ids()) == 401 })
	if !slices.Equal(r.ids()[:400], idsOf(batch)) {
		t.Errorf("the records are out of order")
	}
	if n := s.limits[topic]; n != 3000 {
		t.Errorf("the sink has learned the limit %d, want 3000", n)
	}
}

// What fits to the byte is published, one byte more is not.
func TestTheLimitToTheByte(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1, "max.message.bytes=20000")
	s := open(t, Config{URL: brokerURL(t), MaxMessageBytes: 30_000})
	sized := func(size int) relay.Message {
		m := message(topic)
		m.Event.Headers = map[string]string{"größe": strings.Repeat("v", 300)}
		m.Event.Payload = make([]byte, size-1000)
		for encode([]relay.Message{m}).sizes[0] < size {
			m.Event.Payload = append(m.Event.Payload, 0)
		}
		return m
	}
	publishAll(t, s, []relay.Message{sized(19_999), sized(20_000), sized(20_001)}, "published", "published", "permanent")
	errs := publishAll(t, s, []relay.Message{sized(20_001), sized(30_000), sized(30_001), sized(20_000)}, "permanent", "permanent", "permanent", "published")
	sinktest.ExpectText(t, errs[0], "record of 20001 bytes", "max.message.bytes 20000")
	sinktest.ExpectText(t, errs[1], "record of 30000 bytes", "max.message.bytes 20000")
	sinktest.ExpectText(t, errs[2], "record of 30001 bytes", "max message size of 30000")
}

// A cut connection is healed by the client, and the broker stores once what it got twice.
func TestACutIsHealedWithoutDuplicates(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 2)
	r := b.read(topic)
	px := newProxy(t, b.addr)
	s := open(t, Config{URL: brokerURL(t), AckTimeout: time.Minute})
	through(s, px)
	n := 0
	for round := range 12 {
		var batch []relay.Message
		for i := range 300 {
			m := message(topic)
			m.Event.AggregateID = fmt.Sprint(i % 20)
			batch = append(batch, m)
		}
		n += len(batch)
		if round%2 == 0 {
			px.CutAfter(tcpproxy.ToServer, int64(round)*9000)
		} else {
			px.CutAfter(tcpproxy.ToClient, int64(round)*5)
		}
		publishAll(t, s, batch, slices.Repeat([]string{"published"}, len(batch))...)
	}
	testwait.Until(t, "all arrive", func() bool { return len(r.records()) >= n })
	if got := len(r.records()); got != n {
		t.Errorf("%d records arrived, want %d", got, n)
	}
	if px.Accepted() < 12 {
		t.Errorf("%d connections: the cuts have not happened", px.Accepted())
	}
}

// A connection that is dead without saying so, as after a failover behind a moved address.
func TestADeadConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	px := newProxy(t, b.addr)
	s := open(t, Config{URL: brokerURL(t), AckTimeout: time.Second})
	through(s, px)
	batch := []relay.Message{message(topic)}
	publishAll(t, s, batch, "published")
	px.PauseOpen(tcpproxy.Both)
	errs := publishAll(t, s, batch, "unknown")
	sinktest.ExpectText(t, errs[0], "no acknowledgement for 1s")
	testwait.UntilNil(t, "published on another connection", func() error { return s.Publish(t.Context(), batch) })
}

// Nothing that was handed over before an outage may be sent after it.
func TestNothingIsSentBehindOurBack(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	r := b.read(topic)
	px := newProxy(t, b.addr)
	s := open(t, Config{URL: brokerURL(t), AckTimeout: time.Second})
	through(s, px)
	first, lost, last := message(topic), message(topic), message(topic)
	publishAll(t, s, []relay.Message{first}, "published")
	px.Refuse()
	px.Cut()
	errs := publishAll(t, s, []relay.Message{lost}, "unknown")
	sinktest.ExpectText(t, errs[0], "no acknowledgement", "connection refused", px.Addr())
	errs = publishAll(t, s, []relay.Message{lost}, "unknown")
	sinktest.ExpectText(t, errs[0], "kafka: connect to kafka://"+b.addr, "connection refused")
	if err := px.Accept(); err != nil {
		t.Fatal(err)
	}
	publishAll(t, s, []relay.Message{last}, "published")
	testwait.Until(t, "the last one arrives", func() bool { return slices.Contains(r.ids(), last.Event.ID.String()) })
	if want := idsOf([]relay.Message{first, last}); !slices.Equal(r.ids(), want) {
		t.Errorf("arrived are %v, want %v", r.ids(), want)
	}
}

// One call that runs out of time takes nothing from another.
func TestCallsDoNotShareTheirFate(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	r := b.read(topic)
	px := newProxy(t, b.addr)
	s := open(t, Config{URL: brokerURL(t), AckTimeout: time.Minute})
	through(s, px)
	first, second := []relay.Message{message(topic)}, []relay.Message{message(topic)}
	publishAll(t, s, first, "published")
	px.PauseOpen(tcpproxy.ToClient)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waiting := make(chan error, 1)
	go func() { waiting <- s.Publish(ctx, first) }()
	testwait.Until(t, "the first call waits", func() bool { return len(r.records()) == 2 })
	publishAll(t, s, second, "published")
	cancel()
	errs := sinktest.Expect(t, first, testwait.Recv(t, "the first call ends", waiting), "unknown")
	sinktest.ExpectText(t, errs[0], context.Canceled.Error(), topic)
	publishAll(t, s, second, "published")
	if len(s.all) != 1 {
		t.Errorf("%d clients are open, want the second one", len(s.all))
	}
}

func TestCloseEndsPublish(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	r := b.read(topic)
	px := newProxy(t, b.addr)
	s := open(t, Config{URL: brokerURL(t), AckTimeout: time.Hour})
	through(s, px)
	publishAll(t, s, []relay.Message{message(topic)}, "published")
	px.PauseOpen(tcpproxy.ToClient)
	done := make(chan error, 1)
	go func() { done <- s.Publish(context.Background(), []relay.Message{message(topic)}) }()
	testwait.Until(t, "the message arrives", func() bool { return len(r.records()) == 2 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	sinktest.ExpectText(t, testwait.Recv(t, "Publish returns", done), "closed")
	sinktest.ExpectText(t, s.Publish(t.Context(), []relay.Message{message(topic)}), "closed")
}

// Old clients are replaced, one at a time, when they are idle.
func TestClientsDoNotGrowOld(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	s := open(t, Config{URL: brokerURL(t)})
	publishAll(t, s, []relay.Message{message(topic)}, "published")
	old := s.idle[batching][0]
	old.made = old.made.Add(-maxAge)
	publishAll(t, s, []relay.Message{message(topic)}, "published")
	if s.idle[batching][0] == old || len(s.all) != 1 {
		t.Errorf("the old client is still in use, or open; %d clients are", len(s.all))
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]answer{
		nil:                                          taken,
		kgo.ErrRecordTimeout:                         unclear,
		kgo.ErrClientClosed:                          unclear,
		kerr.NotEnoughReplicas:                       unclear,
		kerr.SaslAuthenticationFailed:                unclear,
		kerr.ClusterAuthorizationFailed:              unclear,
		kerr.OutOfOrderSequenceNumber:                unclear,
		fmt.Errorf("x: %w", kerr.RecordListTooLarge): tooLarge,
		kerr.MessageTooLarge:                         tooLarge,
		kerr.InvalidRecord:                           faulty,
		kerr.InvalidTimestamp:                        faulty,
		kerr.CorruptMessage:                          faulty,
		kerr.UnknownServerError:                      faulty,
		kerr.UnknownTopicID:                          topicMissing,
		kerr.InvalidTopicException:                   topicRefused,
		kerr.TopicAuthorizationFailed:                topicRefused,
	} {
		if got := answerOf(err); got != want {
			t.Errorf("%v: got %d, want %d", err, got, want)
		}
	}
	s := &Sink{}
	if got := relay.OutcomeOf(s.topicFault("__x", kerr.InvalidTopicException)); got != "permanent" {
		t.Errorf("a topic that cannot be is %s", got)
	}
}
