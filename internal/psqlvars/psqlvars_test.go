package psqlvars

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRender(t *testing.T) {
	vars := map[string]string{
		"t": `My"App`, "s": `O'Re\illy`, "plain": "it's", "n": "3600", "p": "jsonb", "a": "word", "b": "other",
	}
	for _, c := range []struct{ name, sql, want string }{
		{"identifier", `SELECT * FROM :"t"`, `SELECT * FROM "My""App"`},
		{"two identifiers", `:"a".:"b"`, `"word"."other"`},
		{"literal", `SELECT :'plain'`, `SELECT 'it''s'`},
		{"literal with a backslash", `SELECT :'s'`, `SELECT  E'O''Re\\illy'`},
		{"bare", `x / :n)::smallint, payload :p`, `x / 3600)::smallint, payload jsonb`},
		{"cast", `$1::n, x::"a", 'x'::p, :n::p`, `$1::n, x::"a", 'x'::p, 3600::p`},
		{"assignment", `a := :n`, `a := 3600`},
		{"string", `SELECT ':n', 'it''s :n', :n`, `SELECT ':n', 'it''s :n', 3600`},
		{"string that ends in a backslash", `SELECT '\', :n`, `SELECT '\', 3600`},
		{"escape string", `SELECT E'\' :n', e'\\', :n`, `SELECT E'\' :n', e'\\', 3600`},
		{"no escape string inside a word", `SELECT name'\', :n`, `SELECT name'\', 3600`},
		{"quoted identifier", `SELECT ":n", "a"":n", :n`, `SELECT ":n", "a"":n", 3600`},
		{"line comment", "-- it's :n :x\nSELECT :n", "-- it's :n :x\nSELECT 3600"},
		{"block comment", `/* :x /* it's :x */ :x */ :n`, `/* :x /* it's :x */ :x */ 3600`},
		{"dollar quote", `DO $$ ':x $f$ :x $$; $f$ :x $$ :x $f$ :n $1 :n`, `DO $$ ':x $f$ :x $$; $f$ :x $$ :x $f$ 3600 $1 3600`},
		{"parameters", `$1:n $2`, `$13600 $2`},
		{"dollar inside a word", `a$b$ :n`, `a$b$ 3600`},
		{"slice", `ahead[1:2]`, `ahead[1:2]`},
		{"lone colon", `: :' :" :`, `: :' :" :`},
		{"minus", `:n-:n - :n`, `3600-3600 - 3600`},
		{"division", `:n/:n`, `3600/3600`},
		{"beyond ASCII", `SELECT 'ü', ü:n, "ß"`, `SELECT 'ü', ü3600, "ß"`},
		{"unfinished string", `SELECT 'a :x`, `SELECT 'a :x`},
		{"unfinished comment", `SELECT /* :x`, `SELECT /* :x`},
		{"unfinished dollar quote", `SELECT $a$ :x`, `SELECT $a$ :x`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Render(c.sql, vars)
			if err != nil {
				t.Fatalf("Render(%q): %v", c.sql, err)
			}
			if got != c.want {
				t.Errorf("Render(%q)\n got %q\nwant %q", c.sql, got, c.want)
			}
		})
	}
}

func TestRenderRefuses(t *testing.T) {
	vars := map[string]string{"evil": "1; DROP TABLE x", "empty": "", "zero": "a\x00b"}
	for sql, want := range map[string]string{
		`:"nope"`:  `variable :"nope" has no value`,
		`:'nope'`:  `variable :'nope' has no value`,
		`:nope`:    `variable :nope has no value`,
		`:evil`:    `is not a word`,
		`:empty`:   `is not a word`,
		`:"empty"`: `an identifier is empty`,
		`:"zero"`:  `holds a zero byte`,
		`:'zero'`:  `holds a zero byte`,
	} {
		if got, err := Render(sql, vars); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Render(%q) = %q, %v; want an error with %q", sql, got, err, want)
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add(`SELECT E'\'' || :"a" /* x */ $f$ :'b' $f$`)
	f.Fuzz(func(t *testing.T, sql string) {
		if strings.Contains(sql, ":") {
			return
		}
		if got, err := Render(sql, nil); err != nil || got != sql {
			t.Errorf("Render(%q) = %q, %v; want it unchanged", sql, got, err)
		}
	})
}
