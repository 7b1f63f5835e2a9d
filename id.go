package outbox

import (
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync/atomic"
	"time"
)

// ID identifies an event: a UUID. It is a plain value, comparable, and usable as an argument and
// as a scan target of a uuid column, with pgx and with database/sql. An ID that may be NULL is
// scanned into a *ID.
type ID [16]byte

var (
	_ fmt.Stringer             = ID{}
	_ encoding.TextMarshaler   = ID{}
	_ encoding.TextUnmarshaler = (*ID)(nil)
	_ driver.Valuer            = ID{}
	_ sql.Scanner              = (*ID)(nil)
)

// newest is the time of the newest id this process has made, in 1/4096 of a millisecond. It is
// the one variable of the package: ids of one process shall rise, whoever makes them.
var newest atomic.Int64

// NewID makes a UUIDv7 (RFC 9562): the time, then 62 random bits. The ids of one process rise in
// the order of the calls, unless its clock is set back by more than a second. Of several processes
// they rise as well as their clocks agree: an id says roughly when, the outbox says in which order.
// Safe for concurrent use.
func NewID() ID {
	const second = 1000 << 12
	now := time.Now().UnixNano()
	tick := now/1e6<<12 | now%1e6<<12/1e6
	for {
		last := newest.Load()
		next := tick
		// A clock that was wrong by more than a second and is right again shall be believed.
		if next <= last && last-next <= second {
			next = last + 1
		}
		if newest.CompareAndSwap(last, next) {
			tick = next
			break
		}
	}
	var id ID
	_, _ = rand.Read(id[8:]) // never fails, says crypto/rand
	binary.BigEndian.PutUint64(id[:8], uint64(tick>>12<<16|tick&0xfff|0x7000))
	id[8] = id[8]&0x3f | 0x80
	return id
}

// ParseID reads the usual form of a UUID, 36 characters with hyphens, in either case, of any
// version.
func ParseID(s string) (ID, error) {
	var id ID
	if err := id.parse(s); err != nil {
		return ID{}, err
	}
	return id, nil
}

func (id *ID) parse(s string) error {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return fmt.Errorf("id %.40q: want a UUID, 36 characters as 01890a5d-ac96-774b-bcce-b302099a8057", s)
	}
	var u ID
	if _, err := hex.Decode(u[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err != nil {
		return fmt.Errorf("id %q: %w", s, err)
	}
	*id = u
	return nil
}

// String is the id in the usual form, lower case.
func (id ID) String() string { return string(id.text()) }

func (id ID) text() []byte {
	b := make([]byte, 0, 36)
	for i, from := range [...]int{0, 4, 6, 8, 10} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, id[from:[...]int{4, 6, 8, 10, 16}[i]])
	}
	return b
}

// Time is when the id was made, to the millisecond, by the clock of the machine that made it. Only
// a UUIDv7 knows; of others, as gen_random_uuid() makes for rows inserted without an id, it is the
// zero Time.
func (id ID) Time() time.Time {
	if id[6]>>4 != 7 || id[8]>>6 != 2 {
		return time.Time{}
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(id[:8]) >> 16))
}

// IsZero says whether id is the zero value, which stands for "none yet".
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText is String.
func (id ID) MarshalText() ([]byte, error) { return id.text(), nil }

// UnmarshalText is ParseID.
func (id *ID) UnmarshalText(b []byte) error { return id.parse(string(b)) }

// Value gives database/sql and pgx the id as text.
func (id ID) Value() (driver.Value, error) { return id.String(), nil }

// Scan takes a uuid as drivers hand it over: as text, or as 16 bytes. NULL is an error.
func (id *ID) Scan(src any) error {
	switch src := src.(type) {
	case string:
		return id.parse(src)
	case []byte:
		if len(src) == len(id) {
			copy(id[:], src)
			return nil
		}
		return id.parse(string(src))
	case [16]byte:
		*id = src
		return nil
	case nil:
		return fmt.Errorf("scan an id: the value is NULL; scan into a *outbox.ID")
	}
	return fmt.Errorf("scan an id: cannot read a %T", src)
}
