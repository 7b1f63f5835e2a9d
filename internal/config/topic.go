package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/commitrelay/outbox/internal/nearest"
)

var topicFields = []string{"aggregate_type", "aggregate_id", "event_type", "id"}

// checkTopic says what is wrong with a topic template; "" is nothing. The relay reads it again:
// this is for faults with a line number, and before anything runs.
func checkTopic(t string) string {
	if t == "" {
		return "the topic is empty"
	}
	for rest := t; ; {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			return ""
		}
		brace := rest[i : i+1]
		rest = rest[i+1:]
		if after, doubled := strings.CutPrefix(rest, brace); doubled {
			rest = after
			continue
		}
		field, after, closed := strings.Cut(rest, "}")
		if brace == "}" || !closed || strings.Contains(field, "{") {
			return "a " + brace + " stands alone: fields are written {event_type}, a brace itself {{ or }}"
		}
		if msg := checkTopicField(field); msg != "" {
			return msg
		}
		rest = after
	}
}

func checkTopicField(field string) string {
	if name, ok := strings.CutPrefix(field, "header:"); ok {
		if name == "" {
			return "{header:} names no header: write {header:NAME}"
		}
		return ""
	}
	if slices.Contains(topicFields, field) {
		return ""
	}
	msg := fmt.Sprintf("unknown field {%s}", field)
	if n := nearest.Name(field, topicFields); n != "" {
		return msg + fmt.Sprintf(", did you mean {%s}?", n)
	}
	return msg + ": the fields are {aggregate_type}, {aggregate_id}, {event_type}, {id} and {header:NAME}"
}
