// Certificates that are asked for: the key never leaves the host that made it.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// nextKeyPath is where a key is until its certificate has come.
func nextKeyPath(dir, name string) string { return keyPath(dir, name) + ".next" }

// NextKey returns the key that the next certificate of a name is asked for with. It is kept: who asks again, also as another process, asks with
// the same.
func NextKey(dir, name string) (*ecdsa.PrivateKey, error) {
	if err := settle(dir, name); err != nil {
		return nil, err
	}
	key, err := readKey(nextKeyPath(dir, name))
	if err == nil {
		return key, nil
	}
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	return key, writeKey(nextKeyPath(dir, name), key)
}

// DropNextKey removes a key that no certificate will come for. It is no error that there is none.
func DropNextKey(dir, name string) error {
	if err := os.Remove(nextKeyPath(dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// settle ends what an Install that was cut short has begun.
func settle(dir, name string) error {
	chain, key, err := readChain(dir, name)
	if err != nil {
		return nil // there is no certificate: the next key is kept for the first
	}
	if next, err := readKey(nextKeyPath(dir, name)); err != nil || !next.Equal(key) {
		return nil
	}
	return finish(dir, name, chain[0])
}

// finish puts the next key in its place, if it is that of the certificate.
func finish(dir, name string, leaf *x509.Certificate) error {
	if next, err := readKey(nextKeyPath(dir, name)); err != nil || !next.PublicKey.Equal(leaf.PublicKey) {
		return fmt.Errorf("write %s: the new certificate is not for the new key", keyPath(dir, name))
	}
	return os.Rename(nextKeyPath(dir, name), keyPath(dir, name))
}

// Install replaces NAME.crt, and NAME.key by the key of NextKey. At each moment, also if the process ends within, one certificate and its key
// are there: the new ones from when NAME.crt is replaced on.
func Install(dir, name string, chain [][]byte) error {
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return err
	}
	if next, err := readKey(nextKeyPath(dir, name)); err != nil || !next.PublicKey.Equal(leaf.PublicKey) {
		return errors.New("the certificate is not for the key that it was asked for with")
	}
	if err := writeChain(certificatePath(dir, name), chain); err != nil {
		return err
	}
	return finish(dir, name, leaf)
}

// InstallRoot writes ca.crt, unless the same one is there. Another one is an error, but for replace.
func InstallRoot(dir string, root *x509.Certificate, replace bool) error {
	path := certificatePath(dir, authorityName)
	switch there, err := readCertificate(path); {
	case err == nil && there.Equal(root):
		return nil
	case errors.Is(err, os.ErrNotExist), replace:
		return writeChain(path, [][]byte{root.Raw})
	case err != nil:
		return err
	}
	return fmt.Errorf("write %s: it is of another fleet: use another --tls-dir", path)
}

// CheckRoot refuses a directory that is of another fleet than that whose root has a hash. By replace it may become one of that fleet, unless
// others than name have a certificate there: the new ca.crt would make it useless.
func CheckRoot(dir, name string, hash [sha256.Size]byte, replace bool) error {
	path := certificatePath(dir, authorityName)
	root, err := readCertificate(path)
	switch {
	case errors.Is(err, os.ErrNotExist), err == nil && HashOf(root) == hash:
		return nil
	case !replace && err != nil:
		return err
	case !replace:
		return fmt.Errorf("%s is of another fleet than the token: nothing was changed: use another --tls-dir, or --again to leave that fleet", path)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if other, ok := strings.CutSuffix(entry.Name(), ".crt"); ok && other != authorityName && other != name {
			return fmt.Errorf("%s is of another fleet than the token, and %s beside it needs it: nothing was changed: use another --tls-dir, or remove that", path, entry.Name())
		}
	}
	return nil
}

// CheckOwner refuses a certificate of a name that is there for another role or name.
func CheckOwner(dir, name string, role Role) error {
	certificate, err := readCertificate(certificatePath(dir, name))
	if err != nil {
		return err
	}
	who, err := IdentityOf(certificate)
	if err == nil && (who.Role != role || who.Name != name) {
		err = fmt.Errorf("%s is of %s %s, and the token is for role %s: nothing was changed: join with another --name", certificatePath(dir, name), who.Role, who.Name, role)
	}
	return err
}

// Has reports whether there is a certificate of a name, and whether the signing authority has signed it.
func Has(dir, name string) (there, enrolled bool) {
	if _, err := os.Lstat(certificatePath(dir, name)); err != nil {
		return false, false
	}
	chain, err := readCertificates(certificatePath(dir, name))
	return true, err == nil && len(chain) > 1
}

// NewRequest asks for a certificate of a role and name for a key.
func NewRequest(key *ecdsa.PrivateKey, role Role, name string) ([]byte, error) {
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{string(role)}}}
	return x509.CreateCertificateRequest(rand.Reader, template, key)
}

// Wanted is what a request for a certificate asks for.
type Wanted struct {
	Role      Role
	Name      string
	Addresses []netip.Addr
	DNS       []string
	Key       *ecdsa.PublicKey
}

// ParseRequest reads a request, whoever has sent it, and checks that who sends it has the key.
func ParseRequest(der []byte) (w Wanted, err error) {
	request, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return w, fmt.Errorf("read the request for a certificate: %w", err)
	}
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return w, errors.New("the request for a certificate is for another kind of key than ECDSA P-256")
	}
	if err := request.CheckSignature(); err != nil {
		return w, fmt.Errorf("the request for a certificate is not signed with its key: %w", err)
	}
	identity, err := IdentityOf(&x509.Certificate{Subject: request.Subject, DNSNames: request.DNSNames, IPAddresses: request.IPAddresses})
	if err != nil {
		return w, errors.New("the request for a certificate names no role")
	}
	if err := CheckName(identity.Name); err != nil {
		return w, err
	}
	return Wanted{identity.Role, identity.Name, identity.Addresses, identity.DNS, key}, nil
}

// KeyID tells keys apart.
func KeyID(key *ecdsa.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:]), err
}

// Directory makes a folder for certificates and keys.
func Directory(dir string) error {
	if err := os.MkdirAll(filepath.Clean(dir), 0o700); err != nil {
		return fmt.Errorf("make the directory of certificates: %w: run this as root", err)
	}
	return nil
}

// Differs reports whether two clocks differ by so much that certificates are refused.
func Differs(by time.Duration) bool { return by.Abs() >= clockSkew }

// Issued checks that a chain, of DER, is what was asked for: below the root, for the role, name and key.
func Issued(chain [][]byte, root *x509.Certificate, wanted *Wanted, now time.Time) error {
	var parsed []*x509.Certificate
	for _, der := range chain {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("read the certificate that was issued: %w", err)
		}
		parsed = append(parsed, certificate)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	who, err := verify(parsed, pool, now)
	switch {
	case err != nil:
		return fmt.Errorf("the certificate that was issued: %w", err)
	case who.Role != wanted.Role || who.Name != wanted.Name || !wanted.Key.Equal(parsed[0].PublicKey):
		return fmt.Errorf("the certificate that was issued is for %s %s, or for another key: asked was for %s %s", who.Role, who.Name, wanted.Role, wanted.Name)
	}
	return nil
}
