package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/commitrelay/outbox/internal/ident"
)

// load reads a configuration from text; its file is called relay.yaml.
func load(t testing.TB, text string, env ...string) (Config, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("relay.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{File: "relay.yaml", Environ: env, Delivery: true})
}

const whole = `
database:
  url: "${DATABASE_URL}"
  direct_url: ""
  table: Shop.OutboxEvents
  schema: Relay
  layout: log
  retention: 72h
sinks:
  bus:
    type: nats
    url: "nats://n1:4222,nats://n2:4222"
    creds_file: nats.creds
    ack_timeout: 5s
    stream: EVENTS
  rabbit: {type: rabbitmq, url: "amqps://mq/vh", user: relay, password_file: pw, exchange: events}
  log: {type: kafka, url: "kafka+ssl://k1:9092,k2", user: relay, password_file: pw, sasl_mechanism: scram-sha-512, compression: lz4, max_message: 2MiB, allow_auto_topic_creation: true}
  out: {type: stdout}
subscriptions:
  - {name: kafka, sink: log}
  - {name: all, sink: bus, topic: "{aggregate_type}.{event_type}", lanes: 4}
  - name: welcome
    sink: rabbit
    filter: {event_type: [UserCreated, "User*"], aggregate_type: user}
    on_dead: block
    start: now
    retry: {attempts: 3, backoff: 1m30s, max_backoff: 1h}
http: 8080
lease: 15s
shutdown_timeout: 20s
poll: {min: 1ms, max: 50ms}
batch: {events: 500, bytes: 1MiB}
log: {level: debug, format: json}
`

func TestWholeFormat(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "relay.yaml", whole)
	write(t, "nats.creds", "creds")
	write(t, "pw", "s3cret\n")
	got, err := Load(Source{File: "relay.yaml", Environ: []string{"DATABASE_URL=postgres://u:p@db/shop"}, Delivery: true})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Database: Database{URL: "postgres://u:p@db/shop", Table: ident.Table{Schema: "Shop", Name: "OutboxEvents"}, Schema: "Relay", Retention: 72 * time.Hour},
		Sinks: map[string]Sink{
			"bus":    {Name: "bus", At: "relay.yaml:10", Type: "nats", URL: "nats://n1:4222,nats://n2:4222", CredsFile: "nats.creds", AckTimeout: 5 * time.Second, Stream: "EVENTS"},
			"rabbit": {Name: "rabbit", At: "relay.yaml:16", Type: "rabbitmq", URL: "amqps://mq/vh", User: "relay", Password: "s3cret", Exchange: "events"},
			"log":    {Name: "log", At: "relay.yaml:17", Type: "kafka", URL: "kafka+ssl://k1:9092,k2", User: "relay", Password: "s3cret", SASLMechanism: "scram-sha-512", Compression: "lz4", MaxMessageBytes: 2 << 20, AllowAutoTopicCreation: true},
			"out":    {Name: "out", At: "relay.yaml:18", Type: "stdout"},
		},
		Subscriptions: []Subscription{
			{Name: "kafka", Sink: "log", Topic: "{aggregate_type}", Lanes: 16, Start: "first", OnDead: "continue", Attempts: 10, Backoff: time.Second, MaxBackoff: 5 * time.Minute},
			{Name: "all", Sink: "bus", Topic: "{aggregate_type}.{event_type}", Lanes: 4, Start: "first", OnDead: "continue", Attempts: 10, Backoff: time.Second, MaxBackoff: 5 * time.Minute},
			{Name: "welcome", Sink: "rabbit", Topic: "{event_type}", Lanes: 16, Start: "now", AggregateTypes: []string{"user"}, EventTypes: []string{"UserCreated", "User*"}, OnDead: "block", Attempts: 3, Backoff: 90 * time.Second, MaxBackoff: time.Hour},
		},
		HTTP:        "127.0.0.1:8080",
		Lease:       15 * time.Second,
		PollMin:     time.Millisecond,
		PollMax:     50 * time.Millisecond,
		BatchEvents: 500, BatchBytes: 1 << 20,
		ShutdownTimeout: 20 * time.Second,
		Log:             Log{Level: -4, Format: "json"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("configuration (-want +got):\n%s", d)
	}
}

// Nothing is kept for longer than it is needed unless that is asked for; 0 says so.
func TestRetention(t *testing.T) {
	for text, want := range map[string]string{
		"0":   "",
		"0s":  "",
		"36h": "",
		"-1h": `relay.yaml:1: database: retention: "-1h": a duration cannot be negative`,
		"36":  `relay.yaml:1: database: retention: "36": a duration needs a unit, as 500ms, 10s or 1m30s`,
		"3d":  `relay.yaml:1: database: retention: "3d": not a duration: write it as 500ms, 10s or 1m30s`,
	} {
		cfg, err := load(t, "database: {url: 'postgres://x/y', retention: "+text+"}\nsinks: {a: {type: stdout}}\nsubscriptions: [{name: a, sink: a}]\n")
		if want != "" {
			diffError(t, err, want)
			continue
		}
		if d, _ := time.ParseDuration(text); err != nil || cfg.Database.Retention != d {
			t.Errorf("%s: %v, %v", text, cfg.Database.Retention, err)
		}
	}
}

func write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What the format knows and this version does not build is refused by name, all of it at once.
func TestNotInThisVersion(t *testing.T) {
	_, err := load(t, `database: {url: "postgres://db/shop", layout: queue}
sinks:
  bus:   {type: nats, url: "nats://nats:4222"}
  mails: {type: http, url: "https://mail.example/hook", secret_file: /run/secrets/hook}
  hook:  {type: http, url: "https://hook.example"}
  cache: {type: redis}
subscriptions:
  - {name: all, sink: bus, topic: "{event_type}", lanes: 16}
  - {name: welcome, sink: mails, filter: {event_type: [UserCreated]}, on_dead: block, start: now}
`)
	want := `relay.yaml:1: database: layout: queue: not in this version (this version has the layout log)
relay.yaml:4: sinks.mails: type http: not in this version (this version has nats, rabbitmq, kafka, stdout)
relay.yaml:5: sinks.hook: type http: not in this version (this version has nats, rabbitmq, kafka, stdout)
relay.yaml:6: sinks.cache: type redis: not in this version (this version has nats, rabbitmq, kafka, stdout)`
	diffError(t, err, want)
}

func diffError(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want:\n%s", want)
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(err.Error(), "\n")); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := load(t, `databse: {url: "postgres://db/shop"}
database: {url: "postgres://db/shop", table: a.b.c}
sinks:
  bus: {type: nats, url: "nats://nats:4222", exchange: x, ack_timeout: 10}
  bus: {type: stdout}
  mq: {type: rabbitmq, url: "http://mq"}
  Up: {type: stdout}
  none:
  list: [1]
  tpye: {tpye: stdout}
  s: {type: stdot}
subscriptions:
  - {name: all, sink: buss, topic: "{event_typ}", lanes: 3}
  - {name: all, sink: bus, lanes: many, batchsize: 10}
  - {sink: bus, on_dead: blok, start: 7, retry: {attempts: 0, backoff: soon}, filter: {event_type: ["a*b"]}}
  - {name: b, sink: bus, table: x, batch: {events: 1}, topic: "a{b"}
  - just text
table: x
lease: 10ms
http: nonsense
batch: {bytes: 4, events: 1e9}
log: {level: loud}
unrelated: 1
`, "COMMITRELAY_SHEMA=x", "COMMITRELAY_QQQQQQQ=1", "COMMITRELAY_TEST_DATABASE=x", "COMMITRELAY_PORT_8080_TCP=tcp://1.2.3.4:80", "COMMITRELAY_WEB_SERVICE_HOST=1.2.3.4")
	want := `relay.yaml:1: unknown key "databse", did you mean "database"?
relay.yaml:2: database: table: table name "a.b.c": want schema.table, got 3 names
relay.yaml:4: sinks.bus: ack_timeout: "10": a duration needs a unit, as 500ms, 10s or 1m30s
relay.yaml:4: sinks.bus: unknown key "exchange": the keys here are type, url, user, password, password_file, connect_timeout, ack_timeout, tls, token, token_file, creds_file, nkey_seed_file, stream, domain, inbox_prefix
relay.yaml:5: sinks: bus: duplicate key, first on line 4
relay.yaml:6: sinks.mq: url: a URL for rabbitmq begins with amqp:// or amqps://
relay.yaml:7: sinks: the sink's name "Up": want 1 to 63 of a-z, 0-9, _ and -
relay.yaml:8: sinks.none: the sink is empty: it needs at least a type, one of nats, rabbitmq, kafka, stdout
relay.yaml:9: sinks.list: want a section of keys, got a list: check the indentation of the lines below it
relay.yaml:10: sinks.tpye: type is missing (is tpye meant?)
relay.yaml:11: sinks.s: type: "stdot" is no type of sink: did you mean "stdout"?
relay.yaml:13: subscriptions.all: sink: "buss" is no sink of this configuration: did you mean "bus"?
relay.yaml:13: subscriptions.all: topic: unknown field {event_typ}, did you mean {event_type}?
relay.yaml:13: subscriptions.all: lanes: 3: want a power of two
relay.yaml:14: subscriptions[1]: name: "all": duplicate name of a subscription, first on line 13
relay.yaml:14: subscriptions[1]: lanes: "many": want a whole number from 1 to 1024
relay.yaml:14: subscriptions[1]: unknown key "batchsize", did you mean "batch"?
relay.yaml:15: subscriptions[2]: name is missing
relay.yaml:15: subscriptions[2].filter: event_type: "a*b": a * stands only at the end
relay.yaml:15: subscriptions[2]: on_dead: "blok": did you mean "block"?
relay.yaml:15: subscriptions[2]: start: "7": want first or now
relay.yaml:15: subscriptions[2].retry: attempts: "0": want a whole number from 1 to 1000000
relay.yaml:15: subscriptions[2].retry: backoff: "soon": not a duration: write it as 500ms, 10s or 1m30s
relay.yaml:16: subscriptions.b: topic: a { stands alone: fields are written {event_type}, a brace itself {{ or }}
relay.yaml:16: subscriptions.b: batch: not in this version (this version has one batch size for all subscriptions: write batch at the top level)
relay.yaml:16: subscriptions.b: unknown key "table": it is a key of database, check the indentation
relay.yaml:17: subscriptions[4]: want a section of keys, got a single value: check the indentation of the lines below it
relay.yaml:18: unknown key "table": it is a key of database, check the indentation
relay.yaml:19: lease: "10ms": at least 1s
relay.yaml:20: http: "nonsense": want host:port, or a port alone for 127.0.0.1
relay.yaml:21: batch: events: "1e9": want a whole number from 1 to 100000
relay.yaml:21: batch: bytes: "4": a size needs a unit, as 65536B, 512KiB or 4MiB
relay.yaml:22: log: level: "loud": want debug or info or warn or error
relay.yaml:23: unknown key "unrelated": the keys here are database, sinks, subscriptions, http, lease, shutdown_timeout, poll, batch, log
COMMITRELAY_QQQQQQQ: unknown environment variable: known are COMMITRELAY_CONFIG, COMMITRELAY_DATABASE_URL, COMMITRELAY_DIRECT_DATABASE_URL, COMMITRELAY_TABLE, COMMITRELAY_SCHEMA, COMMITRELAY_SINK, COMMITRELAY_TOPIC, COMMITRELAY_HTTP, COMMITRELAY_LEASE, COMMITRELAY_SHUTDOWN_TIMEOUT, COMMITRELAY_LOG_LEVEL, COMMITRELAY_LOG_FORMAT
COMMITRELAY_SHEMA: unknown environment variable, did you mean COMMITRELAY_SCHEMA?`
	diffError(t, err, want)
}

func TestNotYAML(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"tabs": {
			"database:\n\turl: x\nlog:\n  level: info\n\tformat: json\n",
			"relay.yaml:2: url: a tab in the indentation: YAML allows only spaces there\nrelay.yaml:5: format: a tab in the indentation: YAML allows only spaces there",
		},
		"too deep":      {"lease: 10s\n  http: 8080\n", "relay.yaml:2: http: wrong indentation: 2 spaces, but lease above it has a value already"},
		"in between":    {"database:\n  url: x\n table: y\n", "relay.yaml:3: table: wrong indentation: 1 spaces fit no line above it"},
		"in a list":     {"subscriptions:\n  - name: a\n   sink: b\n", "relay.yaml:3: sink: wrong indentation: 3 spaces fit no line above it"},
		"anchor":        {"sinks: *hunter2\n", "relay.yaml:1: not valid YAML: a value that begins with * or & must stand in quotes (on this line or below it)"},
		"reserved":      {"sinks: @hunter2\n", "relay.yaml:1: not valid YAML: a value that begins with @, ` or % must stand in quotes (on this line or below it)"},
		"brackets":      {"sinks: {a: [1}\n", "relay.yaml:1: not valid YAML: did not find expected ',' or ']' (on this line or below it)"},
		"two documents": {"lease: 10s\n---\nlease: 12s\n", "relay.yaml:2: a second document: the configuration is one"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := load(t, tt.text)
			diffError(t, err, tt.want)
		})
	}
}

func TestTopic(t *testing.T) {
	for topic, ok := range map[string]bool{
		"": false, "a": true, "{id}": true, "{{x}}": true, "{header:x}": true, "{header:}": false, "{}": false,
		"{": false, "}": false, "{id}}": false, "{{{id}}}": true, "{a{id}": false, "a}b": false,
	} {
		if msg := checkTopic(topic); (msg == "") != ok {
			t.Errorf("topic %q: %q, want ok %v", topic, msg, ok)
		}
	}
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "1", "EMPTY": "", "ODD": "a: #${A}\n- x"}
	look := func(n string) (string, bool) { v, ok := env[n]; return v, ok }
	for in, want := range map[string]string{
		"":                 "",
		"plain":            "plain",
		"${A}${A}":         "11",
		"x${ODD}y":         "xa: #${A}\n- xy", // a value is not expanded again
		"${EMPTY}":         "",
		"${EMPTY:-d}":      "d",
		"${NONE:-}":        "",
		"${NONE:-a:-b}":    "a:-b",
		"$$":               "$",
		"$${A}":            "${A}",
		"S3cr^et$Pw":       "S3cr^et$Pw", // a dollar sign in a password is itself
		"$":                "$",
		"$$$${A}$":         "$${A}$",
		"${A:-unused $$ }": "1",
	} {
		got, _, problem := expand(in, look)
		if got != want || problem != "" {
			t.Errorf("expand(%q) = %q, %q; want %q", in, got, problem, want)
		}
	}
	for in, want := range map[string]string{
		"${NONE}": "the environment variable NONE is not set; set it, or write ${NONE:-default}",
		"${A":     "a ${ without its } (write $$ for a dollar sign)",
		"${a b}":  "what stands between ${ and } is not the name of an environment variable (write $$ for a dollar sign)",
		"${}":     "what stands between ${ and } is not the name of an environment variable (write $$ for a dollar sign)",
	} {
		if _, _, problem := expand(in, look); problem != want {
			t.Errorf("expand(%q): %q, want %q", in, problem, want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "relay.yaml", "database: {url: 'postgres://file/d'}\nlease: 11s\nhttp: 1\nshutdown_timeout: 5s\n")
	cfg, err := Load(Source{
		Environ: []string{"COMMITRELAY_CONFIG=relay.yaml", "COMMITRELAY_LEASE=12s", "COMMITRELAY_HTTP=2", "DATABASE_URL=postgres://other/d"},
		Flags:   map[string]string{"http": "0.0.0.0:3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := []any{cfg.Database.URL.Reveal(), cfg.Lease, cfg.HTTP, cfg.ShutdownTimeout, cfg.PollMax}
	want := []any{"postgres://file/d", 12 * time.Second, "0.0.0.0:3", 5 * time.Second, 100 * time.Millisecond}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	cfg, err = Load(Source{Environ: []string{"COMMITRELAY_CONFIG=relay.yaml", "COMMITRELAY_DATABASE_URL=postgres://env/d"}})
	if err != nil || cfg.Database.URL != "postgres://env/d" {
		t.Errorf("database.url = %v, %v", cfg.Database.URL, err)
	}
	cfg, err = Load(Source{Environ: []string{"DATABASE_URL=postgres://other/d"}})
	if err != nil || cfg.Database.URL != "postgres://other/d" {
		t.Errorf("database.url without a file = %v, %v", cfg.Database.URL, err)
	}
}

func TestWithoutAFile(t *testing.T) {
	env := []string{"DATABASE_URL=postgres://db/d"}
	cfg, err := Load(Source{Environ: env, Flags: map[string]string{"sink": "nats://localhost:4222", "topic": "x.{event_type}"}, Delivery: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Sinks["default"]; got.Type != "nats" || got.URL != "nats://localhost:4222" {
		t.Errorf("sink = %+v", got)
	}
	if got := cfg.Subscriptions[0]; len(cfg.Subscriptions) != 1 || got.Name != "default" || got.Sink != "default" || got.Topic != "x.{event_type}" {
		t.Errorf("subscriptions = %+v", cfg.Subscriptions)
	}
	for sink, typ := range map[string]string{"stdout:": "stdout", "tls://n": "nats", "amqp://m": "rabbitmq", "amqps://m/v": "rabbitmq", "kafka://a:1,b:2": "kafka", "kafka+ssl://k": "kafka"} {
		cfg, err := Load(Source{Environ: append(env, "COMMITRELAY_SINK="+sink), Delivery: true})
		if err != nil || cfg.Sinks["default"].Type != typ {
			t.Errorf("%s: type %q, %v; want %s", sink, cfg.Sinks["default"].Type, err, typ)
		}
	}
	for _, tt := range []struct {
		flags map[string]string
		want  string
	}{
		{map[string]string{"sink": "redis://k"}, "--sink: type redis: not in this version (this version has nats, rabbitmq, kafka, stdout)"},
		{map[string]string{"sink": "https://k"}, "--sink: type http: not in this version (this version has nats, rabbitmq, kafka, stdout)"},
		{map[string]string{"sink": "localhost"}, "--sink: not a sink's URL: want nats://, tls://, amqp://, amqps://, kafka://, kafka+ssl:// or stdout:"},
		{map[string]string{"sink": "stdout:", "topic": "}"}, "--topic: a } stands alone: fields are written {event_type}, a brace itself {{ or }}"},
		{map[string]string{"topic": "a"}, "--topic: goes with --sink; in the file, each subscription has a topic\nnothing to deliver to: give --sink or COMMITRELAY_SINK, or write sinks and subscriptions into the file that --config names"},
		{nil, "nothing to deliver to: give --sink or COMMITRELAY_SINK, or write sinks and subscriptions into the file that --config names"},
		{map[string]string{"sink": "stdout:", "lease": "1"}, `--lease: lease: "1": a duration needs a unit, as 500ms, 10s or 1m30s`},
		{map[string]string{"sink": "stdout:", "database": "mysql://x"}, "--database: database: url: not a PostgreSQL URL: it begins with postgres://"},
	} {
		_, err := Load(Source{Environ: env, Flags: tt.flags, Delivery: true})
		diffError(t, err, tt.want)
	}
	_, err = Load(Source{Flags: map[string]string{"sink": "stdout:"}, Delivery: true})
	diffError(t, err, "database: url: not set: give --database or COMMITRELAY_DATABASE_URL, or write it into the file that --config names")
	_, err = load(t, "database: {url: 'postgres://x/y'}\nsinks: {a: {type: stdout}}\n", "COMMITRELAY_SINK=stdout:")
	diffError(t, err, "COMMITRELAY_SINK: the file has sinks and subscriptions of its own: use one or the other")
	_, err = Load(Source{File: filepath.Join(t.TempDir(), "none.yaml")})
	if err == nil || !strings.Contains(err.Error(), "read the configuration: ") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A migration runs where the broker's secrets are not.
func TestDatabaseOnly(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "relay.yaml", `database: {url: "postgres://db/d"}
sinks:
  bus: {type: nats, url: "${NATS_URL}", creds_file: absent, tls: {cert_file: absent, insecure_skip_verify: true}}
subscriptions:
  - {name: all, sink: bus}
`)
	_, err := Load(Source{File: "relay.yaml", Delivery: true})
	diffError(t, err, `relay.yaml:3: sinks.bus: url: the environment variable NATS_URL is not set; set it, or write ${NATS_URL:-default}
relay.yaml:3: sinks.bus.tls: cert_file and key_file go together
relay.yaml:3: sinks.bus.tls: insecure_skip_verify: not in this version: name the broker's authority in ca_file
relay.yaml:3: sinks.bus: creds_file: "absent": no such file or directory`)
	write(t, "relay.yaml", `database: {url: "postgres://db/d"}
sinks: {bus: {type: nats, url: "${NATS_URL}", creds_file: absent}}
subscriptions: [{name: all, sink: bus}]
`)
	if _, err := Load(Source{File: "relay.yaml"}); err != nil {
		t.Errorf("for a migration: %v", err)
	}
	if _, err := Load(Source{Offline: true}); err != nil {
		t.Errorf("without a database: %v", err)
	}
}
