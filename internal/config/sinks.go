package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/commitrelay/outbox/internal/nearest"
)

var (
	builtTypes = []string{TypeNATS, TypeRabbit, TypeKafka, TypeStdout}
	laterTypes = []string{"redis", "http"}
	allTypes   = slices.Concat(builtTypes, laterTypes)

	name = regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
)

const nameRule = "1 to 63 of a-z, 0-9, _ and -"

// schemes are the URLs of each type of sink.
var schemes = map[string][]string{
	TypeNATS:   {"nats", "tls", "ws", "wss"},
	TypeRabbit: {"amqp", "amqps"},
	TypeKafka:  {"kafka", "kafka+ssl"},
}

func (r *reader) sinks(n *yaml.Node, cfg *Config) {
	all := r.section("sinks", "sinks", n)
	if all.node == nil {
		return
	}
	for i := 0; i+1 < len(all.node.Content); i += 2 {
		k := all.node.Content[i]
		v, ok := all.nodes[k.Value]
		if !ok || v != all.node.Content[i+1] {
			continue // a duplicate, reported
		}
		if !name.MatchString(k.Value) {
			r.faultf(r.place("sinks", "", k), "the sink's name %q: want %s", showKey(k.Value), nameRule)
			continue
		}
		s := r.section("sinks."+k.Value, "sinks.*", v)
		s.quiet = !r.delivery
		if s.node == nil {
			if deref(v) == nil || deref(v).ShortTag() == "!!null" {
				r.faultf(r.place("sinks."+k.Value, "", k), "the sink is empty: it needs at least a type, one of %s", strings.Join(builtTypes, ", "))
			}
			cfg.Sinks[k.Value] = Sink{Name: k.Value} // known to subscriptions
			continue
		}
		sink := Sink{Name: k.Value, At: r.place("", "", k).at}
		r.sink(s, &sink)
		cfg.Sinks[k.Value] = sink
	}
}

func (r *reader) sink(s *section, sink *Sink) {
	v, ok := s.required("type", &sink.Type)
	if !ok {
		return
	}
	if slices.Contains(laterTypes, sink.Type) {
		v.key = ""
		r.faultf(v, "type %s: not in this version (this version has %s)", sink.Type, strings.Join(builtTypes, ", "))
		return // its other keys are those of a later version
	}
	if !slices.Contains(builtTypes, sink.Type) {
		msg := "want one of " + strings.Join(builtTypes, ", ")
		if n := nearest.Name(sink.Type, allTypes); n != "" {
			msg = fmt.Sprintf("did you mean %q?", n)
		}
		r.faultf(v, "%s is no type of sink: %s", v.show(), msg)
		return
	}
	switch sink.Type {
	case TypeNATS:
		s.broker(sink)
		s.secret("token", &sink.Token)
		s.secretPath("creds_file", &sink.CredsFile)
		s.secretPath("nkey_seed_file", &sink.NKeySeedFile)
		s.text("stream", &sink.Stream)
		s.text("domain", &sink.Domain)
		s.text("inbox_prefix", &sink.InboxPrefix)
	case TypeRabbit:
		s.broker(sink)
		s.text("exchange", &sink.Exchange)
		s.yes("exchange_in_topic", &sink.ExchangeInTopic)
		s.text("content_type", &sink.ContentType)
		s.size("max_message", &sink.MaxMessageBytes, 1, 1<<30)
	case TypeKafka:
		s.broker(sink)
		s.choice("sasl_mechanism", &sink.SASLMechanism, "plain", "scram-sha-256", "scram-sha-512")
		s.choice("compression", &sink.Compression, "none", "gzip", "snappy", "lz4", "zstd")
		s.size("max_message", &sink.MaxMessageBytes, 1<<10, 1<<30)
		s.yes("allow_auto_topic_creation", &sink.AllowAutoTopicCreation)
	}
	s.done()
}

// broker reads what all brokers have.
func (s *section) broker(sink *Sink) {
	s.sinkURL(sink)
	s.text("user", &sink.User)
	s.secret("password", &sink.Password)
	s.duration("connect_timeout", &sink.ConnectTimeout, time.Millisecond)
	s.duration("ack_timeout", &sink.AckTimeout, time.Millisecond)
	s.tls(&sink.TLS)
}

// secretPath reads the path of a file that the sink reads again at each connection. A file that is
// missing or empty shows now.
func (s *section) secretPath(key string, dst *string) {
	if v, ok := s.filePath(key, dst); ok {
		var content Secret
		s.readSecret(v, *dst, &content)
	}
}

func (s *section) sinkURL(sink *Sink) {
	var url string
	v, ok := s.required("url", &url)
	if !ok {
		return
	}
	sink.URL = URL(url)
	s.checkSinkURL(v, sink.Type)
}

// checkSinkURL checks a URL, or a list of them separated by commas.
func (r *reader) checkSinkURL(v value, typ string) {
	for i, u := range strings.Split(v.text, ",") {
		u = strings.TrimSpace(u)
		head, _, ok := strings.Cut(u, "://")
		if !ok && i > 0 && hostOnly.MatchString(u) {
			continue
		}
		if !ok || !slices.Contains(schemes[typ], head) {
			r.faultf(v, "a URL for %s begins with %s://", typ, strings.Join(schemes[typ], ":// or "))
			return
		}
		if msg := checkURL(u); msg != "" {
			r.faultf(v, "%s", msg)
			return
		}
	}
}

// typeOfURL is the type of sink that a URL's scheme stands for; "" is none.
func typeOfURL(url string) string {
	scheme, _, _ := strings.Cut(url, ":")
	switch scheme {
	case "http", "https":
		return "http"
	case "redis", "rediss":
		return "redis"
	case "stdout":
		return scheme
	}
	for typ, known := range schemes {
		if slices.Contains(known, scheme) {
			return typ
		}
	}
	return ""
}
