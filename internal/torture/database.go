package torture

import (
	"context"
	"embed"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtemp"
	"github.com/commitrelay/outbox/migrate"
)

//go:embed sql/*.sql
var files embed.FS

// query is the text of a file in sql/.
func query(name string) string {
	text, err := files.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}

// readWrite is for all transactions: roles may have other defaults.
var readWrite = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

// database is a PostgreSQL of the run's own.
type database struct {
	cluster *pgtemp.Cluster
	keys    []Key
	busy    sync.Mutex // one restart, or termination of sessions, at a time
}

// topics is the number of event types, each with a topic of its own.
const topics = 4

func topicName(n int) string { return fmt.Sprintf("t%d", n) }

// startDatabase starts a server and makes the tables and the aggregates: n that writers share, and
// one for each writer, of which it keeps transactions open for long.
func startDatabase(ctx context.Context, n, writers int) (*database, error) {
	cluster, err := pgtemp.Start(ctx, pgtemp.Options{})
	if err != nil {
		return nil, err
	}
	d := &database{cluster: cluster}
	if err := d.create(ctx, n, writers); err != nil {
		return nil, fmt.Errorf("prepare the database: %w", joinClose(err, cluster))
	}
	return d, nil
}

func (d *database) create(ctx context.Context, n, writers int) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := migrate.Up(ctx, conn, migrate.Options{}); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, query("create"), pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	for i := range n {
		d.keys = append(d.keys, Key{[]string{"order", "customer"}[i%2], fmt.Sprintf("k%d", i)})
	}
	for i := range writers {
		d.keys = append(d.keys, ownKey(i))
	}
	for _, k := range d.keys {
		if _, err := conn.Exec(ctx, query("add_key"), pgx.QueryExecModeExec, k.Type, k.ID); err != nil {
			return err
		}
	}
	return nil
}

// ownKey is the aggregate that only one writer writes.
func ownKey(writer int) Key { return Key{"ledger", fmt.Sprintf("w%d", writer)} }

func (d *database) connect(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, d.cluster.URL())
}

// urlThrough leads to the server through a proxy.
func (d *database) urlThrough(proxy string) (string, error) {
	u, err := url.Parse(d.cluster.URL())
	if err != nil {
		return "", fmt.Errorf("database URL: %w", err)
	}
	u.Host = proxy
	return u.String(), nil
}

// lanes are those of all keys.
func (d *database) lanes(ctx context.Context, n int) (map[Key]int, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for lanes: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, query("lanes"), pgx.QueryExecModeExec, n)
	if err != nil {
		return nil, fmt.Errorf("ask for lanes: %w", err)
	}
	lanes := map[Key]int{}
	var k Key
	var lane int
	if _, err := pgx.ForEachRow(rows, []any{&k.Type, &k.ID, &lane}, func() error { lanes[k] = lane; return nil }); err != nil {
		return nil, fmt.Errorf("ask for lanes: %w", err)
	}
	return lanes, nil
}

// present are the events that the table holds.
func (d *database) present(ctx context.Context) (map[outbox.ID]bool, error) {
	conn, err := d.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the table: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, query("present"), pgx.QueryExecModeExec)
	if err != nil {
		return nil, fmt.Errorf("read the table: %w", err)
	}
	ids := map[outbox.ID]bool{}
	var id outbox.ID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { ids[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("read the table: %w", err)
	}
	return ids, nil
}

// terminate ends all sessions.
func (d *database) terminate(ctx context.Context) error {
	d.busy.Lock() // not of a server that is being restarted
	defer d.busy.Unlock()
	conn, err := d.connect(ctx)
	if err != nil {
		return fmt.Errorf("terminate sessions: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, query("terminate"), pgx.QueryExecModeExec); err != nil {
		return fmt.Errorf("terminate sessions: %w", err)
	}
	return nil
}

// restart stops the server as pg_ctl -m immediate does it, and starts it again after a pause.
func (d *database) restart(ctx context.Context, down time.Duration) error {
	d.busy.Lock()
	defer d.busy.Unlock()
	if err := d.cluster.Stop(pgtemp.Immediate); err != nil {
		return err
	}
	pause(ctx, down)
	return d.cluster.StartAgain(context.WithoutCancel(ctx))
}

// close stops the server and removes its data.
func (d *database) close() error { return d.cluster.Close() }

func joinClose(err error, c interface{ Close() error }) error {
	if closeErr := c.Close(); closeErr != nil {
		return fmt.Errorf("%w; and then: %w", err, closeErr)
	}
	return err
}

// pause waits for d, and reports whether ctx is still on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// hostOf is the host:port in a URL, with its first user and password gone.
func hostOf(raw string) string {
	u, err := url.Parse(strings.Split(raw, ",")[0])
	if err != nil {
		return raw
	}
	return u.Host
}
