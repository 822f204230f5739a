package members

import (
	"crypto/x509"
	"sync"
)

// Shown is the certificates that controllers have shown last, by their names. The zero value knows none.
type Shown struct{ byName sync.Map }

// Of returns that of a name; nil: it has shown none.
func (s *Shown) Of(name string) *x509.Certificate {
	certificate, _ := s.byName.Load(name)
	shown, _ := certificate.(*x509.Certificate)
	return shown
}

// Note takes note of the certificate that a controller shows.
func (s *Shown) Note(name string, certificate *x509.Certificate) { s.byName.Store(name, certificate) }
