package outbox

// PayloadType is the type of the payload column, chosen when the tables are made.
type PayloadType string

// The payload types. The zero value means PayloadJSON.
const (
	PayloadJSON  PayloadType = "json"  // the default: the writer's bytes are kept, and PostgreSQL checks that they are JSON
	PayloadJSONB PayloadType = "jsonb" // normalised by PostgreSQL; costs more to read
	PayloadBytea PayloadType = "bytea" // any bytes
	PayloadText  PayloadType = "text"  // any text without zero bytes
)
