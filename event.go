package outbox

// Event is one row of the outbox.
//
// AggregateType and AggregateID together are the event's key: events of one key keep their
// order all the way to the broker. The zero ID is filled in by Writer.Write.
type Event struct {
	// ID identifies the event everywhere: in the table, on the wire, in a consumer's inbox.
	// The zero value is replaced by NewID when the event is written.
	ID ID

	// AggregateType names the kind of thing the event is about, as "user" or "order".
	// Required, at most MaxNameLength bytes.
	AggregateType string

	// AggregateID names the one thing the event is about. Required, at most MaxNameLength bytes.
	AggregateID string

	// Type says what happened, as "UserCreated". Required, at most MaxNameLength bytes.
	Type string

	// Payload is the body. Its bytes reach the consumer as PostgreSQL returns them: unchanged
	// for json, bytea and text columns, normalised for jsonb. Nil is SQL NULL: an event without
	// a body (a tombstone, where the broker knows such a thing).
	Payload []byte

	// Headers travel beside the payload. Nil means none.
	Headers map[string]string
}
