package demo

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestResultErr(t *testing.T) {
	for _, test := range []struct {
		result Result
		want   string
	}{
		{Result{Committed: 5, Delivered: 5, Distinct: 5}, ""},
		{Result{Duplicates: 9, Suppressed: 4, UsersMailedTwice: 9}, ""},
		{Result{Lost: 1}, "1 lost, 0 invented, 0 out of order"},
		{Result{Invented: 2}, "0 lost, 2 invented, 0 out of order"},
		{Result{OrderViolations: 3}, "0 lost, 0 invented, 3 out of order"},
	} {
		got := ""
		if err := test.result.Err(); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%+v: got %q, want %q", test.result, got, test.want)
		}
	}
}

// The names are a contract: scripts read them.
func TestJSONFields(t *testing.T) {
	var out bytes.Buffer
	if err := (Result{P50MS: 1.23456}).WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	d := json.NewDecoder(&out)
	if err := d.Decode(&fields); err != nil {
		t.Fatal(err)
	}
	if d.More() {
		t.Error("more than one object")
	}
	for name := range strings.FieldsSeq("committed delivered distinct lost invented duplicates order_violations events_per_second p50_ms p99_ms relays") {
		if _, ok := fields[name].(float64); !ok {
			t.Errorf("%s: got %v, want a number", name, fields[name])
		}
	}
	if got := fields["p50_ms"]; got != 1.235 {
		t.Errorf("p50_ms: got %v, want 1.235", got)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	r := Result{Mode: modeNaive, Relays: 3, Committed: 1234567, Delivered: 15, RolledBack: 7, WelcomeMails: 12, UsersMailedTwice: 4, P50MS: 0.423, P99MS: 1512.3, EventsPerSecond: 499.6, LoadSeconds: 10}
	if err := r.WriteTable(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"committed               1,234,567  events in 10.0 s; 7 more rolled back\n",
		"pollers                         3\n",
		"welcome mails                  12  4 users got more than one\n",
		"events/s                      500  from",
		"p50 / p99 ms         0.42 / 1,512  from",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}
