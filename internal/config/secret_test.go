package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

// awkward are passwords whose characters break URLs, or look like parts of one.
var awkward = []string{`S3cr^et$Pw`, `p@ss/w:rd`, `100%zz`, `hunt?er2`, `hunt#er2`, `hun,ter2`, `[hunter2`, `hun ter2`, `1234,5678@9`}

func TestSecretsAreNotPrinted(t *testing.T) {
	var all []any
	for _, pw := range awkward {
		all = append(all, Secret(pw))
		for _, scheme := range []string{"postgres", "amqp", "nats", "kafka", "kafka+ssl", "https", "redis"} {
			all = append(all, URL(scheme+"://user:"+pw+"@host:1/x?token="+pw), URL(scheme+"://"+pw+"@host"))
		}
	}
	var out bytes.Buffer
	for _, v := range all {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
			fmt.Fprintf(&out, verb+"\n", struct{ V any }{v})
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		j, err := json.Marshal(map[string]any{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		y, err := yaml.Marshal(map[string]any{"v": v})
		if err != nil {
			t.Fatal(err)
		}
		out.Write(j)
		out.Write(y)
	}
	for _, pw := range awkward {
		if strings.Contains(out.String(), pw) || strings.Contains(out.String(), fmt.Sprintf("%x", pw)) {
			t.Errorf("%q is shown", pw)
		}
	}
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"stdout:":                              "stdout:",
		"nats://n:4222":                        "nats://n:4222",
		"nats://token@n:4222":                  "nats://***@n:4222",
		"nats://u:p@n1:4222,nats://u:p@n2":     "nats://u:***@n1:4222,nats://u:***@n2",
		"postgres://u:p@h1:5432,h2:5432/d":     "postgres://u:***@h1:5432,h2:5432/d",
		"postgres://u:p@[::1]:5432/d?x=y":      "postgres://u:***@[::1]:5432/d?***",
		"amqps://u:p%40ss@mq/vh":               "amqps://u:***@mq/vh",
		"https://u:pw@host/services/T0/B0/abc": "https://u:***@host/***",
		`postgres://u:S3cr^et$Pw@h/d`:          "postgres://***",
		`postgres://u:p@ss/w:rd@h/d`:           "postgres://***",
		`amqp://u:100%zz@h`:                    "amqp://***",
		"kafka+ssl://u:p@k1:9092,k2:9092":      "kafka+ssl://u:***@k1:9092,k2:9092",
		"host=h password=x":                    "***",
		"hunter2":                              "***",
	} {
		if got := Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestRedactAnyPassword(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pw := rapid.StringMatching(`[ -~]{6,20}`).Draw(t, "password")
		scheme := rapid.SampledFrom([]string{"postgres", "nats", "amqp", "kafka+ssl", "https"}).Draw(t, "scheme")
		shape := rapid.SampledFrom([]string{"%s://u:%s@h/d", "%s://%s@h", "%s://u:x@h/d?password=%s", "%s://u:%s@h1:1,h2:2/d"}).Draw(t, "shape")
		whole := fmt.Sprintf(shape, scheme, pw)
		for _, p := range []string{pw, url.QueryEscape(pw), url.PathEscape(pw)} {
			if got := Redact(whole); strings.Contains(got, p) && !strings.Contains(scheme+"://u:***@h1:1,h2:2/d?***", p) {
				t.Fatalf("Redact(%q) = %q", whole, got)
			}
		}
	})
}

// A configuration with faults tells which, never with what secret.
func TestFaultsHoldNoSecret(t *testing.T) {
	for _, pw := range awkward {
		env := []string{
			"PW=" + pw, "DATABASE_URL=postgres://u:" + pw + "@db/d",
			"COMMITRELAY_LEASE=" + pw, "COMMITRELAY_HTTP=" + pw, "COMMITRELAY_LOG_LEVEL=" + pw, "COMMITRELAY_TABLE=a.b." + pw,
		}
		_, err := load(t, `database: {url: "${DATABASE_URL}", direct_url: 'postgres://u:`+pw+`@db/d?x', layout: "${PW}", schema: "${PW}${PW}${PW}${PW}${PW}${PW}${PW}${PW}"}
sinks:
  bus: {type: nats, url: 'nats://u:`+pw+`@h', password: '`+pw+`'}
  mq: {type: rabbitmq, url: 'amqp://u:`+pw+`@h/v', password_file: "${PW}"}
  log: {type: kafka, url: 'kafka://u:`+pw+`@h,h2', sasl_mechanism: "${PW}", compression: "${PW}", max_message: "${PW}"}
  x: {type: "${PW}"}
  '`+pw+`': {type: stdout}
subscriptions:
  - {name: "${PW}", sink: "${PW}", topic: "{${PW}}", lanes: "${PW}", retry: {backoff: "${PW}"}, on_dead: "${PW}"}
'`+pw+`': 1
`, env...)
		if err == nil {
			t.Fatal("no fault")
		}
		if strings.Contains(err.Error(), pw) {
			t.Errorf("%q is shown:\n%v", pw, err)
		}
	}
}

func TestSecretFiles(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "lf", "a b\n")
	write(t, "crlf", "a b\r\n")
	write(t, "two", "a\n\n")
	write(t, "empty", "\n")
	get := func(file string) (Secret, error) {
		write(t, "relay.yaml", "database: {url: 'postgres://h/d', password_file: "+file+"}\n")
		cfg, err := Load(Source{File: "relay.yaml"})
		return cfg.Database.Password, err
	}
	for file, want := range map[string]Secret{"lf": "a b", "crlf": "a b", "two": "a\n"} {
		if got, err := get(file); got.Reveal() != want.Reveal() || err != nil {
			t.Errorf("%s: %q, %v", file, got.Reveal(), err)
		}
	}
	_, err := get("empty")
	diffError(t, err, `relay.yaml:1: database: password_file: "empty": the file is empty`)
	_, err = get("absent")
	diffError(t, err, `relay.yaml:1: database: password_file: "absent": no such file or directory`)
	_, err = load(t, "database: {url: 'postgres://h/d'}\nsinks: {a: {type: nats, url: 'nats://n', password: x, password_file: y}}\nsubscriptions: [{name: a, sink: a}]\n")
	diffError(t, err, `relay.yaml:2: sinks.a: password: write a secret as "${NAME}" from the environment, or into a file named by password_file
relay.yaml:2: sinks.a: password_file: password is set, too: choose one
relay.yaml:2: sinks.a: password_file: "y": no such file or directory`)
}

func FuzzLoad(f *testing.F) {
	f.Add(whole)
	f.Add("database: {url: \"${C}\", layout: \"${C}\"}\nsinks: {a: &a {type: \"${C}\", tls: *a}}\nsubscriptions: [{name: ${C}}]\n")
	f.Add("a: &a [*a]\n<<: *a\n? [x]\n: y\n")
	f.Add("--- # nothing\n")
	f.Add("database: !!int {url: ${C:-x}}\nlease: !!binary ${C}\n")
	const canary = "cAnArY^%zz@/:"
	name := f.TempDir() + "/relay.yaml"
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(Source{File: name, Environ: []string{"C=" + canary}, Delivery: true})
		if err != nil && strings.Contains(err.Error(), canary) {
			t.Errorf("the secret is shown: %v", err)
		}
	})
}

func FuzzDuration(f *testing.F) {
	f.Add("1m30s")
	f.Add("4MiB")
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := parseDuration(s); err == nil && d <= 0 {
			t.Errorf("duration %q = %v", s, d)
		}
		if n, err := parseSize(s); err == nil && n < 0 {
			t.Errorf("size %q = %d", s, n)
		}
	})
}
