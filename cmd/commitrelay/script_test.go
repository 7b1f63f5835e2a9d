package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/testwait"
)

// TestScripts runs testdata/script/*.txtar. Each has a new database in $DB, an address for --http
// in $HTTP, a NATS JetStream with a stream of everything in $NATS, an address that nobody listens
// at in $NOBODY, a database that does not exist in $ABSENT_DB, one
// over TLS in $TLS_DB, a role $ROLE that $ROLE_DB connects as, and one that accepts connections and never says anything in $SILENT.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txtar"), func(t *testing.T) {
			t.Parallel()
			role := newRole(t)
			r := &rig{t: t, db: pgtest.URL(t), http: freeAddress(t)}
			absentDB, err := url.Parse(r.db)
			if err != nil {
				t.Fatal(err)
			}
			absentDB.Path += "_absent"
			tlsDB, err := url.Parse(r.db)
			if err != nil {
				t.Fatal(err)
			}
			tlsDB.RawQuery = "sslmode=require"
			roleDB, err := url.Parse(r.db)
			if err != nil {
				t.Fatal(err)
			}
			roleDB.User = url.UserPassword(role, role)
			broker := r.startNATS()
			nobody, silent := freeAddress(t), silence(t)
			testscript.Run(t, testscript.Params{
				Files: []string{f},
				Setup: func(env *testscript.Env) error {
					env.Vars = append(env.Vars, "DB="+r.db, "HTTP="+r.http, "NATS="+broker, "NOBODY="+nobody, "SILENT="+silent, "ROLE="+role, "ROLE_DB="+roleDB.String(), "ABSENT_DB="+absentDB.String(), "TLS_DB="+tlsDB.String())
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"sql": r.sql, "await-sql": r.awaitSQL, "await-published": r.awaitPublished, "await-http": r.awaitHTTP, "exit2": exit2, "terminate": terminate,
				},
			})
		})
	}
}

type rig struct {
	t        *testing.T
	db, http string
	stream   jetstream.Stream
}

// newRole makes a role that may do nothing; its password is its name. It outlives the database in
// which it gets rights.
func newRole(t *testing.T) string {
	t.Helper()
	name := "r_" + strings.ToLower(rand.Text())
	exec := func(sql string) {
		conn, err := pgx.Connect(context.Background(), pgtest.ServerURL(t))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	exec("CREATE ROLE " + name + " LOGIN PASSWORD '" + name + "'")
	t.Cleanup(func() { exec("DROP ROLE " + name) })
	return name
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// silence accepts connections and keeps them.
func silence(t *testing.T) string {
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
			defer c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func (r *rig) startNATS() string {
	r.t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: r.t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		r.t.Fatal(err)
	}
	s.Start()
	r.t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(testwait.Limit) {
		r.t.Fatal("the NATS server does not start")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		r.t.Fatal(err)
	}
	r.stream, err = js.CreateStream(r.t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}})
	if err != nil {
		r.t.Fatal(err)
	}
	return s.ClientURL()
}

// poll repeats condition until it holds; the script fails with its last error.
func poll(ts *testscript.TestScript, condition func() error) {
	deadline := time.Now().Add(testwait.Limit)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v", err)
		}
		wait, stop := context.WithTimeout(context.Background(), 20*time.Millisecond)
		<-wait.Done()
		stop()
	}
}

// sql STATEMENT...
func (r *rig) sql(ts *testscript.TestScript, neg bool, args []string) {
	conn, err := pgx.Connect(context.Background(), r.db)
	ts.Check(err)
	defer conn.Close(context.Background())
	for _, a := range args {
		if _, err := conn.Exec(context.Background(), a); (err != nil) != neg {
			ts.Fatalf("%s: %v", a, err)
		}
	}
}

// await-sql QUERY waits until its one value is true.
func (r *rig) awaitSQL(ts *testscript.TestScript, _ bool, args []string) {
	conn, err := pgx.Connect(context.Background(), r.db)
	ts.Check(err)
	defer conn.Close(context.Background())
	poll(ts, func() error {
		var ok *bool
		if err := conn.QueryRow(context.Background(), args[0]).Scan(&ok); err != nil {
			return err
		}
		if ok == nil || !*ok {
			return fmt.Errorf("%s: not true", args[0])
		}
		return nil
	})
}

// await-published N waits until the stream holds N messages.
func (r *rig) awaitPublished(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.ParseUint(args[0], 10, 64)
	ts.Check(err)
	poll(ts, func() error {
		info, err := r.stream.Info(context.Background())
		if err == nil && info.State.Msgs != want {
			err = fmt.Errorf("the stream holds %d messages, want %d", info.State.Msgs, want)
		}
		return err
	})
}

// await-http PATH STATUS waits for an answer with that status, and leaves its body in the file
// "answer".
func (r *rig) awaitHTTP(ts *testscript.TestScript, _ bool, args []string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	poll(ts, func() error {
		resp, err := client.Get("http://" + r.http + args[0])
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && strconv.Itoa(resp.StatusCode) != args[1] {
			err = fmt.Errorf("%s: %s, want %s: %s", args[0], resp.Status, args[1], body)
		}
		if err == nil {
			err = os.WriteFile(ts.MkAbs("answer"), body, 0o600)
		}
		return err
	})
}

// exit2 ARGUMENTS runs commitrelay, which must end with the exit code for faults of usage.
func exit2(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec("commitrelay", args...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitUsage {
		ts.Fatalf("commitrelay %s: %v, want exit code %d", strings.Join(args, " "), err, exitUsage)
	}
}

// terminate SIGNAL sends it to everything that runs in the background.
func terminate(ts *testscript.TestScript, _ bool, args []string) {
	sig := map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "SIGINT": os.Interrupt}[args[0]]
	for _, c := range ts.BackgroundCmds() {
		ts.Check(c.Process.Signal(sig))
	}
}
