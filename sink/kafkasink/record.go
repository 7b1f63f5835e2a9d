package kafkasink

import (
	"fmt"
	"math/bits"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/twmb/franz-go/pkg/kgo"
)

// records are a batch as Kafka has it. They share a few allocations.
type records struct {
	all   []kgo.Record
	sizes []int // of a record batch that holds this record alone, uncompressed
}

// encode makes records of messages. Their values are the messages' payloads, not copies.
func encode(batch []relay.Message) records {
	headers, text := 0, 0
	for i := range batch {
		e := &batch[i].Event
		headers += ownHeaders + len(e.Headers)
		text += len(e.AggregateID)*2 + len(e.AggregateType) + len(e.Type) + uuidLength + maxTime
		for _, value := range e.Headers {
			text += len(value)
		}
	}
	r := records{all: make([]kgo.Record, len(batch)), sizes: make([]int, len(batch))}
	slab := make([]kgo.RecordHeader, 0, headers)
	buffer := make(buffer, 0, text)
	for i := range batch {
		m, rec := &batch[i], &r.all[i]
		rec.Topic = m.Topic
		rec.Key = buffer.bytes(m.Event.AggregateID)
		rec.Value = m.Event.Payload // nil is a null value, a tombstone
		first := len(slab)
		for _, h := range wire.Own(m) {
			slab = append(slab, kgo.RecordHeader{Key: h.Name, Value: buffer.bytes(h.Value)})
		}
		for name, value := range m.Event.Headers {
			if !wire.IsOwn(name) {
				slab = append(slab, kgo.RecordHeader{Key: name, Value: buffer.bytes(value)})
			}
		}
		rec.Headers = slab[first:len(slab):len(slab)]
		r.sizes[i] = batchSize(rec)
	}
	return r
}

const (
	ownHeaders = 5
	uuidLength = 36
	maxTime    = 40
)

// reset makes a record that the client has had as good as new.
func (r records) reset(i int) *kgo.Record {
	rec := &r.all[i]
	*rec = kgo.Record{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Headers: rec.Headers}
	return rec
}

// buffer holds the bytes of many strings.
type buffer []byte

// bytes copies s into the buffer. The result is never nil: an empty key is a key.
func (b *buffer) bytes(s string) []byte {
	first := len(*b)
	*b = append(*b, s...)
	return (*b)[first:len(*b):len(*b)]
}

// batchOverhead is the size of a record batch without records, in Kafka's format of version 2.
const batchOverhead = 61

// batchSize is the size of a record batch that holds one record: what a broker compares with
// max.message.bytes.
func batchSize(r *kgo.Record) int {
	n := 3 // attributes, and the differences of time and offset, which are 0
	n += lengthSize(len(r.Key)) + len(r.Key)
	n += lengthSize(len(r.Value)) + len(r.Value)
	n += lengthSize(len(r.Headers))
	for _, h := range r.Headers {
		n += lengthSize(len(h.Key)) + len(h.Key) + lengthSize(len(h.Value)) + len(h.Value)
	}
	return batchOverhead + lengthSize(n) + n
}

// lengthSize is the size of a length: a signed varint.
func lengthSize(n int) int { return (bits.Len64(uint64(n)<<1|1) + 6) / 7 }

// maxTopic is the longest name of a topic.
const maxTopic = 249

// checkTopic says what is wrong with a topic, marked Permanent: Kafka has no such names.
func checkTopic(topic string) error {
	fault := func(why string) error {
		return relay.Permanent(fmt.Errorf("topic %.300q: %s", topic, why))
	}
	switch {
	case topic == "":
		return fault("the name is empty")
	case len(topic) > maxTopic:
		return fault(fmt.Sprintf("the name has %d bytes, Kafka allows %d", len(topic), maxTopic))
	case topic == "." || topic == "..":
		return fault("Kafka allows no such name")
	}
	for i := range len(topic) {
		switch c := topic[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fault("Kafka allows letters, digits, '.', '_' and '-' in a name, all ASCII")
		}
	}
	return nil
}
