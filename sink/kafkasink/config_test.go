package kafkasink

import (
	"strings"
	"testing"

	"github.com/commitrelay/outbox/relay"
	"github.com/commitrelay/outbox/sink/sinktest"
	"github.com/google/go-cmp/cmp"
)

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := New(Config{
		URL: "kafka://host/topic", Password: "s3cret", SASLMechanism: "gssapi", CertFile: "absent.pem",
		Compression: "rar", MaxMessageBytes: 10, AckTimeout: -1,
	})
	sinktest.ExpectText(t, err, "nothing may follow the host", "password without a user", `"gssapi"`, "certificate", `"rar"`, "max message bytes 10", "negative")
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error shows a secret: %v", err)
	}
	_, err = New(Config{})
	sinktest.ExpectText(t, err, "url", "kafka://HOST:9092")
	_, err = New(Config{URL: "kafka://host", SASLMechanism: "scram-sha-512"})
	sinktest.ExpectText(t, err, "scram-sha-512 without a user")
	_, err = New(Config{URL: "kafka://host", CAFile: "config_test.go"})
	sinktest.ExpectText(t, err, "no certificate")
}

func TestURL(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]cluster{
		"kafka://h":                        {brokers: []string{"h:9092"}},
		"kafka://u:p%40ss@h:1,h2:2":        {brokers: []string{"h2:2", "h:1"}, user: "u", password: "p@ss"},
		"kafka+ssl://h:1, kafka+ssl://h:1": {brokers: []string{"h:1"}, tls: true},
		"kafka://[::1]:1,h":                {brokers: []string{"[::1]:1", "h:9092"}},
	} {
		got, err := parseURL(raw)
		if d := cmp.Diff(want, got, cmp.AllowUnexported(cluster{})); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", raw, err, d)
		}
	}
	for _, raw := range []string{
		"kafka://", "h:9092", "kafka://h,", "http://h", "kafka://h/t", "kafka://h?acks=1", "kafka://a,kafka+ssl://b",
		"kafka://u:s3cret@a,kafka://v:s3cret@b", "kafka://u:s3^cret%zz@h", "kafka://u:s3cret/x@h", "kafka://u:s3cret,x@h",
	} {
		if _, err := parseURL(raw); err == nil {
			t.Errorf("%s: no error", raw)
		} else if strings.Contains(err.Error(), "s3") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
}

func TestTopicNames(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"a", "Orders.v1_x-2", strings.Repeat("x", 249), "..."} {
		if err := checkTopic(topic); err != nil {
			t.Errorf("%q: %v", topic, err)
		}
	}
	for _, topic := range []string{"", ".", "..", "a b", "a/b", "größe", "a\x00", strings.Repeat("x", 250)} {
		if err := checkTopic(topic); relay.OutcomeOf(err) != "permanent" {
			t.Errorf("%q: %v, want a permanent error", topic, err)
		}
	}
}
