package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Source is where a configuration comes from.
type Source struct {
	File    string            // path of the YAML file; empty: none
	Flags   map[string]string // values of the flags that were given, by Setting.Flag
	Environ []string          // as os.Environ

	// Delivery says that events are to be delivered: sinks and subscriptions are required, and
	// the variables and files that they name are read. Without it they are only checked, so
	// that a migration does not need a broker's secrets.
	Delivery bool

	// Offline says that the database is not used: its URL may be missing.
	Offline bool
}

const maxFile = 1 << 20

// Load reads and checks a configuration. The error joins all faults; each is one line that says
// where, and none shows a secret.
func Load(src Source) (Config, error) {
	r := &reader{
		file:     src.File,
		env:      environment(src.Environ),
		named:    map[string]bool{},
		delivery: src.Delivery,
		offline:  src.Offline,
		known:    map[string][]string{},
	}
	r.set = overrides(src.Flags, r.env)
	if r.file == "" {
		r.file = r.env[FileVariable]
	}
	cfg := defaults()
	root, ok := r.parse()
	if ok {
		r.top(r.section("", "", root), &cfg)
		r.hints()
	}
	r.unknownVariables()
	if len(r.faults) > 0 {
		return Config{}, join(r.faults)
	}
	return cfg, nil
}

// parse reads the file. Nil is an empty configuration.
func (r *reader) parse() (*yaml.Node, bool) {
	if r.file == "" {
		return nil, true
	}
	text, err := os.ReadFile(r.file)
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: more than %d bytes", r.file, maxFile)
	}
	if err != nil {
		r.faults = append(r.faults, fault{text: fmt.Sprintf("read the configuration: %v", err)})
		return nil, false
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err = dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, true
	}
	var more yaml.Node
	if err == nil {
		if err = dec.Decode(&more); err == nil {
			r.faultf(r.place("", "", &more), "a second document: the configuration is one")
			return nil, false
		}
	}
	if !errors.Is(err, io.EOF) {
		r.faults = append(r.faults, syntaxFaults(r.file, string(text), err)...)
		return nil, false
	}
	if len(doc.Content) == 0 {
		return nil, true
	}
	return doc.Content[0], true
}

func (r *reader) top(s *section, cfg *Config) {
	r.database(r.section("database", "database", s.child("database")), &cfg.Database)
	sinks, subs := s.child("sinks"), s.child("subscriptions")
	r.sinks(sinks, cfg)
	r.subscriptions(subs, cfg)
	none := subs == nil || subs.ShortTag() == "!!null" || (subs.Kind == yaml.SequenceNode && len(subs.Content) == 0)
	r.single(sinks != nil || subs != nil, none, cfg)
	s.address("http", &cfg.HTTP)
	s.duration("lease", &cfg.Lease, time.Second)
	s.duration("shutdown_timeout", &cfg.ShutdownTimeout, time.Millisecond)

	poll := r.section("poll", "poll", s.child("poll"))
	poll.duration("min", &cfg.PollMin, 100*time.Microsecond)
	poll.duration("max", &cfg.PollMax, 100*time.Microsecond)
	if cfg.PollMax < cfg.PollMin {
		r.faultf(poll.here(), "max %v is less than min %v", cfg.PollMax, cfg.PollMin)
	}
	poll.done()

	batch := r.section("batch", "batch", s.child("batch"))
	batch.number("events", &cfg.BatchEvents, 1, 100_000)
	batch.size("bytes", &cfg.BatchBytes, 1<<10, 32<<20)
	batch.done()

	log := r.section("log", "log", s.child("log"))
	level := "info"
	if _, ok := log.choice("level", &level, "debug", "info", "warn", "error"); ok {
		_ = cfg.Log.Level.UnmarshalText([]byte(level))
	}
	log.choice("format", &cfg.Log.Format, "text", "json")
	log.done()
	s.done()
}

// single makes the one subscription that --sink asks for.
func (r *reader) single(inFile, none bool, cfg *Config) {
	sinkURL, hasSink := r.set["sink"]
	topic, hasTopic := r.set["topic"]
	switch {
	case hasSink && inFile:
		r.faultf(value{at: sinkURL.at}, "the file has sinks and subscriptions of its own: use one or the other")
		return
	case !hasSink && hasTopic:
		r.faultf(value{at: topic.at}, "goes with --sink; in the file, each subscription has a topic")
	}
	if !hasSink && none && r.delivery {
		r.faultf(value{}, "nothing to deliver to: give --sink or COMMITRELAY_SINK, or write sinks and subscriptions into the file that --config names")
	}
	if !hasSink {
		return
	}
	sink := Sink{Name: "default", At: sinkURL.at, Type: typeOfURL(sinkURL.text)}
	sinkURL.path, sinkURL.key = "", ""
	switch sink.Type {
	case TypeStdout:
	case TypeNATS, TypeRabbit, TypeKafka:
		sink.URL = URL(sinkURL.text)
		r.checkSinkURL(sinkURL, sink.Type)
	case "":
		r.faultf(sinkURL, "not a sink's URL: want nats://, tls://, amqp://, amqps://, kafka://, kafka+ssl:// or stdout:")
	default:
		r.faultf(sinkURL, "type %s: not in this version (this version has %s)", sink.Type, strings.Join(builtTypes, ", "))
	}
	sub := newSubscription()
	sub.Name, sub.Sink, sub.Topic = "default", sink.Name, defaultTopic(sink.Type)
	if hasTopic {
		topic.path, topic.key = "", ""
		sub.Topic = topic.text
		r.topic(topic)
	}
	cfg.Sinks[sink.Name] = sink
	cfg.Subscriptions = []Subscription{sub}
}

// address reads where to listen. A port alone is one of this machine: what /readyz says is not
// for everyone unless someone says so.
func (s *section) address(key string, dst *string) {
	v, ok := s.value(key)
	if !ok || v.bad || v.text == "" {
		return
	}
	host, port, err := net.SplitHostPort(v.text)
	if err != nil {
		host, port = "", v.text
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		s.faultf(v, "%s: want host:port, or a port alone for 127.0.0.1", v.show())
		return
	}
	if host == "" {
		host = "127.0.0.1"
	}
	*dst = net.JoinHostPort(host, port)
}

// Logger writes as the configuration says.
func (l Log) Logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: l.Level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
