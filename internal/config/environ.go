package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/commitrelay/outbox/internal/nearest"
)

// A Setting is a key that can be given without a file.
type Setting struct {
	Key   string // in the file, "section.key"; sink and topic stand for a whole subscription
	Flag  string // without dashes
	Env   string
	Usage string
}

// Settings are all keys that flags and the environment know. Flags win over the environment,
// the environment over the file.
func Settings() []Setting {
	return []Setting{
		{"database.url", "database", "COMMITRELAY_DATABASE_URL", "`URL` of the database"},
		{"database.direct_url", "direct-database", "COMMITRELAY_DIRECT_DATABASE_URL", "`URL` of the database around a pooler, for migrations"},
		{"database.table", "table", "COMMITRELAY_TABLE", "the events table, as `schema.table` (default public.outbox_events)"},
		{"database.schema", "schema", "COMMITRELAY_SCHEMA", "the `schema` of commitrelay's own tables (default commitrelay)"},
		{"sink", "sink", "COMMITRELAY_SINK", "deliver everything to this `URL`: nats://, tls://, amqp://, amqps://, kafka://, kafka+ssl:// or stdout:"},
		{"topic", "topic", "COMMITRELAY_TOPIC", "with --sink: the `template` of the topic (default {event_type}; for Kafka {aggregate_type})"},
		{"http", "http", "COMMITRELAY_HTTP", "`address` for /livez and /readyz; a port alone listens on 127.0.0.1"},
		{"lease", "lease", "COMMITRELAY_LEASE", "`duration` after which another relay takes over from a silent one (default 10s)"},
		{"shutdown_timeout", "shutdown-timeout", "COMMITRELAY_SHUTDOWN_TIMEOUT", "`duration` to finish in at SIGTERM (default 10s)"},
		{"log.level", "log-level", "COMMITRELAY_LOG_LEVEL", "debug, info, warn or error (default info)"},
		{"log.format", "log-format", "COMMITRELAY_LOG_FORMAT", "text or json (default text)"},
	}
}

// FileVariable names the configuration file where --config does not.
const FileVariable = "COMMITRELAY_CONFIG"

const (
	prefix     = "COMMITRELAY_"
	testPrefix = "COMMITRELAY_TEST_"
)

// kubernetes sets such variables in every pod beside a Service whose name begins with commitrelay.
var kubernetes = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// environment splits "NAME=value" pairs.
func environment(pairs []string) map[string]string {
	env := make(map[string]string, len(pairs))
	for _, p := range pairs {
		if k, v, ok := strings.Cut(p, "="); ok {
			env[k] = v
		}
	}
	return env
}

// overrides are the values of flags and, where no flag is given, of the environment.
func overrides(flags, env map[string]string) map[string]value {
	set := map[string]value{}
	for _, s := range Settings() {
		section, key, nested := strings.Cut(s.Key, ".")
		if !nested {
			section, key = "", s.Key
		}
		v := value{path: section, key: key, tag: "!!str", hidden: true}
		if text, ok := flags[s.Flag]; ok {
			v.at, v.text = "--"+s.Flag, text
			v.hidden = s.Key == "database.url" || s.Key == "database.direct_url" || s.Key == "sink"
		} else if text, ok := env[s.Env]; ok && text != "" {
			v.at, v.text = s.Env, text
		} else {
			continue
		}
		set[s.Key] = v
	}
	return set
}

// unknownVariables reports COMMITRELAY_ variables that mean nothing here: a misspelt one would
// be ignored otherwise.
func (r *reader) unknownVariables() {
	known := []string{strings.TrimPrefix(FileVariable, prefix)}
	for _, s := range Settings() {
		known = append(known, strings.TrimPrefix(s.Env, prefix))
	}
	var names []string
	for n := range r.env {
		short, ours := strings.CutPrefix(n, prefix)
		if ours && !strings.HasPrefix(n, testPrefix) && !r.named[n] && !slices.Contains(known, short) && !kubernetes.MatchString(n) {
			names = append(names, short)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		msg := "unknown environment variable"
		if near := nearest.Name(n, known); near != "" {
			msg += fmt.Sprintf(", did you mean %s?", prefix+near)
		} else {
			msg += ": known are " + prefix + strings.Join(known, ", "+prefix)
		}
		r.faultf(value{at: prefix + n}, "%s", msg)
	}
}
