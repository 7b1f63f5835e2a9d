package config

// TLS says how a sink's broker is trusted, and how we show who we are. The zero value trusts the
// system's certificates. The files are read by the sink.
type TLS struct {
	CAFile            string
	CertFile, KeyFile string
}

func (s *section) tls(t *TLS) {
	in := s.section(s.path+".tls", "sinks.*.tls", s.child("tls"))
	in.quiet = s.quiet
	in.filePath("ca_file", &t.CAFile)
	cert, hasCert := in.filePath("cert_file", &t.CertFile)
	key, hasKey := in.filePath("key_file", &t.KeyFile)
	if hasCert != hasKey && !cert.bad && !key.bad {
		s.faultf(in.here(), "cert_file and key_file go together")
	}
	var insecure bool
	in.yes("insecure_skip_verify", &insecure)
	if insecure {
		s.faultf(in.here(), "insecure_skip_verify: not in this version: name the broker's authority in ca_file")
	}
	in.done()
}
