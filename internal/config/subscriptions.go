package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/commitrelay/outbox/internal/nearest"
)

func newSubscription() Subscription {
	return Subscription{
		Lanes:      16,
		Start:      "first",
		OnDead:     "continue",
		Attempts:   10,
		Backoff:    time.Second,
		MaxBackoff: 5 * time.Minute,
	}
}

// defaultTopic is a topic per event type, but for brokers whose topics keep an order each: there the
// events of one aggregate share a topic.
func defaultTopic(typ string) string {
	if typ == TypeKafka {
		return "{aggregate_type}"
	}
	return "{event_type}"
}

func (r *reader) subscriptions(n *yaml.Node, cfg *Config) {
	n = deref(n)
	if n == nil || n.ShortTag() == "!!null" {
		return
	}
	if n.Kind != yaml.SequenceNode {
		r.faultf(r.place("subscriptions", "", n), "want a list of subscriptions (each begins with \"- \"), got %s", kindName(n))
		return
	}
	lines := map[string]int{}
	for i, item := range n.Content {
		s := r.section(fmt.Sprintf("subscriptions[%d]", i), "subscriptions[]", item)
		s.quiet = !r.delivery
		if s.node == nil {
			if d := deref(item); d == nil || d.ShortTag() == "!!null" {
				r.faultf(r.place(s.path, "", item), "the subscription is empty: it needs a name and a sink")
			}
			continue
		}
		sub := newSubscription()
		if v, ok := s.required("name", &sub.Name); ok {
			switch first, dup := lines[sub.Name]; {
			case !name.MatchString(sub.Name):
				r.faultf(v, "%s: want %s", v.show(), nameRule)
			case dup:
				r.faultf(v, "%s: duplicate name of a subscription, first on line %d", v.show(), first)
			default:
				lines[sub.Name] = v.line
				if !v.hidden {
					s.path = "subscriptions." + sub.Name
				}
			}
		}
		r.subscription(s, &sub, cfg.Sinks)
		cfg.Subscriptions = append(cfg.Subscriptions, sub)
	}
}

func (r *reader) subscription(s *section, sub *Subscription, sinks map[string]Sink) {
	if v, ok := s.required("sink", &sub.Sink); ok {
		if _, exists := sinks[sub.Sink]; !exists {
			names := slices.Sorted(maps.Keys(sinks))
			msg := "the sinks here are " + strings.Join(names, ", ")
			if len(names) == 0 {
				msg = "there are none: write it under sinks"
			} else if n := nearest.Name(sub.Sink, names); n != "" && !v.hidden {
				msg = fmt.Sprintf("did you mean %q?", n)
			}
			r.faultf(v, "%s is no sink of this configuration: %s", v.show(), msg)
		}
	}
	sub.Topic = defaultTopic(sinks[sub.Sink].Type)
	if v, ok := s.text("topic", &sub.Topic); ok && !v.bad {
		r.topic(v)
	}
	if v, ok := s.number("lanes", &sub.Lanes, 1, 1024); ok && sub.Lanes&(sub.Lanes-1) != 0 {
		r.faultf(v, "%d: want a power of two", sub.Lanes)
	}
	f := r.section(s.path+".filter", "filter", s.child("filter"))
	f.quiet = s.quiet
	sub.AggregateTypes = f.patterns("aggregate_type")
	sub.EventTypes = f.patterns("event_type")
	f.done()
	s.choice("on_dead", &sub.OnDead, "continue", "block")
	s.choice("start", &sub.Start, "first", "now")
	retry := r.section(s.path+".retry", "retry", s.child("retry"))
	retry.quiet = s.quiet
	retry.number("attempts", &sub.Attempts, 1, 1_000_000)
	retry.duration("backoff", &sub.Backoff, time.Millisecond)
	retry.duration("max_backoff", &sub.MaxBackoff, time.Millisecond)
	if sub.MaxBackoff < sub.Backoff {
		if retry.nodes["max_backoff"] != nil {
			r.faultf(retry.here(), "max_backoff %v is less than backoff %v", sub.MaxBackoff, sub.Backoff)
		}
		sub.MaxBackoff = sub.Backoff
	}
	retry.done()
	if n := s.child("batch"); n != nil {
		r.faultf(r.place(s.path, "batch", n), "not in this version (this version has one batch size for all subscriptions: write batch at the top level)")
	}
	s.done()
}

func (r *reader) topic(v value) {
	if msg := checkTopic(v.text); msg != "" {
		if v.hidden {
			msg = "not a topic template"
		}
		r.faultf(v, "%s", msg)
	}
}

// patterns reads the names that a filter wants: exact ones, or the beginning of one and '*'.
func (s *section) patterns(key string) []string {
	var ps []string
	for _, v := range s.list(key) {
		switch p := v.text; {
		case p == "":
			s.faultf(v, "an empty name")
		case strings.Contains(strings.TrimSuffix(p, "*"), "*"):
			s.faultf(v, "%s: a * stands only at the end", v.show())
		default:
			ps = append(ps, p)
		}
	}
	return ps
}
