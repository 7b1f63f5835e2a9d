package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox/internal/pgtest"
)

// run shows a short demo on the tests' server and checks that it leaves nothing behind.
func run(t *testing.T, o Options) Result {
	t.Helper()
	nothingLeft := watch(t)
	o.Database = databaseWithOutbox(t)
	o.Duration = time.Second
	var out strings.Builder
	o.Output = &out
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%s%+v", out.String(), r)
	nothingLeft(o.Database)
	return r
}

// databaseWithOutbox is a database that has an outbox already.
func databaseWithOutbox(t *testing.T) string {
	t.Helper()
	url := pgtest.URL(t)
	u, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	query(t, url, "ALTER DATABASE "+u.Path[1:]+" SET default_transaction_isolation = 'repeatable read'")
	query(t, url, "CREATE TABLE public.outbox_events (id uuid); INSERT INTO public.outbox_events VALUES (gen_random_uuid()); CREATE SCHEMA commitrelay")
	return url
}

func query(t *testing.T, url, sql string) [][]any {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// watch gives temporary files a folder of their own. The function it returns checks that nothing is
// left there, nor in that database.
func watch(t *testing.T) func(url string) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} { // a temporary PostgreSQL may run as another user
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TMPDIR", dir)
	return func(url string) {
		t.Helper()
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			t.Errorf("left behind: %s", f.Name())
		}
		if url == "" {
			return
		}
		for _, row := range query(t, url, "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'commitrelay!_%' ESCAPE '!'") {
			t.Errorf("left behind: schema %s", row[0])
		}
		if n := len(query(t, url, "SELECT FROM public.outbox_events")); n != 1 {
			t.Errorf("the outbox that was there before: got %d rows, want 1", n)
		}
	}
}

// complete checks that all that was committed arrived, and nothing else.
func checkComplete(t *testing.T, r Result) {
	t.Helper()
	if r.Committed == 0 || r.RolledBack == 0 || r.WelcomeMails == 0 {
		t.Errorf("got %d events committed, %d rolled back, %d mails: want some of each", r.Committed, r.RolledBack, r.WelcomeMails)
	}
	if r.Lost != 0 || r.Invented != 0 || r.Distinct != r.Committed || r.Delivered != r.Distinct+r.Duplicates {
		t.Errorf("the figures do not add up: %+v", r)
	}
	if r.EventsPerSecond <= 0 || r.P99MS < r.P50MS || r.LoadSeconds <= 0 {
		t.Errorf("the times make no sense: %+v", r)
	}
}

func TestRelaysDeliverOnceAndInOrder(t *testing.T) {
	for _, relays := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d relays", relays), func(t *testing.T) {
			checkPerfect(t, run(t, Options{Rate: 300, Relays: relays}), relays)
		})
	}
}

func TestRelaysDeliverToRabbitMQ(t *testing.T) {
	checkPerfect(t, run(t, Options{Rate: 300, Sink: rabbitURL(t)}), 3)
}

func TestRelaysDeliverToKafka(t *testing.T) {
	checkPerfect(t, run(t, Options{Rate: 300, Sink: kafkaURL(t)}), 3)
}

func TestTemporaryPostgreSQL(t *testing.T) {
	nothingLeft := watch(t)
	r, err := Run(t.Context(), Options{Duration: time.Second, Rate: 200})
	if err != nil {
		t.Fatal(err)
	}
	checkPerfect(t, r, 3)
	nothingLeft("")
}

// checkPerfect checks what commitrelay promises while nothing fails.
func checkPerfect(t *testing.T, r Result, relays int) {
	t.Helper()
	checkComplete(t, r)
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	if r.Duplicates != 0 || r.Suppressed != 0 || r.UsersMailedTwice != 0 {
		t.Errorf("got duplicates: %+v", r)
	}
	if r.Mode != modeRelay || r.Relays != relays {
		t.Errorf("got mode %s with %d relays, want commitrelay with %d", r.Mode, r.Relays, relays)
	}
}

func TestNaivePollersPublishTwice(t *testing.T) {
	r := run(t, Options{Naive: true, Rate: 150})
	checkComplete(t, r)
	if r.Duplicates == 0 || r.UsersMailedTwice == 0 {
		t.Errorf("three pollers: got %d duplicates, %d users mailed twice, want some", r.Duplicates, r.UsersMailedTwice)
	}
	if r.Mode != modeNaive || r.Relays != 3 {
		t.Errorf("got mode %s with %d pollers, want naive with 3", r.Mode, r.Relays)
	}
}

func TestNaivePollersPublishTwiceToRabbitMQ(t *testing.T) {
	r := run(t, Options{Naive: true, Rate: 100, Sink: rabbitURL(t)})
	checkComplete(t, r)
	if r.Duplicates == 0 {
		t.Errorf("three pollers: got no duplicates: %+v", r)
	}
}

func TestOneNaivePollerDoesNot(t *testing.T) {
	r := run(t, Options{Naive: true, Rate: 50, Relays: 1, Writers: 1})
	checkComplete(t, r)
	if r.Duplicates != 0 || r.Suppressed != 0 || r.UsersMailedTwice != 0 {
		t.Errorf("one poller: got %+v, want no duplicates", r)
	}
}

func TestInterrupt(t *testing.T) {
	for _, test := range []struct {
		name   string
		naive  bool
		given  bool   // the database
		output string // when this has been printed
	}{
		{"before it starts", false, false, ""},
		{"while it runs", false, false, "committed"},
		{"while it runs on a given database", false, true, "committed"},
		{"while pollers run on a given database", true, true, "committed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			nothingLeft := watch(t)
			o := Options{Naive: test.naive, Rate: 100, Duration: time.Hour}
			if test.given {
				o.Database = databaseWithOutbox(t)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			o.Output = writerFunc(func(b []byte) (int, error) {
				if test.output != "" && strings.Contains(string(b), test.output) {
					interrupt()
				}
				return len(b), nil
			})
			if test.output == "" {
				interrupt()
			}
			if _, err := Run(ctx, o); !errors.Is(err, ErrInterrupted) {
				t.Errorf("got error %v, want %v", err, ErrInterrupted)
			}
			nothingLeft(o.Database)
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

var _ io.Writer = writerFunc(nil)

func TestFailuresLeaveNothingBehind(t *testing.T) {
	for _, test := range []struct {
		name, sink, want string
	}{
		{"no NATS there", "nats://127.0.0.1:1", "connect to NATS"},
		{"no RabbitMQ there", "amqp://someone:secret@127.0.0.1:1", "connect to RabbitMQ"},
	} {
		t.Run(test.name, func(t *testing.T) {
			nothingLeft := watch(t)
			o := Options{Database: databaseWithOutbox(t), Sink: test.sink, Naive: true}
			_, err := Run(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got error %v, want one with %q and without the password", err, test.want)
			}
			nothingLeft(o.Database)
		})
	}
}

func TestOptionsReportAllFaultsAtOnce(t *testing.T) {
	_, err := Run(t.Context(), Options{Database: "postgres://u:hidden@h:port/", Sink: "redis://k", Duration: -1, Wait: -1, Rate: -1, Writers: 1000, Relays: -1})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"database:", "sink:", "duration", "wait", "rate", "1000 writers", "-1 relays"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hidden") {
		t.Errorf("the error shows the password: %v", err)
	}
}
