// Package pki makes and uses the certificates by which the parts of a fleet know each other: one authority of the fleet's own, one
// certificate per controller, load balancer, agent and operator. A certificate says its owner's role (organizational unit), name
// (common name), and the names and addresses that it answers for (subject alternative names).
package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Role is what the owner of a certificate may be.
type Role string

const (
	Controller Role = "controller"
	LB         Role = "lb"
	Agent      Role = "agent"
	Ctl        Role = "ctl"    // people and programs that use the API
	Source     Role = "source" // programs that keep services of their own, as ballast-kube does
	Etcd       Role = "etcd"   // members of an external etcd; they are no peers of ours
)

// Roles returns all roles.
func Roles() []Role { return []Role{Controller, LB, Agent, Ctl, Source, Etcd} }

// ParseRole returns the role of that name.
func ParseRole(text string) (Role, error) {
	if !slices.Contains(Roles(), Role(text)) {
		return "", fmt.Errorf("role %q: there is no such role: use one of %s", text, strings.Trim(fmt.Sprint(Roles()), "[]"))
	}
	return Role(text), nil
}

// Identity is whom a certificate speaks for.
type Identity struct {
	Role      Role
	Name      string
	Addresses []netip.Addr
	DNS       []string
}

// PeerIdentity returns who is at the other end of a connection that was made with Credentials of this package: its certificate has
// been verified.
func PeerIdentity(state tls.ConnectionState) (Identity, error) {
	if len(state.PeerCertificates) == 0 {
		return Identity{}, errors.New("the peer has shown no certificate")
	}
	return IdentityOf(state.PeerCertificates[0])
}

func IdentityOf(certificate *x509.Certificate) (Identity, error) {
	units := certificate.Subject.OrganizationalUnit
	if len(units) != 1 || certificate.Subject.CommonName == "" {
		return Identity{}, fmt.Errorf("the certificate of %q names no role: make one with `ballast ctl pki issue`", certificate.Subject.CommonName)
	}
	role, err := ParseRole(units[0])
	if err != nil {
		return Identity{}, fmt.Errorf("the certificate of %q: %w", certificate.Subject.CommonName, err)
	}
	identity := Identity{Role: role, Name: certificate.Subject.CommonName, DNS: certificate.DNSNames}
	for _, ip := range certificate.IPAddresses {
		if address, ok := netip.AddrFromSlice(ip); ok {
			identity.Addresses = append(identity.Addresses, address.Unmap())
		}
	}
	return identity, nil
}

// verify checks that the authority in roots has signed a certificate that is valid now, and returns whose it is. Names and addresses
// are not compared with those that were dialled: that the fleet's own authority says the role is what counts.
func verify(chain []*x509.Certificate, roots *x509.CertPool, now time.Time) (Identity, error) {
	if len(chain) == 0 {
		return Identity{}, refuse(NoCertificate, errors.New("the peer has shown no certificate: give it one with `ballast ctl pki issue`"))
	}
	leaf := chain[0]
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && now.Before(leaf.NotBefore):
		return Identity{}, refuse(TooEarly, fmt.Errorf("the peer's certificate (%s) is valid from %s only: are the clocks right?",
			leaf.Subject.CommonName, leaf.NotBefore.Format(time.RFC3339)))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Identity{}, refuse(Expired, fmt.Errorf("the peer's certificate (%s) has expired on %s, by the clock here, which says %s: set the clock, or issue a new one with `ballast ctl pki issue`",
			leaf.Subject.CommonName, leaf.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339)))
	case errors.As(err, &unknown):
		return Identity{}, refuse(OtherAuthority, fmt.Errorf("the peer's certificate (%s) is not from our authority: is its ca.crt the same as ours?", leaf.Subject.CommonName))
	case err != nil:
		return Identity{}, fmt.Errorf("verify the peer's certificate (%s): %w", leaf.Subject.CommonName, err)
	}
	identity, err := IdentityOf(leaf)
	if err == nil && !slices.ContainsFunc(chains, func(chain []*x509.Certificate) bool { return maySign(identity.Role, len(chain)-2) }) {
		err = refuse(WrongRole, fmt.Errorf("the certificate of %s is for role %s and comes from the signing authority, which signs for roles lb and agent alone: "+
			"issue one with `ballast ctl pki issue`", identity.Name, identity.Role))
	}
	return identity, err
}

// maySign reports whether a certificate of a role may be signed by the root (between is 0), or by an authority directly below it. Nothing in
// the signing authority's certificate has to say so: there is no other way below the root.
func maySign(role Role, between int) bool {
	return between == 0 || between == 1 && (role == LB || role == Agent)
}
