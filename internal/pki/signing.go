// The signing authority: below the root, for load balancers and agents alone. Controllers have its key, so the root's can be offline.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

const (
	// DefaultEnrolledLife is how long certificates of the signing authority are valid: they are renewed without anybody's help.
	DefaultEnrolledLife = 30 * day

	// warnShare of its life before the end of a certificate that renews itself, Warnings begin: renewal should have happened at RenewAt.
	warnShare = 4
)

// Signing is the signing authority with its key.
type Signing struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// Delegate makes a signing authority with the root in dir; life 0: it ends with the root.
func Delegate(dir string, life time.Duration) (*Signing, error) {
	root, signer, err := readPair(dir, authorityName)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("make a signing authority: %w: name the directory of `ballast ctl pki init`, which has ca.crt and ca.key", err)
	}
	if err != nil {
		return nil, err
	}
	if root.MaxPathLenZero {
		return nil, fmt.Errorf("make a signing authority: %s was made by a version of Ballast that had none, and allows none below it: "+
			"go on with `ballast ctl pki issue`, or make a new authority in another directory with `ballast ctl pki init` and issue all certificates again "+
			"(\"Lost ca.key\" in docs/run/operate.md)", certificatePath(dir, authorityName))
	}
	now := time.Now()
	ends := now.Add(life)
	if life == 0 || ends.After(root.NotAfter) {
		ends = root.NotAfter
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Ballast signing authority of " + now.UTC().Format("2006-01-02 15:04:05")},
		NotBefore: now.Add(-clockSkew), NotAfter: ends,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true, ExcludedDNSDomains: []string{""}, // all: browsers that trust the root do not take what it signs for a host
	}
	der, err := x509.CreateCertificate(rand.Reader, template, root, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("make a signing authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Signing{certificate, key}, nil
}

// Encode returns the certificate in DER, and the key in PKCS #8.
func (s *Signing) Encode() (certificate, key []byte, err error) {
	key, err = x509.MarshalPKCS8PrivateKey(s.key)
	return s.Certificate.Raw, key, err
}

// Signing reads a signing authority of this fleet. One that is revoked or has expired is an error: nobody accepts what it signs.
func (c *Credentials) Signing(certificate, key []byte, now time.Time) (*Signing, error) {
	const remedy = "make another one with `ballast ctl pki delegate`"
	parsed, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, fmt.Errorf("read the signing authority: %w: %s", err, remedy)
	}
	secret, err := x509.ParsePKCS8PrivateKey(key)
	own, ok := secret.(*ecdsa.PrivateKey)
	root := c.latest().root
	switch {
	case err != nil || !ok || !own.PublicKey.Equal(parsed.PublicKey):
		return nil, fmt.Errorf("read the signing authority: its key does not belong to it: %s", remedy)
	case parsed.CheckSignatureFrom(root) != nil:
		return nil, fmt.Errorf("the signing authority is not of this fleet: %s, with the directory that this fleet's ca.crt is from", remedy)
	case !parsed.IsCA || !parsed.MaxPathLenZero || root.MaxPathLenZero:
		return nil, fmt.Errorf("the signing authority is none that peers accept: %s", remedy)
	case !now.Before(parsed.NotAfter):
		return nil, fmt.Errorf("the signing authority has expired on %s, by the clock here, which says %s: %s", parsed.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339), remedy)
	}
	if r := c.Revokes(parsed); r != nil {
		return nil, fmt.Errorf("the signing authority was revoked at %s: %s", r.At.Format(time.RFC3339), remedy)
	}
	return &Signing{parsed, own}, nil
}

// Sign returns the certificate that somebody asks for with a key, and the authority's own, in DER.
func (s *Signing) Sign(request *Request, key *ecdsa.PublicKey, now time.Time) (chain [][]byte, err error) {
	if !maySign(request.Role, 1) {
		return nil, fmt.Errorf("sign a certificate for role %s: the signing authority signs for roles lb and agent alone: use `ballast ctl pki issue`", request.Role)
	}
	if err := CheckName(request.Name); err != nil {
		return nil, err
	}
	ends := now.Add(request.Life)
	if ends.After(s.Certificate.NotAfter) {
		ends = s.Certificate.NotAfter
	}
	template := leafOf(request, now, ends)
	template.DNSNames = nil // nodes are known by role and name, and browsers that trust the root believe names of DNS
	certificate, err := x509.CreateCertificate(rand.Reader, template, s.Certificate, key, s.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", request.Name, err)
	}
	return [][]byte{certificate, s.Certificate.Raw}, nil
}

// checkChain checks that each certificate has signed the one before, and the root the last.
func checkChain(chain []*x509.Certificate, root *x509.Certificate) error {
	for i, certificate := range chain {
		parent := root
		if i+1 < len(chain) {
			parent = chain[i+1]
		}
		if err := certificate.CheckSignatureFrom(parent); err != nil {
			return err
		}
	}
	return nil
}

// LifeOf is how long a certificate is valid in all.
func LifeOf(certificate *x509.Certificate) time.Duration {
	return certificate.NotAfter.Sub(issued(certificate))
}

// RenewAt is when two thirds of a certificate's life are over.
func RenewAt(certificate *x509.Certificate) time.Time {
	return issued(certificate).Add(LifeOf(certificate) / 3 * 2)
}

// warnBefore is how long before its end there are warnings of a certificate.
func warnBefore(chain []*x509.Certificate) time.Duration {
	if len(chain) == 1 {
		return WarnBefore
	}
	return min(WarnBefore, LifeOf(chain[0])/warnShare)
}

// again is how to replace a certificate of this host.
func again(chain []*x509.Certificate) string {
	if len(chain) > 1 {
		return "controllers renew it before; once it has ended or is revoked, join with a new token (`ballast join --again`)"
	}
	return "issue it again with `ballast ctl pki issue --force` and copy it here, no restart is needed"
}

// Joining is for connections of those who have no certificate yet, by a protocol of their own. They know the root by its hash, so they are
// shown it.
func (c *Credentials) Joining(protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			now := c.latest()
			shown := now.own
			shown.Certificate = append(slices.Clip(shown.Certificate), now.root.Raw)
			return &shown, nil
		},
	}
}

// Root is the certificate of the fleet's authority.
func (c *Credentials) Root() *x509.Certificate { return c.latest().root }

// HashOf is what a token says of the root.
func HashOf(root *x509.Certificate) [sha256.Size]byte { return sha256.Sum256(root.Raw) }

// ErrOtherRoot is that a peer is not of the fleet that was expected.
var ErrOtherRoot = errors.New("it is not of the fleet that the token is for")

// Pinned checks that a peer which has shown a chain with its root has a role in the fleet whose root has that hash. now zero: at whatever time.
func Pinned(shown []*x509.Certificate, hash [sha256.Size]byte, role Role, now time.Time) (root *x509.Certificate, who Identity, err error) {
	at := slices.IndexFunc(shown, func(c *x509.Certificate) bool { return HashOf(c) == hash })
	if at < 1 {
		return nil, who, ErrOtherRoot
	}
	pool := x509.NewCertPool()
	pool.AddCert(shown[at])
	if now.IsZero() {
		now = shown[0].NotBefore
	}
	if who, err = verify(shown, pool, now); err != nil {
		return nil, who, err
	}
	if who.Role != role {
		return nil, who, fmt.Errorf("the peer (%s) has role %s, which must be %s here", who.Name, who.Role, role)
	}
	return shown[at], who, nil
}
