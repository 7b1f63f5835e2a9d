package outbox

import (
	"encoding/hex"
	"strings"

	"github.com/commitrelay/outbox/internal/ident"
)

// row is an event on its way into the table.
type row struct {
	*Event
	headers map[string]string // with those of Writer.Trace
}

// The columns that a writer names, and may name: xid, seq, slot and created_at are the table's own.
const columns = "id, aggregate_type, aggregate_id, event_type, payload, headers"

// insert is the one statement that writes all rows, and its arguments.
//
// It wants nothing of the driver but text (and bytes for a single bytea payload) and lets the server
// convert: so the same statement runs through pgx in every mode, through lib/pq, and behind a
// pooler. It wants no right but INSERT on the columns it names: hence no RETURNING. It has two texts
// at most, however many rows there are, for the sake of statement caches.
func insert(table ident.Table, payload PayloadType, rows []row) (sql string, args []any) {
	if len(rows) == 1 {
		return insertOne(table, payload, rows[0])
	}
	return insertMany(table, payload, rows)
}

func insertOne(table ident.Table, payload PayloadType, r row) (string, []any) {
	cast := "$5::text::" + string(payload)
	var body, headers any // nil is NULL
	if r.Payload != nil {
		body = string(r.Payload)
	}
	if payload == PayloadBytea {
		cast = "$5::bytea"
		if r.Payload != nil {
			body = r.Payload
		}
	}
	if text, ok := headersJSON(r.headers); ok {
		headers = text
	}
	return "INSERT INTO " + table.String() + " (" + columns + ")\n" +
			"VALUES ($1::text::uuid, $2::text, $3::text, $4::text, " + cast + ", $6::text::jsonb)",
		[]any{r.ID.String(), r.AggregateType, r.AggregateID, r.Type, body, headers}
}

// insertMany sends each column as one array. The rows get their numbers in the order of the
// arguments, because defaults are computed after ORDER BY.
func insertMany(table ident.Table, payload PayloadType, rows []row) (string, []any) {
	cast := "e.payload::" + string(payload)
	if payload == PayloadBytea {
		cast = "decode(e.payload, 'hex')"
	}
	var ids, aggregateTypes, aggregateIDs, types, payloads, headers array
	for _, r := range rows {
		ids.add(r.ID.String())
		aggregateTypes.add(r.AggregateType)
		aggregateIDs.add(r.AggregateID)
		types.add(r.Type)
		switch {
		case r.Payload == nil:
			payloads.addNull()
		case payload == PayloadBytea:
			payloads.add(hex.EncodeToString(r.Payload))
		default:
			payloads.add(string(r.Payload))
		}
		if text, ok := headersJSON(r.headers); ok {
			headers.add(text)
		} else {
			headers.addNull()
		}
	}
	return "INSERT INTO " + table.String() + " (" + columns + ")\n" +
			"SELECT e.id, e.aggregate_type, e.aggregate_id, e.event_type, " + cast + ", e.headers::jsonb\n" +
			"FROM unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[])\n" +
			"    WITH ORDINALITY AS e (" + columns + ", position)\n" +
			"ORDER BY e.position",
		[]any{ids.text(), aggregateTypes.text(), aggregateIDs.text(), types.text(), payloads.text(), headers.text()}
}

// array builds PostgreSQL's text form of an array.
type array struct{ b strings.Builder }

func (a *array) next() {
	if a.b.Len() == 0 {
		a.b.WriteByte('{')
	} else {
		a.b.WriteByte(',')
	}
}

// add appends an element. Between quotes only the quote and the backslash mean anything.
func (a *array) add(s string) {
	a.next()
	a.b.WriteByte('"')
	for {
		i := strings.IndexAny(s, `"\`)
		if i < 0 {
			break
		}
		a.b.WriteString(s[:i])
		a.b.WriteByte('\\')
		a.b.WriteByte(s[i])
		s = s[i+1:]
	}
	a.b.WriteString(s)
	a.b.WriteByte('"')
}

func (a *array) addNull() {
	a.next()
	a.b.WriteString("NULL")
}

// text ends the array. There is at least one element.
func (a *array) text() string {
	a.b.WriteByte('}')
	return a.b.String()
}
