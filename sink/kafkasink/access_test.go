package kafkasink

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestUnreachableBrokers(t *testing.T) {
	t.Parallel()
	silent := silence(t)
	plain := addressOf(brokerURL(t))
	tls := strings.TrimPrefix(variable(t, "COMMITRELAY_TEST_KAFKA_TLS"), "kafka+ssl://")
	tls = tls[strings.LastIndex(tls, "@")+1:]
	tests := map[string]struct{ url, want string }{
		"nobody listens":      {"kafka://127.0.0.1:1", "127.0.0.1:1: connect: connection refused"},
		"no such host":        {"kafka://no-such-host.invalid", "no-such-host.invalid:9092"},
		"IPv6":                {"kafka://[::1]:1", "[::1]:1"},
		"a silent server":     {"kafka://" + silent, "no answer within 300ms"},
		"a silent TLS server": {"kafka+ssl://" + silent, silent},
		"TLS on a plain port": {"kafka+ssl://" + plain, "TLS"},
		"no TLS on its port":  {"kafka://" + tls, "TLS"},
		"two brokers":         {"kafka://127.0.0.1:1,127.0.0.1:2", "connection refused"},
		"no login":            {strings.Split(variable(t, "COMMITRELAY_TEST_KAFKA_SASL"), "app:")[0] + strings.Split(variable(t, "COMMITRELAY_TEST_KAFKA_SASL"), "@")[1], "SASL"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := Config{URL: test.url, ConnectTimeout: 300 * time.Millisecond, AckTimeout: time.Second}
			if name != "no login" {
				cfg.User, cfg.Password = "user", "s3cret"
			}
			if strings.HasPrefix(name, "no ") { // the broker takes its time
				cfg.ConnectTimeout = 5 * time.Second
			}
			s := open(t, cfg)
			errs := publishAll(t, s, []relay.Message{message("x")}, "unknown")
			sinktest.ExpectText(t, errs[0], "kafka: connect to "+strings.Split(test.url, ",")[0], test.want)
			if strings.Contains(errs[0].Error(), "s3cret") {
				t.Errorf("the error shows the password: %v", errs[0])
			}
		})
	}
}

// The first address is right, and the one that the broker names for itself is not.
func TestAnAdvertisedAddressThatIsWrong(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	s := open(t, Config{URL: "kafka://first:1", AckTimeout: time.Second, ConnectTimeout: time.Second})
	s.connectTCP = func() func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "first:1" {
				return (&net.Dialer{}).DialContext(ctx, network, b.addr)
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("lookup " + address + ": no such host")}
		}
	}
	errs := publishAll(t, s, []relay.Message{message(topic)}, "unknown")
	sinktest.ExpectText(t, errs[0], "a broker cannot be reached", "lookup "+b.addr)
}

// A dial may end by the deadline a moment before the context says that it is over.
func TestADialThatTimesOut(t *testing.T) {
	t.Parallel()
	s := open(t, Config{URL: "kafka://far:1", AckTimeout: time.Second, ConnectTimeout: time.Second})
	s.connectTCP = func() func(context.Context, string, string) (net.Conn, error) {
		return func(_ context.Context, network, _ string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
		}
	}
	errs := publishAll(t, s, []relay.Message{message("x")}, "unknown")
	sinktest.ExpectText(t, errs[0], "kafka: connect to kafka://far:1: no answer within 1s", "a broker cannot be reached: dial tcp: i/o timeout")
}

func TestLogin(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	topic := b.topic("", 1)
	batch := []relay.Message{message(topic)}
	for i, password := range []string{"S3cr^et$Pw", "p@ss/w:rd", "100%zz"} {
		user := "us@er-" + b.name + strconv.Itoa(len(password))
		mechanism, scram := "scram-sha-256", kadm.ScramSha256
		if i%2 == 1 {
			mechanism, scram = "scram-sha-512", kadm.ScramSha512
		}
		results, err := b.admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{
			{User: user, Mechanism: scram, Iterations: 4096, Password: password},
		})
		if err == nil {
			err = results.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		url := variable(t, "COMMITRELAY_TEST_KAFKA_SASL")
		addr := url[strings.LastIndex(url, "@")+1:]
		encoded := strings.NewReplacer("%", "%25", "^", "%5E", "@", "%40", "/", "%2F", ":", "%3A").Replace(password)
		right := open(t, Config{URL: "kafka://" + addr, User: user, Password: password, SASLMechanism: mechanism})
		testwait.UntilNil(t, "the new user can log in", func() error { return right.Publish(t.Context(), batch) })
		inURL := "kafka://" + strings.Replace(user, "@", "%40", 1) + ":" + encoded
		publishAll(t, open(t, Config{URL: inURL + "@" + addr, SASLMechanism: mechanism}), batch, "published")
		for _, s := range []*Sink{
			open(t, Config{URL: "kafka://" + addr, User: user, Password: password + "x", SASLMechanism: mechanism}),
			open(t, Config{URL: inURL + "x@" + addr, SASLMechanism: mechanism}),
		} {
			errs := publishAll(t, s, batch, "unknown")
			sinktest.ExpectText(t, errs[0], addr, "user or password is wrong")
			if strings.Contains(errs[0].Error(), password) || strings.Contains(errs[0].Error(), encoded) {
				t.Errorf("the error shows the password: %v", errs[0])
			}
		}
		if _, err := New(Config{URL: "kafka://u:" + password + "@" + addr}); err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	plain := variable(t, "COMMITRELAY_TEST_KAFKA_SASL")
	publishAll(t, open(t, Config{URL: plain}), batch, "published")
	publishAll(t, open(t, Config{URL: plain, SASLMechanism: "scram-sha-512"}), batch, "published")
	errs := publishAll(t, open(t, Config{URL: plain, Password: "wrong", User: "app"}), batch, "unknown")
	sinktest.ExpectText(t, errs[0], "user or password is wrong")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	batch := []relay.Message{message(b.topic("", 1))}
	url, ca := variable(t, "COMMITRELAY_TEST_KAFKA_TLS"), variable(t, "COMMITRELAY_TEST_KAFKA_CA")
	publishAll(t, open(t, Config{URL: url, CAFile: ca}), batch, "published")
	publishAll(t, open(t, Config{URL: url, CAFile: ca, SASLMechanism: "scram-sha-256"}), batch, "published")
	errs := publishAll(t, open(t, Config{URL: url}), batch, "unknown")
	sinktest.ExpectText(t, errs[0], "certificate")
}

// A topic that the user may see and not write to, and one that it may not even see.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	b := newBroker(t, brokerURL(t))
	open2, readOnly, hidden := b.topic("open", 2), b.topic("readonly", 1), b.topic("hidden", 1)
	deny := func(topic string, op kadm.ACLOperation) {
		acls := kadm.NewACLs().Deny("User:app").DenyHosts("*").Topics(topic).ResourcePatternType(kadm.ACLPatternLiteral).Operations(op)
		if _, err := b.admin.CreateACLs(t.Context(), acls); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if _, err := b.admin.DeleteACLs(ctx, acls); err != nil {
				t.Errorf("delete ACL: %v", err)
			}
		})
	}
	// ACLs for everyone else: with one that denies, a topic no longer is everyone's.
	everyone := kadm.NewACLs().Allow("User:*").AllowHosts("*").Topics(readOnly, hidden).ResourcePatternType(kadm.ACLPatternLiteral).Operations(kmsg.ACLOperationAll)
	if _, err := b.admin.CreateACLs(t.Context(), everyone); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = b.admin.DeleteACLs(context.Background(), everyone) })
	deny(readOnly, kmsg.ACLOperationWrite)
	deny(hidden, kmsg.ACLOperationDescribe)
	deny(hidden, kmsg.ACLOperationWrite)
	s := open(t, Config{URL: variable(t, "COMMITRELAY_TEST_KAFKA_SASL")})
	batch := []relay.Message{message(open2), message(readOnly), message(hidden), message(open2)}
	batch = append(batch, keyed(batch[1].Event.AggregateID, message(open2))...)
	testwait.Until(t, "the ACLs hold", func() bool {
		var e *relay.BatchError
		return errors.As(s.Publish(t.Context(), batch), &e) && e.Errs[1] != nil && e.Errs[2] != nil
	})
	errs := publishAll(t, s, batch, "published", "unavailable", "unavailable", "published", "unknown")
	sinktest.ExpectText(t, errs[1], readOnly, "TOPIC_AUTHORIZATION_FAILED")
	sinktest.ExpectText(t, errs[2], hidden, "TOPIC_AUTHORIZATION_FAILED")
}
