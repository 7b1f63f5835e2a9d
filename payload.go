package outbox

// PayloadType is the type of the payload column, chosen when the tables are made.
type PayloadType string

// The payload types. The zero value means PayloadJSON.
//
// Both kinds of JSON are checked before they are sent. A string with \u0000 or half of a surrogate
// pair is refused for both: a json column would keep it, but it cannot be read with ->> or turned
// into jsonb, and consumers break on it. The text \\u0000 is harmless and passes. Nesting ends at
// 1000 levels. Whoever must send more than that, sends bytea or text.
const (
	PayloadJSON  PayloadType = "json"  // the default: the writer's bytes are kept, and PostgreSQL checks that they are JSON
	PayloadJSONB PayloadType = "jsonb" // normalised by PostgreSQL; costs more to read; numbers must fit into numeric
	PayloadBytea PayloadType = "bytea" // any bytes
	PayloadText  PayloadType = "text"  // any text without zero bytes
)
