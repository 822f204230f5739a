// The authority of a fleet, and what it issues: files in a directory.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	authorityName = "ca" // of its files

	day = 24 * time.Hour

	// DefaultAuthorityLife and DefaultLife are how long certificates of the authority and of nodes are valid.
	DefaultAuthorityLife = 3650 * day
	DefaultLife          = 365 * day

	clockSkew = time.Hour // that certificates are valid before they were made

	maxName = 63 // as of servers and services
)

func certificatePath(dir, name string) string { return filepath.Join(dir, name+".crt") }
func keyPath(dir, name string) string         { return filepath.Join(dir, name+".key") }

// Init makes an authority in dir: ca.crt, and ca.key that whoever has it can make certificates with. It replaces one only by force:
// all certificates of the fleet are worth nothing then.
func Init(dir string, life time.Duration, force bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make an authority: %w", err)
	}
	if err := mayWrite(dir, authorityName, force); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Ballast authority of " + now.UTC().Format("2006-01-02 15:04:05")},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true,
		MaxPathLen: 1, // the signing authority
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	return writePair(dir, authorityName, [][]byte{certificate}, key)
}

// Request is for a certificate.
type Request struct {
	Role      Role
	Name      string
	Addresses []netip.Addr
	DNS       []string
	Life      time.Duration // 0: DefaultLife
	Force     bool          // replace one of the same name
}

// Issue makes NAME.crt and NAME.key with the authority in dir. The name is among the names or addresses that it is valid for.
func Issue(dir string, request Request) error {
	if err := CheckName(request.Name); err != nil {
		return err
	}
	if _, err := ParseRole(string(request.Role)); err != nil {
		return err
	}
	if err := mayWrite(dir, request.Name, request.Force); err != nil {
		return err
	}
	authority, signer, err := readPair(dir, authorityName)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("issue a certificate: %w: make an authority with `ballast ctl pki init %s`", err, dir)
	}
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	life := request.Life
	if life == 0 {
		life = DefaultLife
	}
	if end := now.Add(life); end.After(authority.NotAfter) {
		return fmt.Errorf("issue a certificate until %s: the authority is valid until %s: use fewer --days, or make a new authority",
			end.Format(time.DateOnly), authority.NotAfter.Format(time.DateOnly))
	}
	certificate, err := x509.CreateCertificate(rand.Reader, leafOf(&request, now, now.Add(life)), authority, key.Public(), signer)
	if err != nil {
		return fmt.Errorf("sign the certificate of %s: %w", request.Name, err)
	}
	return writePair(dir, request.Name, [][]byte{certificate}, key)
}

// leafOf is the certificate that a request is for, not signed yet.
func leafOf(request *Request, now, ends time.Time) *x509.Certificate {
	template := &x509.Certificate{
		Subject:   pkix.Name{CommonName: request.Name, OrganizationalUnit: []string{string(request.Role)}},
		NotBefore: now.Add(-clockSkew), NotAfter: ends,
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    slices.Clone(request.DNS),
	}
	addresses := slices.Clone(request.Addresses)
	if own, err := netip.ParseAddr(request.Name); err == nil {
		addresses = append(addresses, own)
	} else if !strings.Contains(request.Name, ":") {
		template.DNSNames = append(template.DNSNames, request.Name)
	}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.Unmap().WithZone("").AsSlice()))
	}
	return template
}

// CheckName allows what servers can be called: it is a file's name, too.
func CheckName(name string) error {
	allowed := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-:", r)
	}
	switch {
	case name == authorityName:
		return fmt.Errorf("name %s: that is the authority's: choose another", name)
	case name == "" || len(name) > maxName || strings.Trim(name[:1], "._-") == "":
		return fmt.Errorf("name %q: use 1 to %d characters that begin with a letter, a digit or a colon", name, maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return !allowed(r) }):
		return fmt.Errorf("name %q: use letters, digits and . _ : -", name)
	}
	return nil
}

// mayWrite refuses to replace what is there, unless forced.
func mayWrite(dir, name string, force bool) error {
	for _, path := range []string{certificatePath(dir, name), keyPath(dir, name)} {
		if _, err := os.Lstat(path); err == nil && !force {
			return fmt.Errorf("write %s: it is there already: use --force to replace it", path)
		}
	}
	return nil
}

// writePair replaces a certificate, with those that have signed it below the root, and its key, each as a whole.
func writePair(dir, name string, chain [][]byte, key *ecdsa.PrivateKey) error {
	if err := writeKey(keyPath(dir, name), key); err != nil {
		return err
	}
	return writeChain(certificatePath(dir, name), chain)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writeFile(path, 0o600, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
}

func writeChain(path string, chain [][]byte) error {
	var content []byte
	for _, certificate := range chain {
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})...)
	}
	return writeFile(path, 0o644, content)
}

func writeFile(path string, mode os.FileMode, content []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(content)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// readPair reads a certificate and its key, and checks that they belong together.
func readPair(dir, name string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	chain, key, err := readChain(dir, name)
	if err != nil {
		return nil, nil, err
	}
	return chain[0], key, nil
}

// readChain reads a certificate, those that have signed it below the root, and its key. The key is in NAME.key, or still in the file beside it
// while Install replaces both.
func readChain(dir, name string) ([]*x509.Certificate, *ecdsa.PrivateKey, error) {
	chain, err := readCertificates(certificatePath(dir, name))
	if err != nil {
		return nil, nil, err
	}
	path := keyPath(dir, name)
	key, err := readKey(path)
	if err == nil && key.PublicKey.Equal(chain[0].PublicKey) {
		return chain, key, nil
	}
	if next, failed := readKey(nextKeyPath(dir, name)); failed == nil && next.PublicKey.Equal(chain[0].PublicKey) {
		return chain, next, nil
	}
	if err != nil {
		return nil, nil, err
	}
	return nil, nil, fmt.Errorf("read %s: it does not belong to %s: copy both of one `ballast ctl pki issue`", path, certificatePath(dir, name))
}

func readKey(path string) (*ecdsa.PrivateKey, error) {
	block, err := readBlock(path, "PRIVATE KEY")
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block)
	key, ok := parsed.(*ecdsa.PrivateKey)
	if err != nil || !ok {
		return nil, fmt.Errorf("read %s: no key of ours (%v): issue it again", path, err)
	}
	return key, nil
}

func readCertificate(path string) (*x509.Certificate, error) {
	chain, err := readCertificates(path)
	if err != nil {
		return nil, err
	}
	return chain[0], nil
}

// readCertificates reads a certificate and those that follow it in the same file.
func readCertificates(path string) (chain []*x509.Certificate, err error) {
	content, err := readRegular(path)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(content); block != nil && block.Type == "CERTIFICATE"; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w: copy it again", path, err)
		}
		chain = append(chain, certificate)
	}
	if len(chain) == 0 {
		return nil, noBlock(path, "CERTIFICATE")
	}
	return chain, nil
}

func readBlock(path, kind string) ([]byte, error) {
	content, err := readRegular(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(content)
	if block == nil || block.Type != kind {
		return nil, noBlock(path, kind)
	}
	return block.Bytes, nil
}

func noBlock(path, kind string) error {
	return fmt.Errorf("read %s: there is no %s in it: copy it again", path, kind)
}

// readRegular reads no pipe: whoever opens one waits for a writer.
func readRegular(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file", path)
	}
	return os.ReadFile(path)
}
