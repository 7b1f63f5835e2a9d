package dial_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/sink/internal/dial"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseURL(t *testing.T) {
	u, err := dial.ParseURL("amqps://us%40er:p%40ss%2Fw%3Ard@[::1]:5671/vhost", "amqp", "amqps")
	if err != nil {
		t.Fatal(err)
	}
	if pw, _ := u.User.Password(); u.Host != "[::1]:5671" || u.User.Username() != "us@er" || pw != "p@ss/w:rd" || u.Path != "/vhost" {
		t.Errorf("ParseURL = %+v", u)
	}
}

func TestParseURLNeverShowsTheURL(t *testing.T) {
	for _, password := range []string{"S3cr^et$Pw", "p@ss/w:rd", "100%zz", "a/b", "a?b", "a#b", "a:b", "12/34", "a b", "a\nb", "[x"} {
		for _, scheme := range []string{"amqp", "ampq", "http", ""} {
			raw := scheme + "://user:" + password + "@broker.example:5672/"
			u, err := dial.ParseURL(raw, "amqp")
			if err == nil {
				if pw, _ := u.User.Password(); pw != password {
					t.Errorf("ParseURL(%q) takes %q for the password", raw, pw)
				}
				continue
			}
			for _, part := range []string{password, "zz", "S3cr", "ss/w", "34", "broker.example", "user:"} {
				if strings.Contains(err.Error(), part) && !strings.Contains("set user and password", part) {
					t.Errorf("ParseURL(%q): the error shows %q: %v", raw, part, err)
				}
			}
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	tests := map[string]string{
		"":                    "want amqp://",
		"host:5672":           "want amqp://",
		"nats://host":         "want amqp://",
		"amqp://":             "no host",
		"amqp://:5672":        "no host",
		"amqp://u:p@/vhost":   "no host",
		"amqp://host/x@y":     "@",
		"amqp://host:port":    "not a valid URL",
		"amqp://h/#/queues/x": "#",
	}
	for raw, want := range tests {
		if _, err := dial.ParseURL(raw, "amqp"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseURL(%q) = %v, want an error with %q", raw, err, want)
		}
	}
}

func TestTLSFaults(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := dial.TLS("", "", ""); c != nil || err != nil {
		t.Errorf("TLS without files = %v, %v, want nil", c, err)
	}
	for want, files := range map[string][3]string{
		"read CA file":             {filepath.Join(dir, "absent"), "", ""},
		"holds no certificate":     {empty, "", ""},
		"needs both":               {"", empty, ""},
		"read client certificate:": {"", empty, empty},
	} {
		if _, err := dial.TLS(files[0], files[1], files[2]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("TLS(%v) = %v, want an error with %q", files, err, want)
		}
	}
}

// deaf accepts connections and never reads.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan net.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	t.Cleanup(func() {
		l.Close()
		if c, ok := <-accepted; ok {
			c.Close()
		}
	})
	return l.Addr().String()
}

// fill writes until a write fails.
func fill(c *dial.Conn) error {
	for {
		if _, err := c.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
	}
}

func TestAWriteToADeafServerEnds(t *testing.T) {
	c, err := dial.Dial(t.Context(), deaf(t), time.Second, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := fill(c); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write = %v, want a timeout", err)
	}
	if c.Cause() == nil {
		t.Error("no cause is known after a failed write")
	}
}

func TestHurryEndsAStuckWriteOnly(t *testing.T) {
	c, err := dial.Dial(t.Context(), deaf(t), time.Second, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Hurry(0)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatalf("Hurry broke an idle connection: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- fill(c) }()
	testwait.Until(t, "the write ends", func() bool {
		c.Hurry(0) // writes that still find room are not stuck: say it again
		return len(done) > 0
	})
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write = %v, want a timeout", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial.Dial(ctx, "127.0.0.1:1", time.Minute, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("Dial = %v, want the context's end", err)
	}
}
