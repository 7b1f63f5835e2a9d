package outbox

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/commitrelay/outbox/internal/pgtest"
)

func TestCheckJSONSaysWhatAndWhere(t *testing.T) {
	for _, c := range []struct {
		text   string
		jsonb  bool
		offset int
		path   string
		reason string // a part of it; empty: valid
	}{
		{text: `{"a":[1,2,{"b":"\\u0000"}]}`},
		{text: `{"a":[1,2,{"b":"\\u0000"}]}`, jsonb: true},
		{text: " \t\r\n[ ] "},
		{text: `"\ud83d\ude00 😀"`, jsonb: true},
		{text: `{"i":1234567890123456789,"d":0.1234567890123456789012345,"t":1.10,"e":1e400,"n":-0}`, jsonb: true},
		{text: `[1e131071, 1e-16383, 0e999999]`, jsonb: true},
		{text: `1e999999999999`},
		{text: ``, offset: 0, path: "$", reason: "ends too early"},
		{text: `  `, offset: 2, path: "$", reason: "ends too early"},
		{text: `{"a":1} {}`, offset: 8, path: "$", reason: "after the end"},
		{text: `{"items":[{"name":"x"},{"name":"a\u0000b"}]}`, offset: 33, path: "$.items[1].name", reason: `holds \u0000`},
		{text: `{"a b":"\ud800"}`, offset: 8, path: `$["a b"]`, reason: "half of a surrogate pair"},
		{text: `["\udc00"]`, offset: 2, path: `$[0]`, reason: "half of a surrogate pair"},
		{text: `["\ud800\ud800\udc00"]`, offset: 2, path: `$[0]`, reason: "half of a surrogate pair"},
		{text: `["\ud800\n"]`, offset: 2, path: `$[0]`, reason: "half of a surrogate pair"},
		{text: `{"o":{"\u0000":1}}`, offset: 7, path: `$.o`, reason: `a key holds \u0000`},
		{text: "[\"a\xff\"]", offset: 3, path: "$[0]", reason: "not UTF-8"},
		{text: "[\"a\x00\"]", offset: 3, path: "$[0]", reason: "control character"},
		{text: "[\"\xed\xa0\x80\"]", offset: 2, path: "$[0]", reason: "not UTF-8"},
		{text: `{"a":01}`, offset: 5, path: "$.a", reason: "begins with 0"},
		{text: `{"a":1e131072}`, jsonb: true, offset: 5, path: "$.a", reason: "outside the range of numeric"},
		{text: `[0.10, 1e-16384]`, jsonb: true, offset: 7, path: "$[1]", reason: "outside the range of numeric"},
		{text: `[0e-16384]`, jsonb: true, offset: 1, path: "$[0]", reason: "outside the range of numeric"},
		{text: `[1.]`, offset: 3, path: "$[0]", reason: "expected a digit"},
		{text: `[-]`, offset: 2, path: "$[0]", reason: "expected a digit"},
		{text: `[tru]`, offset: 4, path: "$[0]", reason: "expected true"},
		{text: `["\x"]`, offset: 2, path: "$[0]", reason: "unknown escape"},
		{text: `["\u12g4"]`, offset: 2, path: "$[0]", reason: "unknown escape"},
		{text: `["\u12`, offset: 6, path: "$[0]", reason: "ends too early"},
		{text: `[1,]`, offset: 3, path: "$[1]", reason: "expected a value"},
		{text: `{"a":1,}`, offset: 7, path: "$", reason: "expected a key"},
		{text: `{"a" 1}`, offset: 5, path: "$.a", reason: "expected a colon"},
		{text: strings.Repeat("[", 1001) + strings.Repeat("]", 1001), offset: 1000, path: "$" + strings.Repeat("[0]", 20) + "...", reason: "deeper than 1000"},
		{text: strings.Repeat("[", 1000) + strings.Repeat("]", 1000)},
		{text: `{"` + strings.Repeat("k", 50) + `":nil}`, offset: 55, path: `$["` + strings.Repeat("k", 40) + `..."]`, reason: "expected null"},
	} {
		faults, _ := checkJSON([]byte(c.text), c.jsonb)
		switch {
		case c.reason == "" && len(faults) != 0:
			t.Errorf("%.80q: got %+v, want it accepted", c.text, faults)
		case c.reason == "":
		case len(faults) != 1:
			t.Errorf("%.80q: got %+v, want one fault", c.text, faults)
		case faults[0].offset != c.offset || faults[0].path != c.path || !strings.Contains(faults[0].reason, c.reason):
			t.Errorf("%.80q:\ngot  %+v\nwant byte %d at %s: %s", c.text, faults[0], c.offset, c.path, c.reason)
		}
	}
}

func TestCheckJSONReportsSeveral(t *testing.T) {
	faults, _ := checkJSON([]byte(`{"a":"\u0000","b":["\ud800",1e999999],"c":x}`), true)
	var paths []string
	for _, f := range faults {
		paths = append(paths, f.path)
	}
	if got, want := strings.Join(paths, " "), "$.a $.b[0] $.b[1] $.c"; got != want {
		t.Errorf("got faults at %s, want %s", got, want)
	}
	faults, _ = checkJSON([]byte("["+strings.Repeat(`"\u0000",`, 100)+"1]"), false)
	if len(faults) != maxJSONFaults {
		t.Errorf("got %d faults, want the first %d", len(faults), maxJSONFaults)
	}
}

// What we call a fault of syntax must be what encoding/json calls one.
func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,true,false,null,"x\n\u00e9"]}`, `"\ud800"`, `[1 2]`, "\"\xff\"", `01`, ``, `{"":{}}`, `1E5`, `-`, `"\u0000"`} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, jsonb bool) {
		faults, _ := checkJSON(text, jsonb)
		syntax, other := false, false
		for _, fault := range faults {
			if fault.offset < 0 || fault.offset > len(text) || !utf8.ValidString(fault.path) {
				t.Fatalf("%q: fault %+v", text, fault)
			}
			if strings.Contains(fault.reason, "not valid JSON") {
				syntax = true
			} else {
				other = true
			}
		}
		valid := json.Valid(text)
		if valid == syntax && !other {
			t.Fatalf("%q: faults %+v, encoding/json says valid is %t", text, faults, valid)
		}
		if !other && !utf8.Valid(text) && !syntax {
			t.Fatalf("%q: accepted, but it is not UTF-8", text)
		}
	})
}

// What checkJSON accepts, PostgreSQL accepts, and prints in no more bytes than foretold; what it
// refuses, PostgreSQL refuses, but for what the comment of checkJSON lists.
func TestCheckJSONAgreesWithPostgreSQL(t *testing.T) {
	pool := pgtest.Pool(t)
	_, err := pool.Exec(t.Context(), `
CREATE FUNCTION verdict(b bytea, jsonb boolean) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb THEN RETURN convert_from(b, 'UTF8')::jsonb::text; END IF;
    RETURN convert_from(b, 'UTF8')::json::text;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$`)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		texts := rapid.SliceOfN(genJSONish(), 20, 50).Draw(rt, "texts")
		for _, jsonb := range []bool{false, true} {
			rows, err := pool.Query(t.Context(), `SELECT verdict(b, $2) FROM unnest($1::bytea[]) WITH ORDINALITY AS x (b, n) ORDER BY n`, texts, jsonb)
			if err != nil {
				rt.Fatal(err)
			}
			for _, text := range texts {
				var printed *string
				if !rows.Next() {
					rt.Fatal(rows.Err())
				}
				if err := rows.Scan(&printed); err != nil {
					rt.Fatal(err)
				}
				faults, atMost := checkJSON(text, jsonb)
				switch {
				case len(faults) == 0 && printed == nil:
					rt.Fatalf("jsonb %t: PostgreSQL refuses %q", jsonb, text)
				case len(faults) != 0 && printed != nil && (jsonb || !deliberate(faults)):
					rt.Fatalf("jsonb %t: PostgreSQL accepts %q, we say %+v", jsonb, text, faults)
				case jsonb && printed != nil && len(*printed) > atMost:
					rt.Fatalf("%q: printed in %d bytes, foretold were %d", text, len(*printed), atMost)
				}
			}
			rows.Close()
			if rows.Err() != nil {
				rt.Fatal(rows.Err())
			}
		}
	})
}

// deliberate says whether a json column would have taken a text with these faults.
func deliberate(faults []jsonFault) bool {
	for _, f := range faults {
		if !strings.Contains(f.reason, `\u0000`) && !strings.Contains(f.reason, "surrogate") {
			return false
		}
	}
	return true
}

// genJSONish makes texts that are JSON, nearly JSON, or a heap of its tokens.
func genJSONish() *rapid.Generator[[]byte] {
	number := rapid.OneOf(
		rapid.StringMatching(`-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,6})?`),
		rapid.SampledFrom([]string{"1e131071", "1e131072", "1e-16383", "1e-16384", "0e-16384", "0.0001e131075", "0.0001e131076", "12e131070", "12e131071", "1.5e-16382", "1.5e-16383", "0e1073741823", "1e9999999999", "-0", "-0.00"}),
	)
	str := rapid.Map(rapid.SliceOfN(rapid.OneOf(
		rapid.SampledFrom([]string{`\u0000`, `\\u0000`, `\ud83d`, `\ude00`, `\uD83D\uDE00`, `\u00e9`, `\n`, `\"`, `\\`, `\/`, "é", "😀", " ", "/", "\u2028", "\x7f"}),
		rapid.StringMatching(`[a-z]{1,3}`)), 0, 4), func(parts []string) string { return `"` + strings.Join(parts, "") + `"` })
	scalar := rapid.OneOf(number, str, rapid.SampledFrom([]string{"true", "false", "null", "{}", "[]"}))
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		if depth == 0 {
			return scalar
		}
		return rapid.Custom(func(t *rapid.T) string {
			var parts []string
			space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				for range rapid.IntRange(0, 3).Draw(t, "n") {
					parts = append(parts, space.Draw(t, "space")+value(depth-1).Draw(t, "v")+space.Draw(t, "space"))
				}
				return "[" + strings.Join(parts, ",") + "]"
			case 1:
				for range rapid.IntRange(0, 3).Draw(t, "n") {
					parts = append(parts, space.Draw(t, "space")+str.Draw(t, "k")+space.Draw(t, "space")+":"+value(depth-1).Draw(t, "v"))
				}
				return "{" + strings.Join(parts, ",") + "}"
			}
			return scalar.Draw(t, "v")
		})
	}
	token := rapid.OneOf(rapid.SampledFrom([]string{"{", "}", "[", "]", ",", ":", `"`, `\`, " ", "-", ".", "e", "tru", "nul", "0", "\x01"}), scalar)
	heap := rapid.Map(rapid.SliceOfN(token, 0, 5), func(s []string) []byte { return []byte(strings.Join(s, "")) })
	whole := rapid.Map(value(3), func(s string) []byte { return []byte(s) })
	broken := rapid.Custom(func(t *rapid.T) []byte {
		b := append([]byte(nil), whole.Draw(t, "whole")...)
		if len(b) > 0 {
			at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				b[at] = rapid.Byte().Draw(t, "byte")
			case 1:
				b = append(b[:at], b[at+1:]...)
			case 2:
				b = b[:at]
			}
		}
		return b
	})
	return rapid.OneOf(whole, broken, heap)
}
