package outbox

// MaxNameLength is the most bytes that AggregateType, AggregateID, Type and the name of a header may
// have: that of a routing key, a message type and a header name in AMQP.
const MaxNameLength = 255

// MaxHeadersSize is the most bytes that an event's headers may have together, those of Writer.Trace
// included: their names, their values, and 4 more for each, as on the wire of NATS and HTTP.
const MaxHeadersSize = 16 << 10

// Event is one row of the outbox.
//
// AggregateType and AggregateID together are the event's key: events of one key keep their
// order all the way to the broker. The zero ID is filled in by Writer.Write.
//
// All text is valid UTF-8. The names and the headers travel as headers of messages, where white space
// at their ends gets lost and control characters are not allowed; so they have neither.
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

	// Headers travel beside the payload, at most MaxHeadersSize bytes. A name is at most
	// MaxNameLength of the characters that HTTP allows: letters, digits and !#$%&'*+-.^_`|~. Names
	// that begin with "outbox-", in any case, are the relay's own. Nil means none.
	Headers map[string]string
}
