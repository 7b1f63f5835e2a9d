package natssink

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// publishAll expects outcomes, one word per message, and returns the errors.
func publishAll(t *testing.T, s *Sink, batch []relay.Message, want ...string) []error {
	t.Helper()
	return sinktest.Expect(t, batch, s.Publish(t.Context(), batch), want...)
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	_, err := New(Config{
		URL: "http://u:s3cret@host, nats://", User: "u", Token: "s3cret", CredsFile: "absent.creds", CertFile: "absent.pem",
		InboxPrefix: "a b", Stream: "a.b", AckTimeout: -1,
	})
	sinktest.ExpectText(t, err, "nats:// or tls://", "no host", "more than one way", "absent.creds", "certificate", "inbox prefix", `stream "a.b"`, "negative")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error shows a secret: %v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New without a URL succeeds")
	}
	seed := filepath.Join(t.TempDir(), "seed.nk")
	if err := os.WriteFile(seed, []byte("SUANOTASEED"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = New(Config{URL: "nats://h", NKeySeedFile: seed})
	sinktest.ExpectText(t, err, seed)
	if err != nil && strings.Contains(err.Error(), "SUANOTASEED") {
		t.Errorf("the error shows the seed: %v", err)
	}
}

func TestUnreachableServers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts by its backlog, says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	plain := embedded(t, nil)
	tests := map[string]struct{ url, want string }{
		"nobody listens":      {"nats://127.0.0.1:1", "127.0.0.1:1: connect: connection refused"},
		"no such host":        {"nats://no-such-host.invalid:4222", "no-such-host.invalid"},
		"IPv6":                {"nats://[::1]:1", "[::1]:1"},
		"a silent server":     {"nats://" + silent.Addr().String(), "timeout"},
		"TLS on a plain port": {"tls://" + plain.Addr().String(), "secure"},
		"two servers":         {"nats://127.0.0.1:1,nats://127.0.0.1:2", "127.0.0.1:2: connect"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{URL: test.url, User: "user", Password: "s3cret", ConnectTimeout: 300 * time.Millisecond})
			errs := publishAll(t, s, []relay.Message{message("x")}, "unknown")
			sinktest.ExpectText(t, errs[0], "nats: connect to", test.want, strings.Split(test.url, ",")[0])
			if strings.Contains(errs[0].Error(), "s3cret") {
				t.Errorf("the error shows the password: %v", errs[0])
			}
		})
	}
}

func TestWaysToGetIn(t *testing.T) {
	for _, password := range []string{"S3cr^et$Pw", "p@ss/w:rd", "100%zz"} {
		srv := embedded(t, func(o *server.Options) { o.Username, o.Password = "us@er", password })
		_, js := connect(t, srv.ClientURL(), nats.UserInfo("us@er", password))
		stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
		addr := srv.Addr().String()
		encoded := strings.NewReplacer("%", "%25", "^", "%5E", "@", "%40", "/", "%2F", ":", "%3A").Replace(password)
		publishAll(t, open(t, Config{URL: "nats://" + addr, User: "us@er", Password: password}), []relay.Message{message("s")}, "published")
		publishAll(t, open(t, Config{URL: "nats://us%40er:" + encoded + "@" + addr}), []relay.Message{message("s")}, "published")

		for _, s := range []*Sink{
			open(t, Config{URL: "nats://" + addr, User: "us@er", Password: password + "x"}),
			open(t, Config{URL: "nats://us%40er:" + encoded + "x@" + addr}),
		} {
			errs := publishAll(t, s, []relay.Message{message("s")}, "unknown")
			sinktest.ExpectText(t, errs[0], addr, "Authorization")
			if strings.Contains(errs[0].Error(), password) || strings.Contains(errs[0].Error(), encoded) {
				t.Errorf("the error shows the password: %v", errs[0])
			}
		}
		if _, err := New(Config{URL: "nats://us%40er:" + password + "@" + addr}); err != nil && strings.Contains(err.Error(), password) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	srv := embedded(t, func(o *server.Options) { o.Authorization = "t0ken" })
	_, js := connect(t, srv.ClientURL(), nats.Token("t0ken"))
	stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	publishAll(t, open(t, Config{URL: srv.ClientURL(), Token: "t0ken"}), []relay.Message{message("s")}, "published")
	publishAll(t, open(t, Config{URL: "nats://t0ken@" + srv.Addr().String()}), []relay.Message{message("s")}, "published")
}

func TestNKey(t *testing.T) {
	// A user's seed and public key, made for this test.
	seedFile := filepath.Join(t.TempDir(), "user.nk")
	seed, public := newUserKey(t)
	if err := os.WriteFile(seedFile, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	srv := embedded(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	opt, err := nats.NkeyOptionFromSeed(seedFile)
	if err != nil {
		t.Fatal(err)
	}
	_, js := connect(t, srv.ClientURL(), opt)
	stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	publishAll(t, open(t, Config{URL: srv.ClientURL(), NKeySeedFile: seedFile}), []relay.Message{message("s")}, "published")
}

func TestTLS(t *testing.T) {
	pki := newPKI(t)
	srv := embedded(t, func(o *server.Options) {
		o.TLS, o.TLSVerify = true, true
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pki.pair(t)}, ClientCAs: pki.pool, ClientAuth: tls.RequireAndVerifyClientCert}
		o.TLSTimeout = 5
	})
	addr := srv.Addr().String()
	_, js := connect(t, "nats://"+addr, nats.RootCAs(pki.caFile), nats.ClientCert(pki.certFile, pki.keyFile))
	stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	full := Config{URL: "nats://" + addr, CAFile: pki.caFile, CertFile: pki.certFile, KeyFile: pki.keyFile}
	publishAll(t, open(t, full), []relay.Message{message("s")}, "published")

	noCert := full
	noCert.CertFile, noCert.KeyFile = "", ""
	publishAll(t, open(t, noCert), []relay.Message{message("s")}, "unknown")
	noCA := full
	noCA.CAFile = ""
	errs := publishAll(t, open(t, noCA), []relay.Message{message("s")}, "unknown")
	sinktest.ExpectText(t, errs[0], "certificate")
}

func TestPermissions(t *testing.T) {
	perms := func(publish, subscribe []string) *server.Permissions {
		return &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe}}
	}
	srv := embedded(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "x"},
			{Username: "some", Password: "x", Permissions: perms([]string{"s.ok", "s.nowhere"}, []string{"_INBOX.>"})},
			{Username: "deaf", Password: "x", Permissions: perms([]string{">"}, []string{"other.>"})},
		}
	})
	_, js := connect(t, srv.ClientURL(), nats.UserInfo("admin", "x"))
	st := stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.ok", "s.secret"}})
	url := srv.ClientURL()

	// Neighbours arrive, on the same connection, and what follows in the key is held back.
	some := open(t, Config{URL: url, User: "some", Password: "x"})
	batch := []relay.Message{message("s.ok"), message("s.secret"), message("s.ok"), message("s.ok"), message("s.nowhere")}
	batch[3].Event.AggregateID = batch[1].Event.AggregateID
	errs := publishAll(t, some, batch, "published", "unavailable", "published", "unknown", "unavailable")
	sinktest.ExpectText(t, errs[1], `"s.secret"`, "Permissions Violation")
	sinktest.ExpectText(t, errs[4], `"s.nowhere"`) // although the account may not ask which stream has it
	publishAll(t, some, batch[4:], "unavailable")
	info, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 2 {
		t.Errorf("stream holds %d messages, want 2", info.State.Msgs)
	}

	deaf := open(t, Config{URL: url, User: "deaf", Password: "x", AckTimeout: 2 * time.Second})
	errs = publishAll(t, deaf, []relay.Message{message("s.ok")}, "unknown")
	sinktest.ExpectText(t, errs[0], "inbox prefix", "_INBOX.")
	deaf = open(t, Config{URL: url, User: "deaf", Password: "x", InboxPrefix: "other"})
	publishAll(t, deaf, []relay.Message{message("s.ok")}, "published")
}

func TestNoJetStreamIsNoFaultOfTheSubject(t *testing.T) {
	srv := embedded(t, func(o *server.Options) { o.JetStream = false })
	s := open(t, Config{URL: srv.ClientURL()})
	errs := publishAll(t, s, []relay.Message{message("a"), message("b")}, "unknown", "unknown")
	sinktest.ExpectText(t, errs[0], "JetStream does not answer")
}

func TestStreamOption(t *testing.T) {
	srv := embedded(t, nil)
	_, js := connect(t, srv.ClientURL())
	stream(t, js, jetstream.StreamConfig{Name: "MINE", Subjects: []string{"mine"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	stream(t, js, jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}})
	s := open(t, Config{URL: srv.ClientURL(), Stream: "MINE"})
	errs := publishAll(t, s, []relay.Message{message("mine"), message("other")}, "published", "unavailable")
	sinktest.ExpectText(t, errs[1], `"OTHER"`, `"MINE"`)
	errs = publishAll(t, s, []relay.Message{message("mine")}, "unknown") // full: the whole sink is
	sinktest.ExpectText(t, errs[0], "maximum messages exceeded")
}

func TestARepetitionIsPublishedAndStoredOnce(t *testing.T) {
	srv := embedded(t, nil)
	_, js := connect(t, srv.ClientURL())
	st := stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	var told []relay.Message
	s := open(t, Config{URL: srv.ClientURL(), Repeated: func(m relay.Message) { told = append(told, m) }})
	batch := []relay.Message{message("s")}
	publishAll(t, s, batch, "published")
	if len(told) != 0 {
		t.Errorf("told of %d repetitions before there was one", len(told))
	}
	publishAll(t, s, batch, "published")
	if len(told) != 1 || told[0].Event.ID != batch[0].Event.ID {
		t.Errorf("told of these repetitions: %+v, want one", told)
	}
	msg, err := st.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := msg.Header.Get(nats.MsgIdHdr); got != batch[0].Event.ID.String() {
		t.Errorf("Nats-Msg-Id = %q", got)
	}
	info, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 1 {
		t.Errorf("stream holds %d messages, want 1", info.State.Msgs)
	}
}

// A connection that is dead without saying so, as after a failover behind a moved address.
func TestADeadConnectionIsReplaced(t *testing.T) {
	srv := embedded(t, nil)
	_, js := connect(t, srv.ClientURL())
	stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	px := proxy(t, srv.Addr().String())
	s := open(t, Config{URL: "nats://" + px.Addr(), AckTimeout: 200 * time.Millisecond})
	publishAll(t, s, []relay.Message{message("s")}, "published")
	px.PauseOpen(tcpproxy.Both)
	errs := publishAll(t, s, []relay.Message{message("s")}, "unknown")
	sinktest.ExpectText(t, errs[0], "no acknowledgement", "no answer to a ping")
	publishAll(t, s, []relay.Message{message("s")}, "published")
}

// Nothing that was written before a disconnect may be sent after it.
func TestNothingIsSentBehindOurBack(t *testing.T) {
	srv := embedded(t, nil)
	_, js := connect(t, srv.ClientURL())
	st := stream(t, js, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	px := proxy(t, srv.Addr().String())
	s := open(t, Config{URL: "nats://" + px.Addr(), AckTimeout: 200 * time.Millisecond})
	publishAll(t, s, []relay.Message{message("s")}, "published")
	px.Refuse()
	px.Cut()
	publishAll(t, s, []relay.Message{message("s")}, "unknown")
	if err := px.Accept(); err != nil {
		t.Fatal(err)
	}
	publishAll(t, s, []relay.Message{message("s")}, "published")
	info, err := st.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 2 {
		t.Errorf("stream holds %d messages, want 2: the lost one must not have come later", info.State.Msgs)
	}
}

func TestCloseEndsPublish(t *testing.T) {
	srv := embedded(t, nil)
	nc, _ := connect(t, srv.ClientURL())
	received := make(chan *nats.Msg, 1)
	if _, err := nc.ChanSubscribe("silent", received); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{URL: srv.ClientURL(), AckTimeout: time.Hour})
	done := make(chan error, 1)
	go func() { done <- s.Publish(context.Background(), []relay.Message{message("silent")}) }()
	testwait.Recv(t, "the message", received)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	sinktest.ExpectText(t, testwait.Recv(t, "Publish returns", done), "closed")
	sinktest.ExpectText(t, s.Publish(t.Context(), []relay.Message{message("silent")}), "closed")
}
