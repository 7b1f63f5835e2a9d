package kafkasink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/commitrelay/outbox/relay"
)

// publication is one call of Publish. It goes in rounds: what may be sent is sent, and answered;
// then what had to wait for that. Nearly always one round is all.
//
// A partition keeps its order, and when it refuses a record it takes none behind it in the same
// round. So records of one key and topic may be under way together. Another topic is another
// partition: there the key waits until the round is over.
type publication struct {
	sink    *Sink
	batch   []relay.Message
	records records
	round   int

	key  []int32 // by message, into keys; both are made when they are needed
	keys []keyState

	state []state
	errs  []error // by message: the answer of the round, or the outcome of what is settled
	open  int     // messages that are not settled
	bad   bool    // a message failed

	alike  bool             // all messages have one topic
	topics []string         // of all messages, those that Kafka could have
	faults map[string]error // of the other topics, and those that do not exist in this round
	gone   map[string]int   // by topic: the round that found it missing though it had been there
}

// state is what becomes of a message.
type state uint8

const (
	waiting state = iota
	alone         // waits to be sent by itself
	settled
)

// keyState is what a key's messages must heed.
type keyState struct {
	blocked bool  // one has failed: no later one is sent
	round   int   // in which one was sent last
	last    int32 // that one
	stopped int   // the round in which no more are to be sent
}

var errHeldBack = errors.New("not sent: an earlier message of its key was not published")

type aggregate struct{ kind, id string }

func newPublication(s *Sink, batch []relay.Message) *publication {
	p := &publication{
		sink: s, batch: batch, records: encode(batch), open: len(batch),
		state: make([]state, len(batch)), errs: make([]error, len(batch)),
	}
	topics := map[string]bool{}
	for i := range batch {
		topic := batch[i].Topic
		if i > 0 && topic == batch[i-1].Topic || topics[topic] {
			continue
		}
		topics[topic] = true
		if checkTopic(topic) == nil {
			p.topics = append(p.topics, topic)
		}
	}
	p.alike = len(topics) == 1
	return p
}

// keyOf is the state of a message's key.
func (p *publication) keyOf(i int) *keyState {
	if p.key == nil {
		p.key = make([]int32, len(p.batch))
		keys := make(map[aggregate]int32, len(p.batch))
		for i := range p.batch {
			a := aggregate{p.batch[i].Event.AggregateType, p.batch[i].Event.AggregateID}
			k, ok := keys[a]
			if !ok {
				k = int32(len(keys))
				keys[a] = k
			}
			p.key[i] = k
		}
		p.keys = make([]keyState, len(keys))
	}
	return &p.keys[p.key[i]]
}

// run goes on until all is settled, or returns why it cannot go on.
func (p *publication) run(ctx context.Context) error {
	for p.open > 0 {
		if err := p.together(ctx); err != nil {
			return err
		}
		if err := p.oneByOne(ctx); err != nil {
			return err
		}
	}
	return nil
}

// together sends all that need not wait.
func (p *publication) together(ctx context.Context) error {
	c, err := p.sink.acquire(ctx, batching)
	if err != nil {
		return err
	}
	defer p.sink.release(c)
	if p.faults, err = p.sink.lookUp(ctx, c, p.topics); err != nil {
		return err
	}
	p.round++
	f := newFlight(p, c)
	plain := p.plain(c)
	for i, s := range p.state {
		if plain || s == waiting && p.mayGo(c, i) {
			f.send(i)
		}
	}
	err = f.wait(ctx)
	large := map[string]bool{} // topics that have refused a batch for its size: whether a smaller one may do
	for _, i := range f.sent {
		p.take(ctx, c, int(i), err, large)
	}
	return err
}

// plain tells whether nothing keeps any message of the batch, as is nearly always so.
func (p *publication) plain(c *client) bool {
	return p.round == 1 && p.alike && len(p.topics) == 1 && len(p.faults) == 0 &&
		slices.Max(p.records.sizes) <= p.sink.largestTogether(c, p.topics[0])
}

// mayGo tells whether a message may be sent now. It settles those that cannot be sent at all.
func (p *publication) mayGo(c *client, i int) bool {
	k := p.keyOf(i)
	switch {
	case k.blocked:
		p.settle(i, errHeldBack)
		return false
	case k.stopped == p.round:
		return false
	}
	topic := p.batch[i].Topic
	fault := p.fault(i)
	large := p.records.sizes[i] > p.sink.largestTogether(c, topic)
	if k.round == p.round { // those before it are under way
		if fault != nil || large || topic != p.batch[k.last].Topic {
			k.stopped = p.round
			return false
		}
	} else {
		switch {
		case fault != nil:
			p.settle(i, fault)
			return false
		case large:
			p.state[i] = alone
			k.stopped = p.round
			return false
		}
	}
	k.round, k.last = p.round, int32(i)
	return true
}

// fault is what is known to be wrong with a message, marked.
func (p *publication) fault(i int) error {
	if size := p.records.sizes[i]; size > p.sink.cfg.MaxMessageBytes {
		return relay.Permanent(fmt.Errorf("record of %d bytes, key and headers included, is larger than the sink's max message size of %d", size, p.sink.cfg.MaxMessageBytes))
	}
	topic := p.batch[i].Topic
	if len(p.faults) > 0 {
		if err, ok := p.faults[topic]; ok {
			return err
		}
	}
	return checkTopic(topic)
}

// take makes something of a round's answer to a message. cause is why the round was cut short.
func (p *publication) take(ctx context.Context, c *client, i int, cause error, large map[string]bool) {
	err, topic := p.errs[i], p.batch[i].Topic
	switch answerOf(err) {
	case taken:
		p.settle(i, nil)
	case takenBack: // for the next round
	case tooLarge:
		// The batch is. This record may be small: it goes in a smaller batch, or alone.
		smaller, known := large[topic]
		if !known {
			smaller = p.sink.learnLimit(ctx, c, topic)
			large[topic] = smaller
		}
		if !smaller {
			p.state[i] = alone
		}
	case faulty:
		p.state[i] = alone // this record may be, or another one of its batch
	case topicMissing:
		// It was there when the client began. The client would go on to believe in that one.
		c.spent = true
		if p.gone == nil {
			p.gone = map[string]int{}
		}
		if first := p.gone[topic]; first > 0 && first < p.round {
			p.settle(i, p.sink.topicFault(topic, err))
			return
		}
		p.gone[topic] = p.round // look again
	case topicRefused:
		c.spent = true // the next one asks again
		p.settle(i, p.sink.topicFault(topic, err))
	default:
		c.spent = c.spent || !passes(err)
		p.settle(i, unconfirmed(topic, err, cause))
	}
}

// oneByOne sends what is to go alone, each record in a batch of its own: brokers answer for
// batches, and say of none of their records that it is the one to blame.
func (p *publication) oneByOne(ctx context.Context) error {
	for i, s := range p.state {
		if s != alone {
			continue
		}
		if p.keyOf(i).blocked {
			p.settle(i, errHeldBack)
			continue
		}
		if err := p.sendAlone(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// sendAlone settles one message. Its error ends the publication.
func (p *publication) sendAlone(ctx context.Context, i int) error {
	c, err := p.sink.acquire(ctx, single)
	if err != nil {
		return err
	}
	defer p.sink.release(c)
	f := newFlight(p, c)
	f.send(i)
	err = f.wait(ctx)
	p.settle(i, p.verdict(ctx, c, i, err))
	return err
}

func (p *publication) settle(i int, err error) {
	p.state[i] = settled
	p.errs[i] = err
	p.open--
	if err != nil {
		p.bad = true
		p.keyOf(i).blocked = true
	}
}

// result is what Publish returns. Messages that are not settled get cause, unmarked.
func (p *publication) result(cause error) error {
	if p.open > 0 {
		cause = fmt.Errorf("not sent: %w", cause)
		for i, s := range p.state {
			if s != settled {
				p.settle(i, cause)
			}
		}
	}
	if !p.bad {
		return nil
	}
	return &relay.BatchError{Errs: p.errs}
}
