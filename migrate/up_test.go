package migrate

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/commitrelay/outbox/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestUp(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	for range 2 {
		if err := Up(ctx, pool, Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pool.Exec(ctx, `INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES ('user', '1', 'UserCreated', '{}')`); err != nil {
		t.Fatal(err)
	}
}
