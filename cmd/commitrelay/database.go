package main

import (
	"context"
	_ "embed" // sql/writable.sql
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/commitrelay/outbox/internal/config"
	"github.com/commitrelay/outbox/internal/ident"
	"github.com/commitrelay/outbox/migrate"
)

const (
	maxConns       = 4                // of one relay
	connectTimeout = 5 * time.Second  // of one attempt
	startTimeout   = 12 * time.Second // until we say that the database cannot be reached
	startPause     = 250 * time.Millisecond
)

// openPool connects to the database, so that a wrong address or password shows at once. direct
// goes around a pooler, where one is configured.
func openPool(ctx context.Context, db config.Database, direct bool) (*pgxpool.Pool, error) {
	url := db.URL
	if direct && db.DirectURL != "" {
		url = db.DirectURL
	}
	cfg, err := pgxpool.ParseConfig(url.Reveal())
	if err != nil {
		return nil, errors.New("database: the URL cannot be read: run `commitrelay check`") // pgx's error may show it
	}
	tune(cfg, db.Password)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, databaseError(cfg.ConnConfig, err)
	}
	if err := ping(ctx, pool); err != nil {
		pool.Close()
		return nil, databaseError(cfg.ConnConfig, err)
	}
	return pool, nil
}

// tune makes connections that poolers accept and that notice a dead peer. No start-up parameter
// but the name is sent: PgBouncer refuses others.
func tune(cfg *pgxpool.Config, password config.Secret) {
	cfg.MaxConns = maxConns
	cfg.MinConns = 0
	cfg.MinIdleConns = 0
	c := cfg.ConnConfig
	if password != "" {
		c.Password = password.Reveal()
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "commitrelay"
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	// A pooler in transaction mode has no prepared statements.
	c.DefaultQueryExecMode = pgx.QueryExecModeExec
	c.StatementCacheCapacity, c.DescriptionCacheCapacity = 0, 0
	dialer := &net.Dialer{
		Timeout:         c.ConnectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
	}
	c.DialFunc = dialer.DialContext
}

// ping waits only for a server that says it is starting.
func ping(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := pool.Ping(ctx)
		var pg *pgconn.PgError
		if err == nil || !errors.As(err, &pg) || pg.Code != "57P03" { // cannot_connect_now
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(startPause):
		}
	}
}

//go:embed sql/writable.sql
var writableSQL string

// writable refuses a server or a role on which every write of a relay would fail.
func writable(ctx context.Context, pool *pgxpool.Pool) error {
	var standby, readOnly bool
	var role string
	if err := pool.QueryRow(ctx, writableSQL, pgx.QueryExecModeExec).Scan(&standby, &readOnly, &role); err != nil {
		return fmt.Errorf("ask whether the database can be written to: %w", err)
	}
	switch {
	case standby:
		return errors.New("database: this server is a standby: give the address of the primary, or several hosts and target_session_attrs=read-write")
	case readOnly:
		return fmt.Errorf("database: transactions are read-only by default: ALTER ROLE %s SET default_transaction_read_only = off", ident.Quote(role))
	}
	return nil
}

// databaseError says which database, as whom, why not, and what to look at; never with which
// password.
func databaseError(c *pgx.ConnConfig, err error) error {
	var hosts []string
	add := func(host string, port uint16) {
		h := net.JoinHostPort(host, fmt.Sprint(port))
		if strings.HasPrefix(host, "/") {
			h = host
		}
		if !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	add(c.Host, c.Port)
	for _, f := range c.Fallbacks {
		add(f.Host, f.Port)
	}
	cause, hint := explain(err)
	return fmt.Errorf("database %s/%s as user %s: %s: %s", strings.Join(hosts, ","), c.Database, c.User, cause, hint)
}

func explain(err error) (cause, hint string) {
	var pg *pgconn.PgError
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &pg):
		cause = fmt.Sprintf("%s (%s)", pg.Message, pg.Code)
		switch pg.Code {
		case "28P01", "28000":
			return cause, "check the user, the password and pg_hba.conf"
		case "3D000":
			return cause, "check the database's name at the end of the URL"
		case "08P01", "42704":
			return cause, "behind a pooler, leave parameters that it does not know out of the URL"
		case "53300":
			return cause, fmt.Sprintf("a relay needs up to %d connections", maxConns)
		}
		return cause, "see the server's log"
	case errors.As(err, &dns):
		return "no address for the host: " + dns.Err, "check the host's name in the URL"
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time", "check host and port, and that no firewall is in between"
	case strings.Contains(err.Error(), "server refused TLS"):
		return "the server does not speak TLS", "use sslmode=disable or prefer, or switch TLS on there"
	case errors.As(err, &op):
		return op.Err.Error(), "check host and port, and that PostgreSQL listens there"
	}
	text := err.Error()
	if i := strings.Index(text, "`:"); i >= 0 { // pgx repeats user and database
		text = text[i+2:]
	}
	return strings.Join(strings.Fields(text), " "), "check that PostgreSQL runs at this address, and sslmode"
}

// tables are the options of migrate that the configuration knows.
func tables(db config.Database) migrate.Options {
	return migrate.Options{Table: db.Table.String(), Schema: db.Schema}
}

// plainName is a table's name for people.
func plainName(t ident.Table) string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}
