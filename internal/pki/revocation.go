// Which certificates are revoked: by serial number, or all of a name that were issued up to some time.
package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"
	"unicode"
)

// Implementation constants.
const (
	RevokedMax   = 10_000 // certificates on the list
	reasonBytes  = 200    // of a reason
	serialDigits = 40     // of a serial number, at most (RFC 5280, 4.1.2.2)
)

// Revocation says of one certificate, or of all of a name, or of all of a name and role, that nobody accepts it any more.
type Revocation struct {
	Serial string    `json:"serial,omitempty"` // as SerialOf has it; empty: all certificates of the name that were issued up to At
	Name   string    `json:"name,omitempty"`   // with a serial number: as far as it is known
	Role   Role      `json:"role,omitempty"`   // with a serial number: as far as it is known; without: empty is all roles
	At     time.Time `json:"at"`
	Ends   time.Time `json:"ends"` // all that it is about have expired by then
	Reason string    `json:"reason,omitempty"`

	Authority string `json:"authority,omitempty"` // that issued them, as authorityID has it; empty: the fleet's as it is now
}

// Key tells a revocation from others: there is one of a serial number, one of a name, and one of a name and role.
func (r *Revocation) Key() string {
	switch {
	case r.Serial != "":
		return "serial/" + r.Serial
	case r.Role != "":
		return "name/" + r.Name + "/" + string(r.Role)
	}
	return "name/" + r.Name
}

// What says in a few words which certificates are meant.
func (r *Revocation) What() string {
	switch {
	case r.Serial == "":
		return fmt.Sprintf("all certificates of %s that were issued up to %s", strings.TrimSpace(string(r.Role)+" "+r.Name), r.At.Format(time.RFC3339))
	case r.Name == "":
		return "the certificate with serial number " + r.Serial
	}
	return strings.Join(strings.Fields(fmt.Sprintf("the certificate of %s %s with serial number %s", r.Role, r.Name, r.Serial)), " ")
}

// Covers reports whether a certificate is revoked by it.
func (r *Revocation) Covers(certificate *x509.Certificate) bool {
	if r.Serial != "" {
		return r.Serial == SerialOf(certificate)
	}
	return r.Name == certificate.Subject.CommonName && (r.Role == "" || r.Role == roleOf(certificate)) && !issued(certificate).After(r.At)
}

// roleOf is the role of a certificate; empty: it has none.
func roleOf(certificate *x509.Certificate) Role {
	identity, err := IdentityOf(certificate)
	if err != nil {
		return ""
	}
	return identity.Role
}

// issued is when a certificate was made, to the second.
func issued(certificate *x509.Certificate) time.Time { return certificate.NotBefore.Add(clockSkew) }

// SerialOf is the serial number of a certificate in hexadecimal digits, always as many.
func SerialOf(certificate *x509.Certificate) string { return serialText(certificate.SerialNumber) }

func serialText(number *big.Int) string { return fmt.Sprintf("%0*x", serialDigits, number) }

// ParseSerial reads a serial number in full, as `ballast ctl pki show` and `openssl x509` print it: in digits, or in pairs between colons.
func ParseSerial(text string) (serial string, ok bool) {
	digits := strings.ToLower(text)
	if pairs := strings.Split(digits, ":"); len(pairs) == serialDigits/2 {
		digits = strings.Join(pairs, "")
	}
	if _, err := hex.DecodeString(digits); err != nil || len(digits) != serialDigits {
		return "", false
	}
	return digits, true
}

// RevocationOf is of one certificate.
func RevocationOf(certificate *x509.Certificate, now time.Time, reason string) Revocation {
	return Revocation{Serial: SerialOf(certificate), Name: certificate.Subject.CommonName, Role: roleOf(certificate), At: now, Ends: certificate.NotAfter, Reason: reason}
}

// checked returns what an entry means here, whoever wrote it. Nobody can revoke certificates that are not issued yet, for longer than clocks
// may differ, nor keep an entry for longer than the authority's certificates live.
func (r Revocation) checked(now time.Time, authority *x509.Certificate) (Revocation, error) {
	if serial, ok := ParseSerial(r.Serial); r.Serial != "" && (!ok || serial != r.Serial) {
		return r, fmt.Errorf("serial number %q: use %d hexadecimal digits", plain(r.Serial), serialDigits)
	}
	if r.Serial == "" {
		if err := CheckName(plain(r.Name)); err != nil {
			return r, err
		}
		if r.Role != "" {
			if _, err := ParseRole(string(r.Role)); err != nil {
				return r, err
			}
		}
	}
	if late := now.Add(clockSkew); r.At.After(late) {
		r.At = late
	}
	r.At = r.At.UTC().Truncate(time.Second)
	if r.Ends.IsZero() || r.Ends.After(authority.NotAfter) {
		r.Ends = authority.NotAfter
	}
	if r.Authority == "" {
		r.Authority = authorityID(authority)
	}
	r.Ends = r.Ends.UTC().Truncate(time.Second)
	r.Name, r.Role, r.Reason = plain(r.Name), Role(plain(string(r.Role))), plain(r.Reason)
	return r, nil
}

// Checked returns what an entry means, or why it makes no sense.
func (c *Credentials) Checked(r Revocation, now time.Time) (Revocation, error) {
	return r.checked(now, c.latest().root)
}

// authorityID tells authorities apart by their keys.
func authorityID(authority *x509.Certificate) string {
	sum := sha256.Sum256(authority.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:16])
}

// Foreign reports whether an entry is about certificates of an authority that is the fleet's no more: nobody accepts those anyway.
func (c *Credentials) Foreign(r *Revocation) bool {
	return r.Authority != "" && r.Authority != authorityID(c.latest().root)
}

// plain keeps text short, and from doing anything to a terminal.
func plain(text string) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, text)
	return strings.ToValidUTF8(text[:min(len(text), reasonBytes)], "")
}

// merged is the entry that has what two of one key say, whichever came first.
func (r Revocation) merged(other Revocation) Revocation {
	newer, older := r, other
	if other.At.After(r.At) {
		newer, older = other, r
	}
	if older.Ends.After(newer.Ends) {
		newer.Ends = older.Ends
	}
	if newer.Name == "" {
		newer.Name, newer.Role = older.Name, older.Role
	}
	return newer
}

// ReadCertificate reads a file such as NAME.crt.
func ReadCertificate(path string) (*x509.Certificate, error) { return readCertificate(path) }

// ReadChain reads a file such as NAME.crt as Revocable takes it.
func ReadChain(path string) (der []byte, err error) {
	chain, err := readCertificates(path)
	for _, certificate := range chain {
		der = append(der, certificate.Raw...)
	}
	return der, err
}

// Revocable reads a certificate that somebody asks to revoke, which those follow that have signed it below the root, and refuses one that
// nobody accepts anyway.
func (c *Credentials) Revocable(der []byte, now time.Time) (*x509.Certificate, error) {
	chain, err := x509.ParseCertificates(der)
	if err == nil && len(chain) == 0 {
		err = errors.New("there is none")
	}
	if err != nil {
		return nil, fmt.Errorf("read the certificate: %w: copy it again", err)
	}
	certificate := chain[0]
	root := c.latest().root
	switch {
	case bytes.Equal(certificate.Raw, root.Raw):
		return nil, fmt.Errorf("that is the authority itself: make another one in another directory with `ballast ctl pki init`, and issue all certificates again")
	case checkChain(chain, root) != nil:
		return nil, fmt.Errorf("the certificate of %s is not from this fleet's authority: nobody accepts it", plain(certificate.Subject.CommonName))
	case !now.Before(certificate.NotAfter):
		return nil, fmt.Errorf("the certificate of %s has expired on %s: nobody accepts it any more", plain(certificate.Subject.CommonName), certificate.NotAfter.Format(time.DateOnly))
	}
	return certificate, nil
}
