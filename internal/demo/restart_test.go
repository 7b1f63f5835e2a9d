package demo

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/commitrelay/outbox/internal/pgtemp"
)

// The writers' connections break, some of them in COMMIT, and nobody knows whether that happened:
// the ledger must.
func TestPostgreSQLCrashesDuringTheLoad(t *testing.T) {
	ctx := t.Context()
	cluster, err := pgtemp.Start(ctx, pgtemp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	}()

	var once sync.Once
	var crash sync.WaitGroup
	r, err := Run(ctx, Options{
		Database: cluster.URL(),
		Duration: 3 * time.Second,
		Wait:     time.Minute,
		Output: writerFunc(func(b []byte) (int, error) {
			t.Logf("%s", b)
			if bytes.HasPrefix(b, []byte("committed")) {
				once.Do(func() {
					crash.Go(func() {
						if err := cluster.Restart(ctx, pgtemp.Immediate); err != nil {
							t.Error(err)
						}
					})
				})
			}
			return len(b), nil
		}),
	})
	crash.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	checkComplete(t, r)
	t.Logf("%+v", r)
}
