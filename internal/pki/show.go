// What is in a directory of certificates.
package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Entry is one certificate.
type Entry struct {
	Name      string       `json:"name"`
	Role      Role         `json:"role"` // "authority" for the authority itself
	Addresses []netip.Addr `json:"addresses"`
	DNS       []string     `json:"dns"`
	Serial    string       `json:"serial"`
	Expires   time.Time    `json:"expires"`
	Key       bool         `json:"key"` // its key is there, too
	Problems  []string     `json:"problems"`
}

const authorityRole Role = "authority"

// Show returns what is in dir, the authority first. It says of each certificate what keeps it from being used.
func Show(dir string, now time.Time) ([]Entry, error) {
	root, err := readCertificate(certificatePath(dir, authorityName))
	if err != nil {
		return nil, fmt.Errorf("show %s: %w: `ballast ctl pki init` makes an authority", dir, err)
	}
	entries := []Entry{describe(dir, authorityName, []*x509.Certificate{root}, root, now)}
	paths, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".crt")
		if name == authorityName {
			continue
		}
		chain, err := readCertificates(path)
		if err != nil {
			entries = append(entries, Entry{Name: name, Addresses: []netip.Addr{}, DNS: []string{}, Problems: []string{err.Error()}})
			continue
		}
		entries = append(entries, describe(dir, name, chain, root, now))
	}
	return entries, nil
}

func describe(dir, name string, chain []*x509.Certificate, root *x509.Certificate, now time.Time) Entry {
	certificate := chain[0]
	entry := Entry{Name: name, Role: authorityRole, Addresses: []netip.Addr{}, DNS: []string{}, Serial: SerialOf(certificate), Expires: certificate.NotAfter, Problems: []string{}}
	problem := func(format string, args ...any) {
		entry.Problems = append(entry.Problems, fmt.Sprintf(format, args...))
	}
	if certificate != root {
		identity, err := IdentityOf(certificate)
		if err != nil {
			problem("%v", err)
		}
		entry.Role, entry.Addresses, entry.DNS = identity.Role, append(entry.Addresses, identity.Addresses...), append(entry.DNS, identity.DNS...)
		if identity.Name != name && err == nil {
			problem("it is of %s", identity.Name)
		}
		if checkChain(chain, root) != nil {
			problem("not from this authority: issue it again")
		}
	}
	switch left := certificate.NotAfter.Sub(now); {
	case left <= 0:
		problem("has expired: issue it again")
	case left < warnBefore(chain):
		problem("expires soon: issue it again")
	}
	info, err := os.Stat(keyPath(dir, name))
	entry.Key = err == nil
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		problem("others can read its key: chmod 600 %s", keyPath(dir, name))
	}
	if _, _, err := readPair(dir, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		problem("%v", err)
	}
	return entry
}

// SharedAddresses says which addresses or DNS names controllers and others both have by the certificates in dir, if the owner of name is
// one of them. That is as it should be where both run on one host. Elsewhere one that is broken into can stand in for the other by its
// address. NAME.crt must be there; what cannot be read is no certificate of anybody.
func SharedAddresses(dir, name string, now time.Time) (shared []string, err error) {
	entries, err := Show(dir, now)
	if err != nil {
		return nil, err
	}
	own := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == name && e.Role != authorityRole })
	if own < 0 {
		return nil, fmt.Errorf("there is no certificate of %s in %s", name, dir)
	}
	for i := range entries {
		other := &entries[i]
		if i == own || other.Role == "" || other.Role == authorityRole || (other.Role == Controller) == (entries[own].Role == Controller) ||
			!other.Expires.After(now) {
			continue
		}
		for _, place := range entries[own].places() {
			if slices.Contains(other.places(), place) {
				shared = append(shared, fmt.Sprintf("%s is that of %s %s, too", place, other.Role, other.Name))
			}
		}
	}
	return shared, nil
}

// places are where the owner is reached.
func (e *Entry) places() (places []string) {
	for _, address := range e.Addresses {
		places = append(places, address.String())
	}
	return append(places, e.DNS...)
}
