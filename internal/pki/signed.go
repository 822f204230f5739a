// What a process of the fleet signs, so that others can pass it on: who gets it believes the one that has signed it, whoever has carried it.
package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// Signed is a text, and who answers for it.
type Signed struct {
	Text        []byte
	Certificate []byte // DER
	Signature   []byte // ECDSA, ASN.1, of digest
}

// digest is of a text of some kind: what was signed as one kind is never taken for another, nor for a signature of TLS.
func digest(kind string, text []byte) []byte {
	sum := sha256.Sum256(append([]byte("ballast, signed: "+kind+"\x00"), text...))
	return sum[:]
}

// Sign answers for a text of a kind with the key of the certificate.
func (c *Credentials) Sign(kind string, text []byte) (Signed, error) {
	own := c.latest().own
	key, ok := own.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return Signed{}, fmt.Errorf("sign %s: the key is no ECDSA key: issue a certificate with `ballast ctl pki issue`", kind)
	}
	signature, err := ecdsa.SignASN1(rand.Reader, key, digest(kind, text))
	if err != nil {
		return Signed{}, fmt.Errorf("sign %s: %w", kind, err)
	}
	return Signed{Text: text, Certificate: own.Leaf.Raw, Signature: signature}, nil
}

// SignedBy returns who has signed a text of a kind. It is an error if that is not one of the fleet with the role given, as of now: its certificate must not have
// expired, and not be revoked.
func (c *Credentials) SignedBy(role Role, kind string, s Signed, now time.Time) (Identity, error) {
	certificate, err := x509.ParseCertificate(s.Certificate)
	if err != nil {
		return Identity{}, fmt.Errorf("read the certificate that %s was signed with: %w", kind, err)
	}
	signer, err := verify([]*x509.Certificate{certificate}, c.pool(), now)
	if err != nil {
		return Identity{}, fmt.Errorf("%s: %w", kind, err)
	}
	if signer.Role != role {
		return Identity{}, fmt.Errorf("%s was signed by %s, which has role %s: that must be %s", kind, signer.Name, signer.Role, role)
	}
	if err := c.Refused(certificate); err != nil {
		return Identity{}, fmt.Errorf("%s: %w", kind, err)
	}
	key, ok := certificate.PublicKey.(*ecdsa.PublicKey)
	if !ok || !ecdsa.VerifyASN1(key, digest(kind, s.Text), s.Signature) {
		return Identity{}, errors.New(kind + " is not what " + signer.Name + " has signed")
	}
	return signer, nil
}
