package migrate

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/commitrelay/outbox"
	"github.com/commitrelay/outbox/internal/ident"
)

// The bounds of Options.Slots and Options.SlotWidth. Each slot is a table that every poll looks into.
const (
	minSlots     = 2
	maxSlots     = 64
	minSlotWidth = time.Second
)

// Options say how the tables look. The zero value of a field means its default.
type Options struct {
	// Table is the events table: "table" or "schema.table", names as they stand in the catalog,
	// capitals included; one that holds a dot is written in double quotes. Its schema must exist.
	// Without a schema Up takes the first one of the search_path, and the installation remembers it.
	// Default "public.outbox_events".
	Table string

	// Schema holds commitrelay's own tables; Up makes it. One schema serves one events table.
	// Default "commitrelay".
	Schema string

	// Payload is the type of the payload column. Default outbox.PayloadJSON.
	Payload outbox.PayloadType

	// SlotWidth is the time after which new events go to the next slot of the wheel, and the last
	// one may be emptied: whole seconds. Minutes and less are for tests. Default 1 h.
	SlotWidth time.Duration

	// Slots is the number of slots on the wheel, 2 to 64. Events are kept for at most
	// (Slots - 2) x SlotWidth, unless they are not settled. Default 8.
	Slots int

	// Writers and Relays are roles, as they stand in the catalog, that get the least rights to
	// write events and to run relays. The roles must exist. Default none.
	Writers, Relays []string
}

// layout is Options, parsed and complete but for the events table's schema, which may be empty.
type layout struct {
	schema  string
	events  ident.Table
	payload outbox.PayloadType
	width   time.Duration
	slots   int
	writers []string
	relays  []string
}

// parse completes o with the defaults and reports all its faults at once.
func (o Options) parse() (layout, error) {
	l := layout{
		schema:  orDefault(o.Schema, "commitrelay"),
		payload: orDefault(o.Payload, outbox.PayloadJSON),
		width:   orDefault(o.SlotWidth, time.Hour),
		slots:   orDefault(o.Slots, 8),
		writers: o.Writers,
		relays:  o.Relays,
	}
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var err error
	if l.events, err = ident.Parse(orDefault(o.Table, "public.outbox_events")); err != nil {
		errs = append(errs, err)
	}
	if err := ident.Valid(l.schema); err != nil {
		fault("schema: %w", err)
	}
	switch l.payload {
	case outbox.PayloadJSON, outbox.PayloadJSONB, outbox.PayloadBytea, outbox.PayloadText:
	default:
		fault("payload type %q is not known: want json, jsonb, bytea or text", string(l.payload))
	}
	if l.width < minSlotWidth || l.width%time.Second != 0 {
		fault("slot width %v: want whole seconds, at least %v", l.width, minSlotWidth)
	}
	if l.slots < minSlots || l.slots > maxSlots {
		fault("%d slots: want %d to %d", l.slots, minSlots, maxSlots)
	}
	for _, role := range slices.Concat(l.writers, l.relays) {
		if err := ident.Valid(role); err != nil {
			fault("role: %w", err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return layout{}, fmt.Errorf("migrate: options: %w", err)
	}
	return l, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// leaf is the name of the table behind a slot.
func (l layout) leaf(slot int) string { return l.derived("_s" + strconv.Itoa(slot)) }

// sequence is the name that the sequence behind seq gets.
func (l layout) sequence() ident.Table {
	return ident.Table{Schema: l.events.Schema, Name: l.derived("_seq")}
}

// derived is the events table's name and a suffix; a name too long for that is cut, and made
// unique by a hash.
func (l layout) derived(suffix string) string {
	const room = 63 - len("_seq") // the longest suffix, so that all names of a table are cut alike
	name := l.events.Name
	if len(name) > room {
		h := fnv.New32a()
		_, _ = h.Write([]byte(name))
		hash := fmt.Sprintf("_%08x", h.Sum32())
		cut := room - len(hash)
		for !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + hash
	}
	return name + suffix
}

// leaves are the names of all slots' tables, in order.
func (l layout) leaves() []string {
	names := make([]string, l.slots)
	for i := range names {
		names[i] = l.leaf(i)
	}
	return names
}

// vars are the variables of the .sql files.
func (l layout) vars() map[string]string {
	return map[string]string{
		"schema":        l.schema,
		"events_schema": l.events.Schema,
		"events_table":  l.events.Name,
		"events":        l.events.String(),
		"sequence":      l.sequence().Name,
		"payload_type":  string(l.payload),
		"slots":         strconv.Itoa(l.slots),
		"slot_seconds":  strconv.FormatInt(int64(l.width/time.Second), 10),
		"version":       strconv.Itoa(Version),
	}
}

// options is the layout as a user would write it.
func (l layout) options() Options {
	return Options{
		Table: tableName(l.events), Schema: l.schema, Payload: l.payload,
		SlotWidth: l.width, Slots: l.slots, Writers: l.writers, Relays: l.relays,
	}
}
