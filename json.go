package outbox

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds how deep arrays and objects may be nested. PostgreSQL takes more (10,000 and some
// with its default max_stack_depth, 500 and some with the least); Jackson and Python take this much.
const maxDepth = 1000

// maxJSONFaults bounds the faults reported of one payload.
const maxJSONFaults = 10

// jsonFault is a fault inside a JSON text.
type jsonFault struct {
	offset int    // byte
	path   string // as $.items[3].name
	reason string
}

// checkJSON says what is wrong with a JSON text, and how many bytes jsonb would print it in (at most:
// keys that are repeated and characters that are escaped count as they are written).
//
// What it accepts, PostgreSQL accepts. What PostgreSQL accepts it refuses in these cases: nesting
// deeper than maxDepth; and, in a json column, \u0000 and halves of surrogate pairs. The column would
// keep them, but jsonb, ->> and most consumers' strings cannot.
func checkJSON(text []byte, jsonb bool) (faults []jsonFault, printed int) {
	s := jsonScan{b: text, jsonb: jsonb}
	s.space()
	if s.value() {
		s.space()
		if s.i < len(s.b) {
			s.fail("there is more after the end of the value")
		}
	}
	return s.faults, s.printed
}

type jsonScan struct {
	b       []byte
	i       int
	jsonb   bool
	path    []jsonStep
	printed int
	faults  []jsonFault
}

// jsonStep is one step of a path: a key, as it is written, or an index.
type jsonStep struct {
	key   []byte // nil in an array
	index int
}

// note records a fault that the scan survives.
func (s *jsonScan) note(offset int, reason string) {
	if len(s.faults) < maxJSONFaults {
		s.faults = append(s.faults, jsonFault{offset, s.pathString(), reason})
	}
}

// fail records a fault that ends the scan. It always returns false.
func (s *jsonScan) fail(reason string) bool {
	if s.i >= len(s.b) {
		reason = "the text ends too early"
	}
	s.note(s.i, "is not valid JSON: "+reason)
	return false
}

func (s *jsonScan) pathString() string {
	const most, mostKey = 20, 40
	var p strings.Builder
	p.WriteByte('$')
	for i, step := range s.path {
		if i == most {
			p.WriteString("...")
			break
		}
		key, cut := step.key, ""
		if len(key) > mostKey {
			key, cut = key[:mostKey], "..."
		}
		switch {
		case step.key == nil:
			fmt.Fprintf(&p, "[%d]", step.index)
		case cut == "" && isWord(key):
			fmt.Fprintf(&p, ".%s", key)
		default:
			fmt.Fprintf(&p, `["%s%s"]`, strings.ToValidUTF8(string(key), "\uFFFD"), cut)
		}
	}
	return p.String()
}

func isWord(b []byte) bool {
	for i, c := range b {
		if !(c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z' || i > 0 && isDigit(c)) {
			return false
		}
	}
	return len(b) > 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// peek is the next byte, or 0 at the end; a zero byte is nowhere valid.
func (s *jsonScan) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *jsonScan) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// value scans one value. Like all that follow it returns false once the scan has failed.
func (s *jsonScan) value() bool {
	switch c := s.peek(); {
	case c == '{':
		return s.object()
	case c == '[':
		return s.array()
	case c == '"':
		_, ok := s.str("")
		return ok
	case c == '-' || isDigit(c):
		return s.number()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	}
	return s.fail("expected a value")
}

func (s *jsonScan) word(w string) bool {
	for i := range len(w) {
		if s.peek() != w[i] {
			return s.fail("expected " + w)
		}
		s.i++
	}
	s.printed += len(w)
	return true
}

// enter steps over an opening bracket, leave over the closing one.
func (s *jsonScan) enter() bool {
	if len(s.path) == maxDepth {
		s.note(s.i, fmt.Sprintf("is nested deeper than %d levels", maxDepth))
		return false
	}
	s.path = append(s.path, jsonStep{})
	s.i++
	s.printed += 2
	s.space()
	return true
}

func (s *jsonScan) leave() bool {
	s.path = s.path[:len(s.path)-1]
	s.i++
	return true
}

func (s *jsonScan) array() bool {
	if !s.enter() {
		return false
	}
	if s.peek() == ']' {
		return s.leave()
	}
	for n := 0; ; n++ {
		s.path[len(s.path)-1].index = n
		if !s.value() {
			return false
		}
		s.space()
		switch s.peek() {
		case ']':
			return s.leave()
		case ',':
			s.i++
			s.printed += len(", ")
			s.space()
		default:
			return s.fail("expected a comma or ]")
		}
	}
}

func (s *jsonScan) object() bool {
	depth := len(s.path)
	if !s.enter() {
		return false
	}
	if s.peek() == '}' {
		return s.leave()
	}
	for {
		// While the key is scanned, the path is that of the object.
		s.path = s.path[:depth]
		if s.peek() != '"' {
			return s.fail("expected a key in double quotes")
		}
		key, ok := s.str("a key ")
		if !ok {
			return false
		}
		s.path = append(s.path, jsonStep{key: key})
		s.space()
		if s.peek() != ':' {
			return s.fail("expected a colon")
		}
		s.i++
		s.printed += len(": ")
		s.space()
		if !s.value() {
			return false
		}
		s.space()
		switch s.peek() {
		case '}':
			return s.leave()
		case ',':
			s.i++
			s.printed += len(", ")
			s.space()
		default:
			return s.fail("expected a comma or }")
		}
	}
}

// str scans a string and returns what stands between its quotes. Of what PostgreSQL or consumers
// would refuse inside, the first is noted; what it begins with says what holds it.
func (s *jsonScan) str(what string) (raw []byte, ok bool) {
	start := s.i + 1
	s.i = start
	noted := false
	note := func(offset int, reason string) {
		if !noted {
			s.note(offset, what+reason)
			noted = true
		}
	}
	high := -1 // where the first half of a surrogate pair stands that waits for the second
	for s.i < len(s.b) {
		at, c := s.i, s.b[s.i]
		size := 1
		switch {
		case c == '"', c == '\\':
		case c < 0x20:
			s.note(at, what+"is not valid JSON: a control character in a string must be escaped")
			return nil, false
		case c >= utf8.RuneSelf:
			var r rune
			if r, size = utf8.DecodeRune(s.b[at:]); r == utf8.RuneError && size == 1 {
				note(at, "holds a byte that is not UTF-8")
			}
		}
		unit := -1 // the value of a \u escape
		if c == '\\' {
			if unit, size = s.escape(); size == 0 {
				return nil, s.fail("an unknown escape in a string")
			}
		}
		low := 0xDC00 <= unit && unit <= 0xDFFF
		switch {
		case high >= 0 && !low:
			note(high, "holds half of a surrogate pair")
		case high < 0 && low:
			note(at, "holds half of a surrogate pair")
		case unit == 0:
			note(at, `holds \u0000`)
		}
		high = -1
		if 0xD800 <= unit && unit <= 0xDBFF {
			high = at
		}
		s.i += size
		if c == '"' {
			s.printed += s.i - start + 1
			return s.b[start:at:at], true
		}
	}
	return nil, s.fail("")
}

// escape reads the escape at s.i: how long it is, 0 if it is none, and for \uXXXX the value, else -1.
func (s *jsonScan) escape() (unit, size int) {
	rest := s.b[s.i:]
	if len(rest) < 2 {
		s.i = len(s.b)
		return -1, 0
	}
	if rest[1] != 'u' {
		if strings.IndexByte(`"\/bfnrt`, rest[1]) < 0 {
			return -1, 0
		}
		return -1, 2
	}
	if len(rest) < 6 {
		s.i = len(s.b)
		return -1, 0
	}
	v := 0
	for _, c := range rest[2:6] {
		switch {
		case isDigit(c):
			v = v<<4 | int(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			v = v<<4 | int(c|0x20-'a'+10)
		default:
			return -1, 0
		}
	}
	return v, 6
}

func (s *jsonScan) digits() []byte {
	start := s.i
	for isDigit(s.peek()) {
		s.i++
	}
	return s.b[start:s.i]
}

// number scans a number. In jsonb it becomes a numeric: 131072 digits before the point, 16383 after
// it, and printed without exponent, so that 1e131071 has 131072 bytes.
func (s *jsonScan) number() bool {
	start := s.i
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' && s.i+1 < len(s.b) && isDigit(s.b[s.i+1]) {
		return s.fail("a number begins with 0")
	}
	whole := s.digits()
	if len(whole) == 0 {
		return s.fail("expected a digit")
	}
	var fraction []byte
	if s.peek() == '.' {
		s.i++
		if fraction = s.digits(); len(fraction) == 0 {
			return s.fail("expected a digit")
		}
	}
	exponent := 0
	if s.peek()|0x20 == 'e' {
		s.i++
		sign := s.peek()
		if sign == '+' || sign == '-' {
			s.i++
		}
		digits := s.digits()
		if len(digits) == 0 {
			return s.fail("expected a digit")
		}
		exponent = saturated(digits)
		if sign == '-' {
			exponent = -exponent
		}
	}
	if !s.jsonb {
		return true // its text is kept
	}
	before := 1 // digits before the point
	if n := strings.TrimLeft(string(whole)+string(fraction), "0"); n != "" {
		leading := len(whole) + len(fraction) - len(n)
		before = max(1, len(whole)-leading+exponent)
	}
	after := max(0, len(fraction)-exponent)
	const mostBefore, mostAfter, mostExponent = 131072, 16383, 1e9
	if before > mostBefore || after > mostAfter || max(exponent, -exponent) >= mostExponent {
		s.note(start, "holds a number outside the range of numeric, which jsonb keeps it in")
		return true
	}
	s.printed += before + after
	if after > 0 {
		s.printed += len(".")
	}
	if s.b[start] == '-' {
		s.printed += len("-")
	}
	return true
}

// saturated is the value of decimal digits, at most a billion.
func saturated(digits []byte) int {
	n, err := strconv.Atoi(string(digits))
	if err != nil {
		return 1e9
	}
	return min(n, 1e9)
}
