package relay

import (
	"strings"
	"testing"

	"github.com/commitrelay/outbox"
)

func TestTopicRender(t *testing.T) {
	event := &outbox.Event{
		ID:            outbox.ID{0x01, 0x92, 15: 0xff},
		AggregateType: "order", AggregateID: "4711", Type: "OrderPaid",
		Headers: map[string]string{"tenant": "acme", "empty": "", "a:b c": "odd"},
	}
	tests := map[string]string{
		"{event_type}":                          "OrderPaid",
		"{aggregate_type}.{event_type}":         "order.OrderPaid",
		"{aggregate_id}":                        "4711",
		"{id}":                                  "01920000-0000-0000-0000-0000000000ff",
		"fixed":                                 "fixed",
		"events.{header:tenant}.{event_type}.x": "events.acme.OrderPaid.x",
		"{header:a:b c}":                        "odd",
		"x{header:empty}":                       "x",
		"{{{event_type}}}":                      "{OrderPaid}",
		"{{event_type}}":                        "{event_type}",
		"}}{{":                                  "}{",
		"größe.{event_type}":                    "größe.OrderPaid",
	}
	for template, want := range tests {
		parsed, err := parseTopic(template)
		if err != nil {
			t.Errorf("parseTopic(%q): %v", template, err)
			continue
		}
		if got, err := parsed.render(event); err != nil || got != want {
			t.Errorf("render(%q) = %q, %v, want %q", template, got, err, want)
		}
	}
}

func TestTopicRenderRefuses(t *testing.T) {
	event := &outbox.Event{AggregateID: "", Type: "T", Headers: map[string]string{"empty": ""}}
	tests := map[string]string{
		"{header:tenant}":                `"tenant"`,
		"x.{header:Tenant}.{event_type}": `"Tenant"`,
		"{header:empty}":                 "topic is empty",
		"{aggregate_id}{header:empty}":   "topic is empty",
	}
	for template, want := range tests {
		parsed, err := parseTopic(template)
		if err != nil {
			t.Errorf("parseTopic(%q): %v", template, err)
			continue
		}
		if got, err := parsed.render(event); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("render(%q) = %q, %v, want an error with %s", template, got, err, want)
		}
	}
}

func TestParseTopicRefuses(t *testing.T) {
	tests := map[string]string{
		"":                          "empty",
		"{":                         "a { stands alone",
		"a}":                        "a } stands alone",
		"{event_type":               "a { stands alone",
		"{event_{type}":             "a { stands alone",
		"{{event_type}":             "a } stands alone",
		"{}":                        "the fields are",
		"{header:}":                 "names no header",
		"{event_typ}":               "did you mean {event_type}?",
		"{EventType}":               "did you mean {event_type}?",
		"{type}":                    "did you mean {event_type}?",
		"{aggregate-type}":          "did you mean {aggregate_type}?",
		"{aggregateid}":             "did you mean {aggregate_id}?",
		"{header_tenant}":           "did you mean {header:tenant}?",
		"{event_id}":                "did you mean {id}?",
		"{payload}":                 "the fields are",
		"ok.{aggregate_type}.{foo}": "unknown field {foo}",
	}
	for template, want := range tests {
		if _, err := parseTopic(template); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parseTopic(%q) = %v, want an error with %q", template, err, want)
		}
	}
}

func BenchmarkTopicRender(b *testing.B) {
	parsed, err := parseTopic("{aggregate_type}.{event_type}")
	if err != nil {
		b.Fatal(err)
	}
	event := &outbox.Event{AggregateType: "order", Type: "OrderPaid"}
	for b.Loop() {
		if _, err := parsed.render(event); err != nil {
			b.Fatal(err)
		}
	}
}
