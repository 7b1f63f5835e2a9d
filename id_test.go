package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/pgtest"
)

func TestNewIDIsUUIDv7(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	id := outbox.NewID()
	after := time.Now()
	// The process may have run ahead of its clock by a tick or two.
	if got := id.Time(); got.Before(before) || got.After(after.Add(time.Second)) {
		t.Errorf("Time() = %v, want between %v and %v", got, before, after)
	}
	s := id.String()
	if s[14] != '7' || !strings.ContainsRune("89ab", rune(s[19])) {
		t.Errorf("%s: not a UUID of version 7 and the RFC's variant", s)
	}
}

func TestNewIDRises(t *testing.T) {
	const workers, each = 8, 5000
	ids := make([][]outbox.ID, workers)
	var wg sync.WaitGroup
	for w := range ids {
		wg.Go(func() {
			for range each {
				ids[w] = append(ids[w], outbox.NewID())
			}
		})
	}
	wg.Wait()
	seen := map[outbox.ID]bool{}
	for w := range ids {
		for i, id := range ids[w] {
			if seen[id] {
				t.Fatalf("%s was made twice", id)
			}
			seen[id] = true
			if i > 0 && ids[w][i-1].String() >= id.String() {
				t.Fatalf("%s came before %s", ids[w][i-1], id)
			}
		}
	}
}

func TestIDText(t *testing.T) {
	const s = "01890a5d-ac96-774b-bcce-b302099a8057"
	id, err := outbox.ParseID(strings.ToUpper(s))
	if err != nil {
		t.Fatal(err)
	}
	if id.String() != s {
		t.Errorf("String() = %s, want %s", id, s)
	}
	if got, want := id.Time(), time.UnixMilli(0x01890a5dac96); !got.Equal(want) {
		t.Errorf("Time() = %v, want %v", got, want)
	}
	b, err := json.Marshal(map[outbox.ID]outbox.ID{id: id})
	if want := `{"` + s + `":"` + s + `"}`; err != nil || string(b) != want {
		t.Errorf("as JSON %s, %v, want %s", b, err, want)
	}
	var back map[outbox.ID]outbox.ID
	if err := json.Unmarshal(b, &back); err != nil || back[id] != id {
		t.Errorf("from JSON %v, %v", back, err)
	}
	if v4, _ := outbox.ParseID("9b0a6a4e-6c1f-4f0e-9f3b-0f2a7d0c1e55"); !v4.Time().IsZero() || v4.IsZero() {
		t.Errorf("a UUIDv4 has time %v, zero %t", v4.Time(), v4.IsZero())
	}
	if !(outbox.ID{}).IsZero() {
		t.Error("the zero ID is not zero")
	}
	for _, bad := range []string{"", s[1:], s + "0", strings.ReplaceAll(s, "-", ""), "g" + s[1:], strings.Replace(s, "-", "_", 1)} {
		if id, err := outbox.ParseID(bad); err == nil || !id.IsZero() {
			t.Errorf("ParseID(%q) = %v, %v, want an error", bad, id, err)
		}
	}
}

func TestIDWithPgx(t *testing.T) {
	ctx := context.Background()
	pool := pgtest.Pool(t)
	id, other := outbox.NewID(), outbox.NewID()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			var got, fromText outbox.ID
			var null, set *outbox.ID
			err := pool.QueryRow(ctx, `SELECT $1::uuid, $1::uuid::text, NULL::uuid, $1::uuid`, mode, id).Scan(&got, &fromText, &null, &set)
			if err != nil {
				t.Fatal(err)
			}
			if got != id || fromText != id || null != nil || set == nil || *set != id {
				t.Errorf("got %v, %v, %v, %v, want %v", got, fromText, null, set, id)
			}
			if err := pool.QueryRow(ctx, `SELECT NULL::uuid`, mode).Scan(&got); err == nil {
				t.Errorf("NULL was scanned into an ID: %v", got)
			}
		})
	}
	var many []outbox.ID
	if err := pool.QueryRow(ctx, `SELECT $1::uuid[]`, []outbox.ID{id, other}).Scan(&many); err != nil {
		t.Fatal(err)
	}
	if len(many) != 2 || many[0] != id || many[1] != other {
		t.Errorf("array: got %v, want %v", many, []outbox.ID{id, other})
	}
}

func TestIDWithDatabaseSQL(t *testing.T) {
	db, err := sql.Open("pgx", pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	id := outbox.NewID()
	var got, raw outbox.ID
	var null *outbox.ID
	err = db.QueryRowContext(t.Context(), `SELECT $1::uuid, uuid_send($1::uuid), NULL::uuid`, id).Scan(&got, &raw, &null)
	if err != nil {
		t.Fatal(err)
	}
	if got != id || raw != id || null != nil {
		t.Errorf("got %v, %v, %v, want %v", got, raw, null, id)
	}
}
