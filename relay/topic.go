package relay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/nearest"
)

// topicTemplate is a parsed Subscription.Topic: literals and fields in turn.
type topicTemplate struct {
	parts []topicPart
}

type topicPart struct {
	text  string     // the literal, or the name of a header
	field topicField // literalText: text stands as it is
}

type topicField int

const (
	literalText topicField = iota
	aggregateTypeField
	aggregateIDField
	eventTypeField
	idField
	headerField
)

var topicFields = map[string]topicField{
	"aggregate_type": aggregateTypeField,
	"aggregate_id":   aggregateIDField,
	"event_type":     eventTypeField,
	"id":             idField,
}

const topicFieldList = "{aggregate_type}, {aggregate_id}, {event_type}, {id} and {header:NAME}"

// parseTopic reads a template: text with fields in braces, as "{aggregate_type}.{event_type}".
// A brace itself is written twice: {{ or }}.
func parseTopic(s string) (topicTemplate, error) {
	if s == "" {
		return topicTemplate{}, errors.New("topic template is empty: leave it out for {event_type}, or name a topic")
	}
	var t topicTemplate
	var literal strings.Builder
	for rest := s; rest != ""; {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			literal.WriteString(rest)
			break
		}
		literal.WriteString(rest[:i])
		brace := rest[i : i+1]
		rest = rest[i+1:]
		if strings.HasPrefix(rest, brace) {
			literal.WriteString(brace)
			rest = rest[1:]
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if brace == "}" || !closed || strings.Contains(name, "{") {
			return topicTemplate{}, fmt.Errorf("topic template %q: a %s stands alone: fields are written {event_type}, a brace itself {{ or }}", s, brace)
		}
		part, err := parseTopicField(name)
		if err != nil {
			return topicTemplate{}, fmt.Errorf("topic template %q: %w", s, err)
		}
		t.addLiteral(&literal)
		t.parts = append(t.parts, part)
		rest = after
	}
	t.addLiteral(&literal)
	return t, nil
}

func (t *topicTemplate) addLiteral(b *strings.Builder) {
	if b.Len() > 0 {
		t.parts = append(t.parts, topicPart{text: b.String()})
		b.Reset()
	}
}

func parseTopicField(name string) (topicPart, error) {
	if field, ok := topicFields[name]; ok {
		return topicPart{field: field}, nil
	}
	if header, ok := strings.CutPrefix(name, "header:"); ok {
		if header == "" {
			return topicPart{}, errors.New("{header:} names no header: write {header:NAME}")
		}
		return topicPart{field: headerField, text: header}, nil
	}
	if near := nearestField(name); near != "" {
		return topicPart{}, fmt.Errorf("unknown field {%s}: did you mean {%s}?", name, near)
	}
	return topicPart{}, fmt.Errorf("unknown field {%s}: the fields are %s", name, topicFieldList)
}

// render fills the template in. It fails for an event that lacks a header of the template, and
// when the result is empty: no repetition helps such an event.
func (t topicTemplate) render(e *outbox.Event) (string, error) {
	if len(t.parts) == 1 { // the usual template is one field: no copy
		s, err := t.parts[0].value(e)
		if err == nil && s == "" {
			err = errEmptyTopic
		}
		return s, err
	}
	var b strings.Builder
	for _, p := range t.parts {
		s, err := p.value(e)
		if err != nil {
			return "", err
		}
		b.WriteString(s)
	}
	if b.Len() == 0 {
		return "", errEmptyTopic
	}
	return b.String(), nil
}

var errEmptyTopic = errors.New("topic is empty: the fields that the topic template names are empty in this event")

func (p topicPart) value(e *outbox.Event) (string, error) {
	switch p.field {
	case aggregateTypeField:
		return e.AggregateType, nil
	case aggregateIDField:
		return e.AggregateID, nil
	case eventTypeField:
		return e.Type, nil
	case idField:
		return e.ID.String(), nil
	case headerField:
		v, ok := e.Headers[p.text]
		if !ok {
			return "", fmt.Errorf("topic needs the header %q, which this event does not have", p.text)
		}
		return v, nil
	}
	return p.text, nil
}

// nearestField is the field that someone who wrote name most likely meant, or "".
func nearestField(name string) string {
	plain := strings.NewReplacer("-", "_", " ", "_", ".", "_").Replace(strings.ToLower(name))
	if header, ok := strings.CutPrefix(plain, "header_"); ok && header != "" {
		return "header:" + name[len("header_"):]
	}
	switch plain { // no distance finds these
	case "type":
		return "event_type"
	case "event_id":
		return "id"
	}
	best, bestDistance := "", 4
	for field := range topicFields {
		d := nearest.Distance(strings.ReplaceAll(plain, "_", ""), strings.ReplaceAll(field, "_", ""))
		if d < bestDistance || (d == bestDistance && field < best) {
			best, bestDistance = field, d
		}
	}
	if bestDistance >= len(plain) {
		return ""
	}
	return best
}
