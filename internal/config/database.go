package config

import (
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/commitrelay/outbox/internal/ident"
)

func (r *reader) database(s *section, db *Database) {
	var url, direct string
	v, ok := s.text("url", &url)
	if !ok {
		// DATABASE_URL is many a program's: it counts only where nothing is said to us.
		if url, ok = r.env["DATABASE_URL"]; ok {
			v = value{path: "database", key: "url", at: "DATABASE_URL", text: url, hidden: true}
		}
	}
	switch {
	case r.offline:
	case !ok || (url == "" && !v.bad):
		if v.at == "" {
			v = s.here()
		}
		r.faultf(value{path: "database", key: "url", at: v.at, line: v.line},
			"not set: give --database or COMMITRELAY_DATABASE_URL, or write it into the file that --config names")
	case !v.bad:
		r.checkDatabaseURL(v)
	}
	if v, ok := s.text("direct_url", &direct); ok && !v.bad && direct != "" {
		r.checkDatabaseURL(v)
	}
	db.URL, db.DirectURL = URL(url), URL(direct)
	s.secret("password", &db.Password)

	var table string
	if v, ok := s.text("table", &table); ok && !v.bad {
		t, err := ident.Parse(table)
		switch {
		case err != nil && v.hidden:
			r.faultf(v, "not a table's name: want table or schema.table")
		case err != nil:
			r.faultf(v, "%v", err)
		default:
			db.Table = t
		}
	}
	if v, ok := s.text("schema", &db.Schema); ok && !v.bad {
		if err := ident.Valid(db.Schema); err != nil {
			r.faultf(v, "not a schema's name: want 1 to 63 bytes")
		}
	}
	s.duration("retention", &db.Retention, 0)
	layout := "log"
	if v, ok := s.choice("layout", &layout, "log", "queue"); ok && layout == "queue" {
		r.faultf(v, "queue: not in this version (this version has the layout log)")
	}
	s.done()
}

// checkDatabaseURL says whether pgx can read a URL, without showing anything of it.
func (r *reader) checkDatabaseURL(v value) {
	if strings.HasPrefix(v.text, "postgres://") || strings.HasPrefix(v.text, "postgresql://") {
		if head, _, _ := strings.Cut(v.text, "?"); strings.Count(head, "@") > 1 {
			r.faultf(v, "more than one @: in the password, write %%40 for @, %%2F for /, %%3A for :, %%25 for %%; or put it into a file (password_file)")
			return
		}
	} else if strings.Contains(v.text, "://") {
		r.faultf(v, "not a PostgreSQL URL: it begins with postgres://")
		return
	}
	if _, err := pgconn.ParseConfig(v.text); err != nil {
		r.faultf(v, "not a PostgreSQL URL: %s", whyNotParsed(err))
	}
}

// whyNotParsed puts pgx's reason into words of our own. pgx masks what it can, but a URL that
// does not parse does not tell where its password ends, so nothing of it is repeated.
func whyNotParsed(err error) string {
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:]
	for _, known := range []struct{ begins, words string }{
		{": failed to configure TLS", "sslmode is none that exists, or a certificate that it names cannot be read"},
		{": could not match", "the number of ports does not fit the number of hosts"},
		{": invalid connect_timeout", "connect_timeout is not a number of seconds"},
		{": unknown target_session_attrs", "target_session_attrs is none that exists"},
		{": failed to read service", "the service cannot be read"},
	} {
		if strings.HasPrefix(text, known.begins) {
			return known.words
		}
	}
	return "in the password, write %40 for @, %2F for /, %3A for :, %25 for %; or put it into a file (password_file)"
}
