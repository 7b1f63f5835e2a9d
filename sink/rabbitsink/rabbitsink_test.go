package rabbitsink

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	amqp "github.com/rabbitmq/amqp091-go"
)

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	_, err := New(Config{
		URL: "nats://u:s3cret@host, amqp://, amqp://h/?heartbeat=s3cret, amqp://h", Password: "s3cret", CAFile: "absent.pem",
		Exchange: strings.Repeat("x", 256), ExchangeInTopic: true, MaxMessageBytes: -1, ContentType: strings.Repeat("x", 256),
	})
	sinktest.ExpectText(t, err, "amqp:// or amqps://", "no host", "parameters", "password without a user", "absent.pem", "exclude each other", "256 bytes", "negative", "content type")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error shows a secret: %v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New without a URL succeeds")
	}
	for _, password := range []string{"S3cr^et$Pw", "p@ss/w:rd", "100%zz"} {
		if _, err := New(Config{URL: "amqp://user:" + password + "@127.0.0.1:1/"}); err == nil || strings.Contains(err.Error(), password) {
			t.Errorf("New with the password %s in the URL = %v", password, err)
		}
	}
}

func TestUnreachableBrokers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b := newBroker(t)
	broker := b.url.Host
	tests := map[string]struct {
		url   string
		parts []string
	}{
		"nobody listens":      {"amqp://127.0.0.1:1", []string{"amqp://127.0.0.1:1/", "connection refused"}},
		"no such host":        {"amqp://no-such-host.invalid", []string{"no-such-host.invalid:5672"}},
		"IPv6":                {"amqp://[::1]:1", []string{"[::1]:1"}},
		"a silent server":     {"amqp://" + silent.Addr().String(), []string{silent.Addr().String(), "does not speak AMQP"}},
		"wrong vhost":         {b.at(broker) + "absent", []string{broker, `"absent"`}},
		"wrong password":      {"amqp://guest:s3cret@" + broker, []string{broker, "user or password is wrong"}},
		"TLS on a plain port": {"amqps://" + broker, []string{broker, "tls: "}},
		"two nodes":           {"amqp://127.0.0.1:1,amqp://127.0.0.1:2", []string{"127.0.0.1:1: connect", "127.0.0.1:2: connect"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{URL: test.url}) // RabbitMQ takes three seconds to say that a password is wrong
			errs := publishAll(t, s, []relay.Message{message("x")}, "unknown")
			sinktest.ExpectText(t, errs[0], append(test.parts, "rabbitmq: connect to")...)
			if strings.Contains(errs[0].Error(), "s3cret") {
				t.Errorf("the error shows the password: %v", errs[0])
			}
		})
	}
}

func TestPasswordsNeverShow(t *testing.T) {
	b := newBroker(t)
	for _, password := range []string{"S3cr^et$Pw", "p@ss/w:rd", "100%zz"} {
		encoded := url.QueryEscape(password)
		for _, cfg := range []Config{
			{URL: "amqp://" + b.url.Host, User: "guest", Password: password},
			{URL: "amqp://guest:" + encoded + "@" + b.url.Host},
			{URL: "amqp://guest:" + encoded + "@127.0.0.1:1"},
		} {
			t.Run("", func(t *testing.T) {
				t.Parallel() // the broker takes its time with each
				errs := publishAll(t, open(t, cfg), []relay.Message{message("x")}, "unknown")
				if strings.Contains(errs[0].Error(), password) || strings.Contains(errs[0].Error(), encoded) {
					t.Errorf("the error shows the password: %v", errs[0])
				}
			})
		}
	}
}

func TestTheSecondNodeIsTried(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	b.queue("q", exchange, "#", nil)
	s := open(t, Config{URL: "amqp://127.0.0.1:1," + b.url.String(), Exchange: exchange})
	publishAll(t, s, []relay.Message{message("a")}, "published")
}

func TestProperties(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	r := b.read(b.queue("q", exchange, "#", nil))
	s := open(t, Config{URL: b.url.String(), Exchange: exchange})
	batch := []relay.Message{message("a.b"), message("c"), message("d"), message("e")}
	batch[1].Event.Payload = nil
	batch[2].Event.Headers = map[string]string{"content-type": "text/plain"}
	batch[2].Event.Type = strings.Repeat("T", 300)
	batch[3].CreatedAt = time.Date(-4713, 11, 24, 0, 0, 0, 0, time.UTC)
	publishAll(t, s, batch, "published", "published", "published", "published")
	testwait.Until(t, "all arrive", func() bool { return len(r.deliveries()) == len(batch) })
	got := r.deliveries()
	d := got[0]
	if d.DeliveryMode != amqp.Persistent || d.MessageId != batch[0].Event.ID.String() || d.Type != "OrderPaid" ||
		d.RoutingKey != "a.b" || d.ContentType != "application/json" || !d.Timestamp.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("properties: %+v", d)
	}
	if d := got[1]; d.ContentType != "" || len(d.Body) != 0 {
		t.Errorf("without a payload: content type %q, body %q", d.ContentType, d.Body)
	}
	if d := got[2]; d.ContentType != "text/plain" || d.Type != "" || d.Headers["outbox-type"] != batch[2].Event.Type {
		t.Errorf("content type %q, type %q", d.ContentType, d.Type)
	}
	if d := got[3]; !d.Timestamp.IsZero() {
		t.Errorf("timestamp %v for a time that AMQP cannot write", d.Timestamp)
	}
}

func TestTheDefaultExchangeAndMaxMessageBytes(t *testing.T) {
	b := newBroker(t)
	queue := b.queue("q", b.exchange(""), "#", nil)
	s := open(t, Config{URL: b.url.String(), MaxMessageBytes: 100})
	batch := []relay.Message{message(queue), message(b.name + "absent"), message(queue)}
	batch[2].Event.Payload = make([]byte, 101)
	errs := publishAll(t, s, batch, "published", "unavailable", "permanent")
	sinktest.ExpectText(t, errs[1], "default exchange", b.name+"absent")
	sinktest.ExpectText(t, errs[2], "101", "100")
}

// The sink's own exchange is a matter of the whole sink: nothing is parked, and it goes on when
// the exchange is there.
func TestAMissingExchangeOfTheSink(t *testing.T) {
	b := newBroker(t)
	s := open(t, Config{URL: b.url.String(), Exchange: b.name + "late"})
	batch := []relay.Message{message("a"), message("b")}
	errs := publishAll(t, s, batch, "unknown", "unknown")
	sinktest.ExpectText(t, errs[0], b.name+"late", "404")
	b.queue("q", b.exchange("late"), "#", nil)
	publishAll(t, s, batch, "published", "published")

	if err := b.ch.ExchangeDelete(b.name+"late", false, false); err != nil {
		t.Fatal(err)
	}
	errs = publishAll(t, s, batch, "unknown", "unknown")
	sinktest.ExpectText(t, errs[0], b.name+"late", "404")
	b.exchange("late") // for the cleanup, too
	publishAll(t, s, batch, "unavailable", "unavailable")
}

// One of a hundred is larger than the broker allows; it has no part in the loss of the others.
func TestOneTooLargeAmongMany(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	r := b.read(b.queue("q", exchange, "#", nil))
	s := open(t, Config{URL: b.url.String(), Exchange: exchange})
	var batch []relay.Message
	var want []string
	for i := range 100 {
		m := message("a")
		word := "published"
		if i == 50 {
			m.Event.Payload, word = make([]byte, 2<<20), "permanent"
		}
		batch, want = append(batch, m), append(want, word)
	}
	errs := publishAll(t, s, batch, want...)
	sinktest.ExpectText(t, errs[50], "2097152", "larger than max", "1048576")
	distinct := map[string]bool{}
	testwait.Until(t, "99 messages arrive", func() bool {
		for _, d := range r.deliveries() {
			distinct[d.MessageId] = true
		}
		return len(distinct) == 99
	})
	if n := len(r.deliveries()); n > 99+maxInFlight {
		t.Errorf("%d arrivals of 99 messages", n)
	}
	publishAll(t, s, batch[50:51], "permanent") // known by now: without asking the broker
}

// 20 events, the third of them to an exchange that does not exist.
func TestAMissingExchangeLosesNoNeighbour(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	r := b.read(b.queue("q", exchange, "#", nil))
	s := open(t, Config{URL: b.url.String(), ExchangeInTopic: true})
	batch := make([]relay.Message, 20)
	for i := range batch {
		batch[i] = message(exchange + "/a")
	}
	publishAll(t, s, batch[:1], "published")
	// It is there when it is looked up, and gone when it is published to.
	doomed := b.name + "doomed"
	if err := b.ch.ExchangeDeclare(doomed, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	batch[2].Topic = doomed + "/a"
	publishAll(t, s, batch[2:3], "unavailable") // no queue yet, but looked up
	if err := b.ch.ExchangeDelete(doomed, false, false); err != nil {
		t.Fatal(err)
	}
	want := slices.Repeat([]string{"published"}, len(batch))
	want[2] = "unavailable"
	errs := publishAll(t, s, batch, want...)
	sinktest.ExpectText(t, errs[2], doomed, "404")
	distinct := map[string]bool{}
	testwait.Until(t, "19 messages arrive", func() bool {
		for _, d := range r.deliveries() {
			distinct[d.MessageId] = true
		}
		return len(distinct) == 19
	})
}

// A connection that is dead without saying so, as after a failover behind a moved address.
func TestADeadConnectionIsReplaced(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	b.queue("q", exchange, "#", nil)
	px := b.proxy()
	s := open(t, Config{URL: b.at(px.Addr()), Exchange: exchange, AckTimeout: 200 * time.Millisecond})
	batch := []relay.Message{message("a")}
	publishAll(t, s, batch, "published")
	px.PauseOpen(tcpproxy.Both)
	errs := publishAll(t, s, batch, "unknown")
	sinktest.ExpectText(t, errs[0], "no confirm for")
	testwait.UntilNil(t, "published on another connection", func() error { return s.Publish(t.Context(), batch) })
}

// A broker short of memory says that it is blocked, and reads no more.
func TestABlockedBroker(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	r := b.read(b.queue("q", exchange, "#", nil))
	inject := newInjector(t, b.url.Host)
	s := open(t, Config{URL: b.at(inject.addr), Exchange: exchange, AckTimeout: time.Hour})
	publishAll(t, s, []relay.Message{message("a")}, "published")

	inject.send(t, blockedFrame("low on memory"))
	testwait.Until(t, "the sink hears of it", func() bool { return s.conn.blockedCause() != nil })
	// It is told at once, and nothing is sent that would wait in the broker's buffers.
	errs := publishAll(t, s, []relay.Message{message("a"), message("b")}, "unknown", "unknown")
	sinktest.ExpectText(t, errs[0], "takes no messages", "low on memory")

	inject.send(t, unblockedFrame())
	testwait.Until(t, "the sink hears of it", func() bool { return s.conn.blockedCause() == nil })
	publishAll(t, s, []relay.Message{message("a")}, "published")
	testwait.Until(t, "two messages arrive", func() bool { return len(r.deliveries()) >= 2 })
	if n := len(r.deliveries()); n != 2 {
		t.Errorf("%d messages arrived, want 2", n)
	}

	inject.send(t, blockedFrame("low on disk"))
	testwait.Until(t, "the sink hears of it", func() bool { return s.conn.blockedCause() != nil })
	if err := s.Close(); err != nil { // does not wait for the broker
		t.Error(err)
	}
}

func TestCloseEndsPublish(t *testing.T) {
	b := newBroker(t)
	exchange := b.exchange("")
	r := b.read(b.queue("q", exchange, "#", nil))
	px := b.proxy()
	s := open(t, Config{URL: b.at(px.Addr()), Exchange: exchange, AckTimeout: time.Hour})
	publishAll(t, s, []relay.Message{message("a")}, "published")
	px.PauseOpen(tcpproxy.ToClient)
	done := make(chan error, 1)
	go func() { done <- s.Publish(context.Background(), []relay.Message{message("b")}) }()
	testwait.Until(t, "the message arrives", func() bool { return len(r.deliveries()) == 2 })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	sinktest.ExpectText(t, testwait.Recv(t, "Publish returns", done), "rabbitmq:")
	sinktest.ExpectText(t, s.Publish(t.Context(), []relay.Message{message("c")}), "closed")
}

func TestSizeLimit(t *testing.T) {
	for reason, want := range map[string]int{
		"PRECONDITION_FAILED - message size 2097152 is larger than configured max size 1048576": 1048576,
		"PRECONDITION_FAILED - message size 2097152 is larger than max size 512":                512,
		"PRECONDITION_FAILED - invalid expiration":                                              0,
	} {
		if got, ok := sizeLimit(&amqp.Error{Code: amqp.PreconditionFailed, Reason: reason}); got != want || ok != (want > 0) {
			t.Errorf("sizeLimit(%q) = %d, %v, want %d", reason, got, ok, want)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	// A *testing.T is what the helpers take; this one only measures.
	conn, err := amqp.Dial(benchURL(b))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	q, err := ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{URL: benchURL(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	batch := make([]relay.Message, 1000)
	n := 0
	for b.Loop() {
		for i := range batch {
			n++
			batch[i] = message(q.Name)
			batch[i].Event.AggregateID = fmt.Sprint(n % 10000)
			batch[i].Event.Payload = make([]byte, 200)
		}
		if err := s.Publish(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
