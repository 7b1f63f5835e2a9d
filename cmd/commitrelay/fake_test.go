package main

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

// refuse is a PostgreSQL that asks for a password and refuses it; it keeps the start-up parameters
// it was sent.
func refuse(t *testing.T, parameters *map[string]string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			refuseOne(c, parameters)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func refuseOne(c net.Conn, parameters *map[string]string) {
	defer c.Close()
	b := pgproto3.NewBackend(c, c)
	for {
		m, err := b.ReceiveStartupMessage()
		if err != nil {
			return
		}
		start, ok := m.(*pgproto3.StartupMessage)
		if !ok { // a request for TLS
			if _, err := c.Write([]byte("N")); err != nil {
				return
			}
			continue
		}
		*parameters = start.Parameters
		break
	}
	b.Send(&pgproto3.AuthenticationCleartextPassword{})
	if b.Flush() != nil || b.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
		return
	}
	if _, err := b.Receive(); err != nil {
		return
	}
	b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: `password authentication failed for user "me"`})
	_ = b.Flush()
}

// A wrong password ends run with the cause. PgBouncer refuses start-up parameters that it does not
// know, so none but the name is sent.
func TestWrongPassword(t *testing.T) {
	var parameters map[string]string
	addr := refuse(t, &parameters)
	var stdout, stderr bytes.Buffer
	code := execute([]string{"run", "--database", "postgres://me:hunter2@" + addr + "/shop", "--sink", "nats://127.0.0.1:1"}, &stdout, &stderr)
	if code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	want := "commitrelay: database " + addr + `/shop as user me: password authentication failed for user "me" (28P01): check the user, the password and pg_hba.conf` + "\n"
	if d := cmp.Diff(want, stderr.String()); d != "" {
		t.Errorf("stderr (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"user": "me", "database": "shop", "application_name": "commitrelay"}, parameters); d != "" {
		t.Errorf("start-up parameters (-want +got):\n%s", d)
	}
}

// Whatever goes wrong, no password is shown: not one that breaks the URL, either.
func TestPasswordsAreNotShown(t *testing.T) {
	var parameters map[string]string
	refusing, nobody := refuse(t, &parameters), freeAddress(t)
	escape := strings.NewReplacer("%", "%25", "@", "%40", "/", "%2F", ":", "%3A", "^", "%5E").Replace
	for _, pw := range []string{`S3cr^et$Pw`, `p@ss/w:rd`, `100%zz`} {
		for _, p := range []string{pw, escape(pw)} {
			for _, args := range [][]string{
				{"--database", "postgres://me:" + p + "@" + refusing + "/shop", "--sink", "nats://" + nobody},
				{"--database", "postgres://me:" + p + "@" + nobody + "/shop", "--sink", "nats://me:" + p + "@" + nobody},
				{"--database", "postgres://me:" + p + "@" + nobody + "/shop", "--sink", "amqp://me:" + p + "@" + nobody + "/v"},
				{"--database", "postgres://me:" + p + "@" + nobody + "/shop", "--sink", "kafka://me:" + p + "@" + nobody + "," + nobody},
				{"--database", "postgres://me:" + p + "@" + nobody + "/shop", "--sink", "kafka+ssl://" + nobody + ",me:" + p + "@" + nobody},
				{"--database", "host=127.0.0.1 port=1 user=me password='" + p + "' sslmode=nonsense", "--sink", "nats://" + p + "@" + nobody},
				{"--database", "postgres://h/d?password=" + p + "&port=" + p, "--sink", "redis://:" + p + "@" + nobody},
				{"--database", p, "--sink", p},
				{"--databse", p, "--sink", "https://u:" + p + "@host/?token=" + p},
			} {
				for _, verb := range []string{"run", "check"} {
					var out bytes.Buffer
					if verb == "run" {
						args = append(slices.Clone(args), "--log-level", "debug")
					}
					code := execute(append([]string{verb}, args...), &out, &out)
					if code == exitOK && verb == "run" {
						t.Errorf("%q: exit code 0", args)
					}
					if shown := strings.ReplaceAll(out.String(), refusing, ""); strings.Contains(shown, pw) || strings.Contains(shown, escape(pw)) {
						t.Errorf("%s %q shows the password:\n%s", verb, args, shown)
					}
				}
			}
		}
	}
}
