package relay_test

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/internal/pgtest"
	"github.com/commitrelay/outbox/internal/tcpproxy"
	"github.com/commitrelay/outbox/internal/testwait"
	"github.com/commitrelay/outbox/migrate"
	"github.com/commitrelay/outbox/relay"
)

// withRole is a new cluster with the tables in it, and a pool of a role that may do no more than relay. The role's
// defaults are set as given.
func withRole(t testing.TB, defaults ...string) (c *pgtemp.Cluster, admin, role *pgxpool.Pool) {
	t.Helper()
	c = newCluster(t, quick(nil))
	admin = pgtest.Connect(t, c.URL())
	mustExec(t, admin, `CREATE ROLE relay LOGIN PASSWORD 'relay'`)
	for _, d := range defaults {
		mustExec(t, admin, `ALTER ROLE relay SET `+d)
	}
	if err := migrate.Up(t.Context(), admin, migrate.Options{Relays: []string{"relay"}}); err != nil {
		t.Fatal(err)
	}
	return c, admin, pgtest.Connect(t, asRole(t, c.URL()))
}

func asRole(t testing.TB, server string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("relay", "relay")
	return u.String()
}

// PostgreSQL goes away under three relays and comes back.
func TestPostgreSQLStops(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(nil))
	pool := migrated(t, c)
	sink, book := &capture{}, &ledger{}
	var proxies []*tcpproxy.Proxy
	var relays []*relay.Relay
	var logs []*logBook
	for range 3 {
		through, proxy := proxied(t, c)
		cfg, log := logged(t, sink)
		cfg.Lease = 0 // the default
		r, _ := start(t, through, cfg)
		proxies, relays, logs = append(proxies, proxy), append(relays, r), append(logs, log)
	}
	book.write(t, pool, "a", 10)
	book.wait(t, sink)
	for _, r := range relays {
		testwait.Until(t, "all relays to be ready", func() bool { return r.Health().Ready })
	}
	if err := c.Stop(pgtemp.Fast); err != nil {
		t.Fatal(err)
	}
	const attempts = 10 // the first ones come from all that is at work
	stopped := time.Now()
	var before []int
	for _, p := range proxies {
		before = append(before, p.Accepted())
	}
	for i, p := range proxies {
		testwait.Until(t, "several attempts to connect", func() bool { return p.Accepted() >= before[i]+attempts })
		if h := relays[i].Health(); h.Ready || h.Subscriptions[0].State != relay.DatabaseOut {
			t.Errorf("health is %+v while PostgreSQL is away", h)
		}
		// 60 a minute would be too many. A slow machine makes fewer.
		if took := time.Since(stopped); took < attempts*300*time.Millisecond {
			t.Errorf("%d attempts to connect within %v: too many", attempts, took)
		}
	}
	if err := c.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool = pgtest.Connect(t, c.URL())
	book.write(t, pool, "a", 10)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
	for i, log := range logs {
		log.waitFor("PostgreSQL answers again")
		testwait.Until(t, "all relays to be ready", func() bool { return relays[i].Health().Ready })
		if away, back := log.find("PostgreSQL does not answer"), log.find("PostgreSQL answers again"); len(away) != 1 || len(back) != 1 {
			t.Errorf("%d lines when PostgreSQL went away, %d when it came back: %q", len(away), len(back), append(away, back...))
		}
		if n := len(log.loud()); n > 3 {
			t.Errorf("%d warnings and errors: %q", n, log.loud())
		}
	}
}

// The server has no connection to spare when the relays start.
func TestNoConnectionToSpare(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(map[string]string{"max_connections": "14", "max_wal_senders": "0"}))
	pool := migrated(t, c)
	sink, book := &capture{}, &ledger{}
	book.write(t, pool, "a", 300)
	pool.Close()
	var others []*pgx.Conn
	testwait.Until(t, "all connections to be used", func() bool {
		conn, err := pgx.Connect(t.Context(), c.URL())
		if err == nil {
			others = append(others, conn)
		}
		return err != nil && strings.Contains(err.Error(), "53300")
	})
	var logs []*logBook
	var relays []*relay.Relay
	for range 3 {
		cfg, log := logged(t, sink)
		r, _ := start(t, pgtest.Connect(t, c.URL()), cfg)
		logs, relays = append(logs, log), append(relays, r)
	}
	for i, log := range logs {
		log.waitFor("PostgreSQL does not answer", "53300")
		if relays[i].Health().Ready {
			t.Error("a relay without a connection says that it is ready")
		}
	}
	for _, conn := range others {
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	book.wait(t, sink)
	for i := range relays {
		testwait.Until(t, "every relay to be ready", func() bool { return relays[i].Health().Ready })
	}
	book.checkOnce(t, sink)
}

// What is refused must not be lost when it cannot be parked.
func TestParkingFails(t *testing.T) {
	t.Parallel()
	c, admin, role := withRole(t, "lock_timeout = '200ms'")
	sink, book := &capture{}, &ledger{}
	refuse := true
	sink.setAnswer(judge(func(m relay.Message) error { // called under the sink's lock
		if refuse && m.Event.AggregateID == "bad" {
			return relay.Retry(errors.New("not now"))
		}
		return nil
	}))
	cfg, log := logged(t, sink)
	cfg.Lease = 0
	cfg.BatchEvents = 2 // the failure strikes in the middle of a window
	start(t, role, cfg)
	book.write(t, admin, "a", 3)
	settled(t, admin)
	locker := hold(t, c.URL(), "LOCK TABLE commitrelay.parked IN SHARE MODE")
	tx := begin(t, admin)
	rows := append(insertMany(t, tx, "a", 2), insertMany(t, tx, "bad", 2)...)
	rows = append(rows, insertMany(t, tx, "b", 2)...)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	book.add(rows...)
	log.waitFor("55P03")
	book.write(t, admin, "bad", 1)
	if err := locker.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "three events to be parked", func() bool { return parkedRows(t, admin) == "parked 3" })
	sink.mu.Lock()
	refuse = false
	sink.mu.Unlock()
	book.wait(t, sink)
	settled(t, admin)
	book.checkOnce(t, sink, admin)
}

// An event that was parked and has been published since is not published again when its row cannot be removed.
func TestForgettingFails(t *testing.T) {
	t.Parallel()
	c, admin, role := withRole(t, "statement_timeout = '300ms'")
	sink, book := &capture{}, &ledger{}
	refused := false
	var locker *pgx.Conn
	sink.setAnswer(judge(func(m relay.Message) error {
		switch {
		case m.Event.AggregateID != "k" || string(m.Event.Payload) != "1":
			return nil
		case !refused:
			refused = true
			return relay.Retry(errors.New("not now"))
		case locker == nil: // claimed, and about to be published
			locker = hold(t, c.URL(), "LOCK TABLE commitrelay.parked IN SHARE MODE")
		}
		return nil
	}))
	cfg, log := logged(t, sink)
	cfg.Lease = 0
	start(t, role, cfg)
	book.write(t, admin, "k", 3)
	log.waitFor("57014")
	sink.mu.Lock()
	err := locker.Close(t.Context())
	sink.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	book.wait(t, sink)
	testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, admin) == "none" })
	book.checkOnce(t, sink, admin)
}

// Timeouts of the role strike while the table is locked by others; then all goes on.
func TestTimeoutsOfTheRole(t *testing.T) {
	t.Parallel()
	c, admin, role := withRole(t, "lock_timeout = '200ms'", "statement_timeout = '500ms'")
	sink, book := &capture{}, &ledger{}
	cfg, log := logged(t, sink)
	cfg.Lease = 0
	r, _ := start(t, role, cfg)
	book.write(t, admin, "a", 10)
	book.wait(t, sink)
	for _, table := range []string{"outbox_events", "commitrelay.lanes", "commitrelay.windows"} {
		tx := begin(t, admin)
		rows := insertMany(t, tx, "a", 3)
		locker := hold(t, c.URL())
		locked := make(chan error, 1)
		go func() { // it waits for the writer, where that is in its way
			_, err := locker.Exec(t.Context(), "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE")
			locked <- err
		}()
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		book.add(rows...)
		if err := testwait.Recv(t, "the lock", locked); err != nil {
			t.Fatal(err)
		}
		testwait.Until(t, "a timeout to strike", func() bool {
			h := r.Health().Subscriptions[0]
			return h.State == relay.DatabaseOut && (strings.Contains(h.Error, "55P03") || strings.Contains(h.Error, "57014"))
		})
		if err := locker.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		book.wait(t, sink)
		testwait.Until(t, "health to be good", func() bool { return r.Health().Ready })
	}
	book.write(t, admin, "a", 3)
	book.wait(t, sink)
	book.checkOnce(t, sink, admin)
	if n := len(log.loud()); n > 12 {
		t.Errorf("%d warnings: %q", n, log.loud())
	}
}

// While a sink is being called no transaction is open, however long it takes.
func TestNoTransactionDuringACall(t *testing.T) {
	t.Parallel()
	_, admin, role := withRole(t, "idle_in_transaction_session_timeout = '1s'")
	sink, book := &capture{}, &ledger{}
	idle := 0
	sink.setAnswer(judge(func(m relay.Message) error {
		// The call takes 100 ms: other transactions of the relay, as the wheel's, pass between two statements in less.
		mustExec(t, admin, `SELECT pg_sleep(0.1)`)
		idle += count(t, admin, `SELECT count(*) FROM pg_stat_activity
			WHERE usename = 'relay' AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '100 ms'`)
		if m.Attempt == 1 && m.Event.AggregateID == "bad" {
			return relay.Retry(errors.New("not now")) // parking is done in a transaction
		}
		return nil
	}))
	cfg, _ := logged(t, sink)
	cfg.BatchEvents = 5
	start(t, role, cfg)
	start(t, role, cfg)
	for range 10 {
		book.write(t, admin, "a", 3)
		book.write(t, admin, "bad", 2)
	}
	book.wait(t, sink)
	book.checkOnce(t, sink, admin)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if idle > 0 {
		t.Errorf("%d times a session of the relay was idle in a transaction while the sink was called", idle)
	}
}

// Stricter isolation by default makes statements fail that meet another's: they are repeated, and nobody notices.
func TestIsolationOfTheRole(t *testing.T) {
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			_, admin, role := withRole(t, "default_transaction_isolation = '"+level+"'")
			sink, book := &capture{}, &ledger{}
			sink.setAnswer(judge(func(m relay.Message) error {
				if m.Seq%50 == 0 && m.Attempt == 1 {
					return relay.RetryAfter(errors.New("not now"), 0)
				}
				return nil
			}))
			var logs []*logBook
			for range 4 {
				cfg, log := logged(t, sink)
				cfg.PollMax = 5 * time.Millisecond // many statements
				cfg.BatchEvents = 50
				cfg.Subscriptions[0].Backoff = time.Millisecond
				start(t, pgtest.Connect(t, role.Config().ConnString()), cfg)
				logs = append(logs, log)
			}
			for i := range 50 {
				book.write(t, admin, fmt.Sprint(i%9), 45)
				book.write(t, admin, "bad", 5)
			}
			book.wait(t, sink)
			testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, admin) == "none" })
			book.checkOnce(t, sink, admin)
			for _, log := range logs {
				if loud := log.loud(); len(loud) > 0 {
					t.Errorf("warnings: %q", loud)
				}
			}
		})
	}
}

// A right is taken away while the relay runs, and given back.
func TestRevokedRight(t *testing.T) {
	t.Parallel()
	_, admin, role := withRole(t)
	sink, book := &capture{}, &ledger{}
	cfg, log := logged(t, sink)
	r, _ := start(t, role, cfg)
	book.write(t, admin, "a", 3)
	book.wait(t, sink)
	for right, object := range map[string]string{
		"SELECT ON outbox_events":     "table outbox_events",
		"UPDATE ON commitrelay.lanes": "table lanes",
	} {
		mustExec(t, admin, "REVOKE "+right+" FROM relay")
		book.write(t, admin, "a", 3)
		testwait.UntilNil(t, "health to tell", func() error {
			if h := r.Health(); h.Ready || h.Subscriptions[0].State != relay.Stopped || !strings.Contains(h.Subscriptions[0].Error, object) {
				return fmt.Errorf("it is %+v", h)
			}
			return nil
		})
		log.waitFor("level=ERROR", "permission denied for "+object, "42501")
		mustExec(t, admin, "GRANT "+right+" TO relay")
		book.wait(t, sink)
		testwait.Until(t, "health to be good", func() bool { return r.Health().Ready })
	}
	book.checkOnce(t, sink, admin)
	if n := len(log.find("PostgreSQL does not answer")); n > 0 {
		t.Errorf("the log says %d times that PostgreSQL does not answer: it does", n)
	}
	if n := len(log.find("level=ERROR")); n > 4 {
		t.Errorf("%d errors were logged: %q", n, log.find("level=ERROR"))
	}
}

// Connections go silent without being closed, as behind a firewall that forgets them; new ones work.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t, quick(nil))
	pool := migrated(t, c)
	through, proxy := proxied(t, c)
	sink, book := &capture{}, &ledger{}
	cfg, _ := logged(t, sink)
	start(t, through, cfg)
	for range 2 {
		book.write(t, pool, "a", 3)
		book.wait(t, sink)
		proxy.PauseOpen(tcpproxy.Both)
	}
	book.write(t, pool, "a", 3)
	book.wait(t, sink)
	book.checkOnce(t, sink, pool)
}

// Sessions are ended again and again while events are written.
func TestTerminatedSessions(t *testing.T) {
	t.Parallel()
	_, admin, role := withRole(t)
	sink, book := &capture{}, &ledger{}
	sink.setAnswer(judge(func(m relay.Message) error {
		if m.Seq%50 == 0 && m.Attempt == 1 {
			return relay.RetryAfter(errors.New("not now"), 0)
		}
		return nil
	}))
	cfg, _ := logged(t, sink)
	cfg.BatchEvents = 7
	cfg.Subscriptions[0].Backoff = time.Millisecond
	start(t, role, cfg)
	end := writing(t, admin, book, sink)
	for range 8 {
		n := len(sink.messages())
		testwait.Until(t, "more to arrive", func() bool { return len(sink.messages()) >= n+20 })
		mustExec(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'`)
	}
	end()
	book.wait(t, sink)
	testwait.Until(t, "nothing to be parked", func() bool { return parkedRows(t, admin) == "none" })
	book.checkOnce(t, sink, admin)
}
