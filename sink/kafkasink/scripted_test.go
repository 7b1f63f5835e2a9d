package kafkasink

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// scripted is a stand-in for what one real broker cannot be made to answer.
func scripted(t *testing.T, brokers int, topics ...string) (*kfake.Cluster, string) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.SeedTopics(1, topics...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, "kafka://" + strings.Join(c.ListenAddrs(), ",")
}

// answer makes the cluster answer produce requests with an error, those that match.
func answerWith(c *kfake.Cluster, with *kerr.Error, matches func(*kmsg.ProduceRequest) bool) {
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		if !matches(req) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, t := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, with.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
}

// What Kafka is asked for: all in-sync replicas, and that it knows repetitions by producer and sequence.
func TestAcksAndIdempotence(t *testing.T) {
	t.Parallel()
	c, url := scripted(t, 1, "topic")
	type asked struct {
		acks     int16
		id       bool
		sequence int32
	}
	var got []asked // by the broker's goroutine, one request at a time
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		var batch kmsg.RecordBatch
		if err := batch.ReadFrom(req.Topics[0].Partitions[0].Records); err != nil {
			t.Error(err)
		}
		got = append(got, asked{req.Acks, batch.ProducerID >= 0, batch.FirstSequence})
		return nil, nil, false
	})
	s := open(t, Config{URL: url})
	publishAll(t, s, []relay.Message{message("topic"), message("topic")}, "published", "published")
	publishAll(t, s, []relay.Message{message("topic")}, "published")
	c.Close() // it does not write to got any more
	if want := []asked{{-1, true, 0}, {-1, true, 2}}; !slices.Equal(got, want) {
		t.Errorf("asked for %+v, want %+v", got, want)
	}
}

// A partition that cannot take anything at the moment: those of others do not wait.
func TestTooFewReplicas(t *testing.T) {
	t.Parallel()
	c, url := scripted(t, 2, "stuck", "ok")
	for node, topic := range []string{"stuck", "ok"} {
		if err := c.MoveTopicPartition(topic, 0, int32(node)); err != nil {
			t.Fatal(err)
		}
	}
	answerWith(c, kerr.NotEnoughReplicas, func(*kmsg.ProduceRequest) bool { return c.CurrentNode() == 0 })
	s := open(t, Config{URL: url, AckTimeout: 2 * time.Second})
	batch := append(keyed("k", message("stuck"), message("ok")), message("ok"), message("stuck"))
	errs := publishAll(t, s, batch, "unknown", "unknown", "published", "unknown")
	sinktest.ExpectText(t, errs[0], "stuck", "not confirmed")
	if len(s.all) != 1 {
		t.Errorf("%d clients are open, want the one: it had no part in that", len(s.all))
	}
	publishAll(t, s, batch[2:3], "published")
}

// A broker that refuses a record answers for its whole batch.
func TestOneBadRecordAmongMany(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		with *kerr.Error
		want string
	}{
		{kerr.InvalidRecord, "permanent"},
		{kerr.InvalidTimestamp, "permanent"},
		{kerr.UnknownServerError, "retry"},
		{kerr.ClusterAuthorizationFailed, "unknown"},
	} {
		t.Run(test.with.Message, func(t *testing.T) {
			c, url := scripted(t, 1, "topic")
			answerWith(c, test.with, func(r *kmsg.ProduceRequest) bool {
				return slices.ContainsFunc(r.Topics, func(t kmsg.ProduceRequestTopic) bool {
					return bytes.Contains(t.Partitions[0].Records, []byte("spoilt"))
				})
			})
			b := newBroker(t, url)
			r := b.read("topic")
			s := open(t, Config{URL: url})
			batch := make([]relay.Message, 30)
			want := slices.Repeat([]string{"published"}, len(batch))
			for i := range batch {
				batch[i] = message("topic")
			}
			batch[12].Event.Payload = []byte("spoilt")
			batch[20].Event.AggregateID = batch[12].Event.AggregateID
			want[12], want[20] = test.want, "unknown"
			arrive := 28
			if test.want == "unknown" { // the fault of more than a record: all that was in the batch
				want, arrive = slices.Repeat([]string{"unknown"}, len(batch)), 0
			}
			errs := publishAll(t, s, batch, want...)
			sinktest.ExpectText(t, errs[12], "topic", test.with.Message)
			publishAll(t, s, []relay.Message{message("topic")}, "published")
			testwait.Until(t, "the others arrive", func() bool { return len(r.records()) == arrive+1 })
		})
	}
}

// A topic whose brokers do not tell its limit: it is found by trying.
func TestALimitThatNobodyTells(t *testing.T) {
	t.Parallel()
	c, url := scripted(t, 1, "topic")
	answerWith(c, kerr.MessageTooLarge, func(r *kmsg.ProduceRequest) bool {
		return slices.ContainsFunc(r.Topics, func(t kmsg.ProduceRequestTopic) bool { return len(t.Partitions[0].Records) > 10_000 })
	})
	c.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, res := range r.(*kmsg.DescribeConfigsRequest).Resources {
			rr := kmsg.NewDescribeConfigsResponseResource()
			rr.ResourceType, rr.ResourceName, rr.ErrorCode = res.ResourceType, res.ResourceName, kerr.TopicAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, rr)
		}
		return resp, nil, true
	})
	b := newBroker(t, url)
	r := b.read("topic")
	s := open(t, Config{URL: url})
	var batch []relay.Message
	want := slices.Repeat([]string{"published"}, 200)
	for range want {
		m := message("topic")
		m.Event.AggregateID = "k"
		m.Event.Payload = make([]byte, 600)
		batch = append(batch, m)
	}
	batch[50].Event.Payload = make([]byte, 9_000) // fits by itself
	large := message("topic")
	large.Event.Payload = make([]byte, 20_000)
	errs := publishAll(t, s, append(batch, large), append(want, "permanent")...)
	sinktest.ExpectText(t, errs[200], "record of 20", "max.message.bytes")
	testwait.Until(t, "all arrive", func() bool { return len(r.ids()) == len(batch) })
	if !slices.Equal(r.ids(), idsOf(batch)) {
		t.Errorf("the records are out of order")
	}
}
