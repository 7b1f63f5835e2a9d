package outbox

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// explain says what was being done when the database refused, and what to do about it. Drivers tell
// PostgreSQL's error code by the method SQLState: pgx and lib/pq do.
func (w *Writer) explain(err error, n int) error {
	err = fmt.Errorf("write %d events to %s: %w", n, w.table(), err)
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return err
	}
	hint := ""
	switch state.SQLState() {
	case "42P01", "3F000": // undefined_table, invalid_schema_name
		hint = "run `commitrelay migrate up` in this database, or set Writer.Table to the outbox's table"
	case "42703": // undefined_column
		hint = "the table is not the outbox that `commitrelay migrate up` makes; set Writer.Table to that one"
	case "42804": // datatype_mismatch
		hint = "set Writer.Payload to the type of the payload column"
		if t := otherPayloadType(err.Error(), w.payloadType()); t != "" {
			hint = fmt.Sprintf("the payload column is %s: set Writer.Payload to %q", t, t)
		}
	case "42501": // insufficient_privilege
		hint = "the role needs: GRANT INSERT (" + columns + ") ON " + w.table() + " TO <role>, and USAGE on its schema"
	case "22003": // numeric_value_out_of_range
		hint = "if the payload column is jsonb, set Writer.Payload to \"jsonb\": such numbers are then found before they are sent"
	default:
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}

// otherPayloadType finds, in a message in any language, the payload type that is not ours.
func otherPayloadType(message string, ours PayloadType) PayloadType {
	words := strings.FieldsFunc(message, func(r rune) bool { return !unicode.IsLetter(r) })
	for _, word := range words {
		switch t := PayloadType(word); t {
		case PayloadJSON, PayloadJSONB, PayloadBytea, PayloadText:
			if t != ours {
				return t
			}
		}
	}
	return ""
}

// taken makes an error of rows that a trigger, a rule or a policy made away with: nothing is lost silently.
func (w *Writer) taken(rows int64, n int) error {
	if rows == int64(n) {
		return nil
	}
	return fmt.Errorf("write %d events to %s: the table took %d: look for a trigger or a rule on it that drops rows, and roll back", n, w.table(), rows)
}
