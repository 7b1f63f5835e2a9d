package outbox_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/migrate"
)

// Any events that pass the checks come back as they were written, in one statement or several, in
// a mode of pgx with statements and types or one with neither.
func TestAnyValidEventsComeBack(t *testing.T) {
	for _, p := range payloads {
		if p.typ == outbox.PayloadJSONB {
			continue // PostgreSQL changes it
		}
		t.Run(string(p.typ), func(t *testing.T) {
			pool := newOutbox(t, migrate.Options{Payload: p.typ})
			w := outbox.Writer{Payload: p.typ}
			simple := pool.Config().ConnConfig
			simple.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			conn, err := pgx.ConnectConfig(t.Context(), simple)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			rapid.Check(t, func(rt *rapid.T) {
				events := rapid.SliceOfN(genEvent(p.typ), 1, 5).Draw(rt, "events")
				var want []outbox.Event
				var tx pgx.Tx
				if rapid.Bool().Draw(rt, "simple protocol") {
					tx, err = conn.Begin(t.Context())
				} else {
					tx, err = pool.Begin(t.Context())
				}
				if err != nil {
					rt.Fatal(err)
				}
				defer tx.Rollback(t.Context())
				if err := w.Write(t.Context(), tx, events...); err != nil {
					rt.Fatal(err)
				}
				for _, e := range events {
					want = append(want, *e)
				}
				got := stored(t, tx, "outbox_events", p.bytes)
				if d := cmp.Diff(want, got, emptyHeadersAreNone); d != "" {
					rt.Fatalf("(-want +got):\n%s", d)
				}
			})
		})
	}
}

var emptyHeadersAreNone = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Headers" }, cmpopts.EquateEmpty())

func genEvent(typ outbox.PayloadType) *rapid.Generator[*outbox.Event] {
	// Printable characters of all planes; those that SQL and array literals use are made frequent.
	char := rapid.OneOf(rapid.SampledFrom([]rune(`'"\{},$:;%&<>-_`)), rapid.RuneFrom([]rune("aé😀")), rapid.Rune().Filter(func(r rune) bool { return r > ' ' && r != 0x7f }))
	name := rapid.StringOfN(char, 1, -1, outbox.MaxNameLength)
	token := rapid.StringMatching("[a-np-zA-NP-Z0-9!#$%&'*+.^_`|~-]{1,20}")
	var payload *rapid.Generator[[]byte]
	switch typ {
	case outbox.PayloadBytea:
		payload = rapid.SliceOf(rapid.Byte())
	case outbox.PayloadText:
		payload = rapid.Map(rapid.StringOf(rapid.OneOf(char, rapid.RuneFrom([]rune("\t\r\n\x01\x7f ")))), func(s string) []byte { return []byte(s) })
	default:
		payload = rapid.Map(rapid.MapOf(rapid.StringOf(char), rapid.SliceOf(rapid.OneOf(
			rapid.Map(rapid.StringOf(char), func(s string) any { return s }),
			rapid.Map(rapid.Float64(), func(f float64) any { return f }),
			rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		))), func(v map[string][]any) []byte {
			b, err := json.MarshalIndent(v, "", "\t")
			if err != nil {
				panic(err)
			}
			return b
		})
	}
	return rapid.Custom(func(t *rapid.T) *outbox.Event {
		e := &outbox.Event{
			AggregateType: name.Draw(t, "aggregate type"),
			AggregateID:   name.Draw(t, "aggregate id"),
			Type:          name.Draw(t, "type"),
			Headers:       rapid.MapOfN(token, name, 0, 3).Draw(t, "headers"),
		}
		if rapid.Bool().Draw(t, "with id") {
			e.ID = outbox.NewID()
		}
		if rapid.Bool().Draw(t, "with payload") {
			e.Payload = payload.Draw(t, "payload")
			if e.Payload == nil {
				e.Payload = []byte{}
			}
		}
		return e
	})
}
