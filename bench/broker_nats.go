package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/commitrelay/outbox/internal/wire"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/natssink"
)

// natsStream is a stream on disk with the default window for copies.
type natsStream struct {
	url, name string
	conn      *nats.Conn
	js        jetstream.JetStream
	stream    jetstream.Stream
}

func openNATS(ctx context.Context, url, name string) (destination, error) {
	return newStream(ctx, url, name)
}

func newStream(ctx context.Context, url, name string) (*natsStream, error) {
	conn, err := nats.Connect(url, nats.Name(name))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s := &natsStream{url: url, name: name, conn: conn}
	if s.js, err = jetstream.New(conn); err == nil {
		s.stream, err = s.js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: jetstream.FileStorage})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("create stream %s: %w", name, err)
	}
	return s, nil
}

func (s *natsStream) Topic() string { return s.name + ".OrderPaid" }

func (s *natsStream) Sink() (closingSink, error) {
	return natssink.New(natssink.Config{URL: s.url})
}

func (s *natsStream) Config() string { return "type: nats" }

func (s *natsStream) Count(ctx context.Context) (int, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.State.Msgs), nil
}

func (s *natsStream) Blast(ctx context.Context, messages []relay.Message) error {
	js, err := jetstream.New(s.conn)
	if err != nil {
		return err
	}
	acks := make([]jetstream.PubAckFuture, 0, len(messages))
	for i := range messages {
		ack, err := js.PublishMsgAsync(natsMessage(&messages[i]), waitForRoom)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		acks = append(acks, ack)
	}
	return confirmed(ctx, js, acks)
}

// waitForRoom lets a publisher wait while there are as many unconfirmed messages as the library allows.
var waitForRoom = jetstream.WithStallWait(10 * time.Second)

// confirmed waits until the stream has answered, and is its first refusal.
func confirmed(ctx context.Context, js jetstream.JetStream, acks []jetstream.PubAckFuture) error {
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, ack := range acks {
		select {
		case err := <-ack.Err():
			return fmt.Errorf("publish: %w", err)
		default:
		}
	}
	return nil
}

// natsMessage has the headers that the sink gives it, for those who publish without the sink.
func natsMessage(m *relay.Message) *nats.Msg {
	msg := &nats.Msg{Subject: m.Topic, Data: m.Event.Payload, Header: nats.Header{}}
	for _, h := range wire.Own(m) {
		msg.Header[h.Name] = []string{h.Value}
	}
	msg.Header[jetstream.MsgIDHeader] = []string{m.Event.ID.String()}
	return msg
}

func (s *natsStream) Close(ctx context.Context) error {
	defer s.conn.Close()
	return s.js.DeleteStream(ctx, s.name)
}
