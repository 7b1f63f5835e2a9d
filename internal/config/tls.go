package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS says how a sink's broker is trusted, and how we show who we are. The zero value trusts the
// system's certificates.
type TLS struct {
	CAFile             string
	CertFile, KeyFile  string
	ServerName         string // checked against the certificate; empty: the host of the URL
	InsecureSkipVerify bool
}

// Config reads the files. Nil says that nothing is set.
func (t TLS) Config() (*tls.Config, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	var errs []error
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("ca_file: %w", err))
		default:
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(pem) {
				errs = append(errs, fmt.Errorf("ca_file: %s holds no certificate in PEM form", t.CAFile))
			}
		}
	}
	switch {
	case (t.CertFile == "") != (t.KeyFile == ""):
		errs = append(errs, errors.New("cert_file and key_file go together"))
	case t.CertFile != "":
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			errs = append(errs, fmt.Errorf("cert_file, key_file: %w", err))
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, errors.Join(errs...)
}

func (s *section) tls(t *TLS) {
	n := s.child("tls")
	in := s.section(s.path+".tls", "sinks.*.tls", n)
	in.quiet = s.quiet
	in.filePath("ca_file", &t.CAFile)
	in.filePath("cert_file", &t.CertFile)
	in.filePath("key_file", &t.KeyFile)
	in.text("server_name", &t.ServerName)
	in.yes("insecure_skip_verify", &t.InsecureSkipVerify)
	in.done()
	if s.quiet {
		return
	}
	if _, err := t.Config(); err != nil {
		for _, err := range unjoin(err) {
			s.faultf(in.here(), "%v", err)
		}
	}
}

func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}
