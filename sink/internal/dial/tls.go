package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLS makes a configuration of PEM files: ca holds the authorities that are trusted instead of
// the system's; cert and key are the client's own certificate, both or neither. It returns nil
// if none is given. Files are read at each call, so that a renewed certificate is used by the
// next connection.
func TLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" && cert == "" && key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA file %s: holds no certificate in PEM", ca)
		}
	}
	switch {
	case (cert == "") != (key == ""):
		return nil, errors.New("a client certificate needs both its certificate file and its key file")
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
