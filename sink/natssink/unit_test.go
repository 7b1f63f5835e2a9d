package natssink

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestSubjectFault(t *testing.T) {
	for _, subject := range []string{"a", "a.b.c", "OrderPaid", "größe.漢字", "a-b_c/d:e", "$x", strings.Repeat("a", maxSubject)} {
		if reason := subjectFault(subject); reason != "" {
			t.Errorf("subjectFault(%.50q) = %q, want none", subject, reason)
		}
	}
	tests := map[string]string{
		"":                                "empty",
		".a":                              "empty token",
		"a..b":                            "empty token",
		"a.":                              "ends with a dot",
		"a b":                             "space",
		"a\tb":                            "control",
		"a\nb":                            "control",
		"a\x7f":                           "control",
		"*":                               "wildcard",
		"a.>":                             "wildcard",
		"a*b":                             "wildcard",
		strings.Repeat("a", maxSubject+1): "bytes",
	}
	for subject, want := range tests {
		if reason := subjectFault(subject); !strings.Contains(reason, want) {
			t.Errorf("subjectFault(%.50q) = %q, want %q", subject, reason, want)
		}
	}
}

func TestHeaderFault(t *testing.T) {
	good := map[string]string{"traceparent": "00-1", "Tenant": "größe", "x": "", "a.b_c-d": "tab\tinside", "Nats-TTL": "1h"}
	for name, value := range good {
		if err := headerFault(name, value); err != nil {
			t.Errorf("headerFault(%q, %q) = %v", name, value, err)
		}
	}
	bad := map[string]string{"": "x", "a b": "x", "a:b": "x", "größe": "x", "a\n": "x", "a(": "x", "line": "a\nb", "cr": "a\r", "blank": " a", "tab": "a\t", "nats-rollup": "all", "Nats-Msg-Id": "x", "NATS-TTL": "1h"}
	for name, value := range bad {
		if err := headerFault(name, value); err == nil {
			t.Errorf("headerFault(%q, %q) = nil", name, value)
		}
	}
}

func TestReadAck(t *testing.T) {
	tests := map[string]struct {
		plain, published bool
	}{
		`{"stream":"S", "seq":12}`:                   {true, true},
		`{"stream":"S","seq":12}`:                    {true, true},
		`{"stream":"S", "domain":"d", "seq":12}`:     {false, true},
		`{"stream":"S", "seq":12,"domain":"d"}`:      {true, true},
		`{"stream":"S", "seq":12,"duplicate": true}`: {false, true}, // which is to be told
		`{"seq":12,"stream":"S"}`:                    {false, true},
		`{"stream":"S", "seq":0}`:                    {false, false},
		`{"stream":"S", "seq":012}`:                  {false, false},
		`{"stream":"S", "seq":1`:                     {false, false},
		`{"stream":"S", "seq":-1}`:                   {false, false},
		`{"stream":"", "seq":1}`:                     {false, false},
		`{"stream":"S"}`:                             {false, false},
		`{}`:                                         {false, false},
		``:                                           {false, false},
		`+ACK`:                                       {false, false},
		`{"error":{"code":503,"err_code":10077},"stream":"S"}`: {false, false},
		`{"stream":"S","seq":1,"error":{"code":503}}`:          {false, false},
	}
	for data, want := range tests {
		if got := isPlainAck([]byte(data)); got != want.plain {
			t.Errorf("isPlainAck(%s) = %v, want %v", data, got, want.plain)
		}
		ack, err := readAck(&nats.Msg{Data: []byte(data)})
		if got := err == nil && ack.Error == nil; got != want.published {
			t.Errorf("readAck(%s) = %+v, %v, want published %v", data, ack, err, want.published)
		}
		if got := err == nil && ack.Duplicate; got != strings.Contains(data, `"duplicate"`) {
			t.Errorf("readAck(%s) says duplicate: %v", data, got)
		}
	}
}
