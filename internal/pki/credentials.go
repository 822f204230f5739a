// Credentials: how a process of the fleet shows who it is, and whom it believes.
package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// WarnBefore is how long before the end of a certificate Warnings begin.
const WarnBefore = 30 * day

// Credentials are a certificate, its key and the authority, read again when their files change: a renewal needs no restart. A new
// handshake takes the new files; connections that stand stay. While the files make no sense the ones before are used. Safe for
// concurrent use.
type Credentials struct {
	dir, name string

	mutex    sync.Mutex
	current  loaded
	seen     [3]stamp
	problem  error // why the files as they are now are not used
	identity Identity

	revoked revoked
}

type loaded struct {
	own   tls.Certificate
	chain []*x509.Certificate // the own one, and that of the signing authority if that has signed it
	root  *x509.Certificate
}

// stamp tells whether a file has changed.
type stamp struct {
	changed time.Time
	size    int64
	inode   os.FileInfo
}

// Load reads NAME.crt, NAME.key and ca.crt in dir. Without a name it takes the only certificate there that has the role; any role
// will do if role is empty.
func Load(dir, name string, role Role) (*Credentials, error) {
	if name == "" {
		var err error
		if name, err = only(dir, role); err != nil {
			return nil, err
		}
	}
	c := &Credentials{dir: dir, name: name}
	c.seen = c.stamps()
	if err := c.read(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: make certificates with `ballast ctl pki issue` and copy ca.crt, NAME.crt and NAME.key here", err)
		}
		return nil, fmt.Errorf("load certificates: %w", err)
	}
	if role != "" && c.identity.Role != role {
		return nil, fmt.Errorf("load certificates: %s is for role %s: use one for role %s", certificatePath(dir, name), c.identity.Role, role)
	}
	return c, nil
}

// only finds the certificate to take where none was named.
func only(dir string, role Role) (string, error) {
	names, others, err := named(dir, role)
	if err != nil {
		return "", err
	}
	what := "certificate"
	if role != "" {
		what = fmt.Sprintf("certificate for role %s", role)
	}
	switch {
	case len(names) == 1:
		return names[0], nil
	case len(names) > 1:
		return "", fmt.Errorf("load certificates from %s: it could be any of %s: say which", dir, strings.Join(names, ", "))
	case len(others) > 0:
		return "", fmt.Errorf("load certificates from %s: there is no %s, only %s: make one with `ballast ctl pki issue`", dir, what, strings.Join(others, ", "))
	}
	return "", fmt.Errorf("load certificates from %s: there is no %s: make one with `ballast ctl pki issue` and copy it here with ca.crt", dir, what)
}

// named are the names of certificates in a directory, of a role and of others.
func named(dir string, role Role) (names, others []string, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".crt")
		certificate, err := readCertificate(path)
		if err != nil || name == authorityName {
			continue
		}
		if identity, err := IdentityOf(certificate); err == nil && (role == "" || identity.Role == role) {
			names = append(names, name)
		} else {
			others = append(others, name)
		}
	}
	return names, others, err
}

// NamesOf are those of the certificates of a role in a directory.
func NamesOf(dir string, role Role) ([]string, error) {
	names, _, err := named(dir, role)
	return names, err
}

// FilesOf are where the certificate of a name and its keys are. The authority's certificate is among them where no other, and no authority, is in the
// directory.
func FilesOf(dir, name string) []string {
	files := []string{certificatePath(dir, name), keyPath(dir, name), nextKeyPath(dir, name)}
	if others, err := filepath.Glob(filepath.Join(dir, "*.crt")); err == nil && !slices.ContainsFunc(others, func(path string) bool {
		return path != certificatePath(dir, name) && path != certificatePath(dir, authorityName)
	}) {
		if _, err := os.Lstat(keyPath(dir, authorityName)); errors.Is(err, os.ErrNotExist) {
			files = append(files, certificatePath(dir, authorityName))
		}
	}
	return files
}

func (c *Credentials) stamps() (stamps [3]stamp) {
	for i, path := range []string{certificatePath(c.dir, c.name), keyPath(c.dir, c.name), certificatePath(c.dir, authorityName)} {
		if info, err := os.Stat(path); err == nil {
			stamps[i] = stamp{info.ModTime(), info.Size(), info}
		}
	}
	return stamps
}

func same(a, b [3]stamp) bool {
	for i := range a {
		if a[i].size != b[i].size || !a[i].changed.Equal(b[i].changed) || (a[i].inode != nil && b[i].inode != nil && !os.SameFile(a[i].inode, b[i].inode)) {
			return false
		}
	}
	return true
}

// read takes the files as they are. The caller holds the lock, or nobody else has c yet.
func (c *Credentials) read() error {
	root, err := readCertificate(certificatePath(c.dir, authorityName))
	if err != nil {
		return err
	}
	chain, key, err := readChain(c.dir, c.name)
	if err != nil {
		return err
	}
	leaf := chain[0]
	if info, err := os.Stat(keyPath(c.dir, c.name)); err == nil && info.Mode().Perm()&0o007 != 0 {
		return fmt.Errorf("%s can be used by everybody on this host (%v): chmod 600 it", keyPath(c.dir, c.name), info.Mode().Perm())
	}
	identity, err := IdentityOf(leaf)
	if err != nil {
		return err
	}
	if err := checkChain(chain, root); err != nil {
		return fmt.Errorf("%s is not from the authority of %s: copy the ca.crt that it was issued with", certificatePath(c.dir, c.name), certificatePath(c.dir, authorityName))
	}
	if !maySign(identity.Role, len(chain)-1) {
		return fmt.Errorf("%s is for role %s, and from the signing authority, which signs for roles lb and agent alone: make one with `ballast ctl pki issue`",
			certificatePath(c.dir, c.name), identity.Role)
	}
	if c.identity.Name != "" && (c.identity.Name != identity.Name || c.identity.Role != identity.Role) {
		return fmt.Errorf("%s is now of %s %s, was of %s %s: restart to change that", certificatePath(c.dir, c.name),
			identity.Role, identity.Name, c.identity.Role, c.identity.Name)
	}
	own := tls.Certificate{PrivateKey: key, Leaf: leaf}
	for _, certificate := range chain {
		own.Certificate = append(own.Certificate, certificate.Raw)
	}
	c.current = loaded{own, chain, root}
	c.identity = identity
	return nil
}

// latest reads the files again if they have changed.
func (c *Credentials) latest() loaded {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if now := c.stamps(); !same(now, c.seen) {
		c.seen = now
		c.problem = c.read()
	}
	return c.current
}

func (c *Credentials) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.latest().root)
	return pool
}

// Identity is who we are.
func (c *Credentials) Identity() Identity {
	c.latest()
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.identity
}

// Enrolled reports whether the signing authority has signed the certificate: its owner has joined by a token, and renews it.
func (c *Credentials) Enrolled() bool { return len(c.latest().chain) > 1 }

// Own is the certificate that this process shows.
func (c *Credentials) Own() *x509.Certificate { return c.latest().own.Leaf }

// Files are what is read, in PEM, for libraries that read them themselves.
func (c *Credentials) Files() (authority, certificate, key string) {
	return certificatePath(c.dir, authorityName), certificatePath(c.dir, c.name), keyPath(c.dir, c.name)
}

// Place is the directory and the name that files have there.
func (c *Credentials) Place() (dir, name string) { return c.dir, c.name }

// Names reports as an error that the certificate does not name a host: an address, or a name of DNS.
func (c *Credentials) Names(host string) error { return c.latest().own.Leaf.VerifyHostname(host) }

// Server is for listeners: peers must show a certificate of the fleet, of any role that is a peer of ours; PeerIdentity says which.
func (c *Credentials) Server() *tls.Config {
	return c.config([]Role{Controller, LB, Agent, Ctl, Source})
}

// Browser is for listeners that people's browsers reach: a peer need not show a certificate, but one that it shows must be of the fleet and
// of a role given. PeerIdentity says whose it is.
func (c *Credentials) Browser(roles ...Role) *tls.Config {
	config := c.config(roles)
	config.ClientAuth = tls.RequestClientCert
	config.SessionTicketsDisabled = true // every connection shows its certificate
	verified := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return nil
		}
		return verified(state)
	}
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := config.Clone()
		now.GetConfigForClient, now.ClientCAs = nil, c.pool() // browsers offer their user the certificates of this authority alone
		return now, nil
	}
	return config
}

// Client is for connections to controllers: whoever answers must be one, or have one of the other roles given.
func (c *Credentials) Client(others ...Role) *tls.Config {
	return c.config(append([]Role{Controller}, others...))
}

// To is for connections to one peer: whoever answers must have that role and name.
func (c *Credentials) To(role Role, name string) *tls.Config {
	config := c.config([]Role{role})
	verified := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verified(state); err != nil {
			return err
		}
		if peer, err := PeerIdentity(state); err != nil || peer.Name != name {
			return fmt.Errorf("the peer is %s, which must be %s here", peer.Name, name)
		}
		return nil
	}
	return config
}

// At is for connections to one peer at a host, an address or a name of DNS, which its certificate must name. Whoever answers must have that
// role and, unless it is empty, that name.
func (c *Credentials) At(role Role, name, host string) *tls.Config {
	config := c.config([]Role{role})
	if name != "" {
		config = c.To(role, name)
	}
	verified := config.VerifyConnection
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if err := verified(state); err != nil {
			return err
		}
		return state.PeerCertificates[0].VerifyHostname(host)
	}
	return config
}

// config verifies by itself (VerifyConnection), for two reasons: the authority may change while the process runs, and peers are
// known by their role and not by the address that they are reached at.
func (c *Credentials) config(peers []Role) *tls.Config {
	own := func() *tls.Certificate {
		certificate := c.latest().own
		return &certificate
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own(), nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own(), nil },
		ClientAuth:           tls.RequireAnyClientCert,
		InsecureSkipVerify:   true, // not so: see VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			peer, err := verify(state.PeerCertificates, c.pool(), time.Now())
			if err != nil {
				return err
			}
			if !slices.Contains(peers, peer.Role) {
				return refuse(WrongRole, fmt.Errorf("the peer (%s) has role %s, which must be %s here", peer.Name, peer.Role, either(peers)))
			}
			return c.Refused(state.PeerCertificates...)
		},
	}
}

func either(roles []Role) string {
	names := make([]string, len(roles))
	for i, role := range roles {
		names[i] = string(role)
	}
	return strings.Join(names, " or ")
}

// Ends are when the certificate and that of its authority end.
func (c *Credentials) Ends() (own, authority time.Time) {
	current := c.latest()
	return current.own.Leaf.NotAfter, current.root.NotAfter
}

// Warnings says what will break connections unless somebody acts: certificates that end within WarnBefore, or files that have
// changed to what cannot be used, or a certificate that is revoked.
func (c *Credentials) Warnings(now time.Time) (warnings []string) {
	current := c.latest()
	for _, one := range []struct {
		path, remedy string
		certificate  *x509.Certificate
	}{
		{certificatePath(c.dir, c.name), again(current.chain), current.own.Leaf},
		{certificatePath(c.dir, authorityName), "make a new authority in another directory and issue all certificates again", current.root},
	} {
		end, early := one.certificate.NotAfter, WarnBefore
		if one.certificate == current.own.Leaf {
			early = warnBefore(current.chain)
		}
		switch {
		case !now.Before(end):
			warnings = append(warnings, fmt.Sprintf("%s has expired on %s, by this host's clock, which says %s: set the clock, or %s",
				one.path, end.Format(time.RFC3339), now.Format(time.DateOnly), one.remedy))
		case now.Before(one.certificate.NotBefore):
			warnings = append(warnings, fmt.Sprintf("%s is not valid before %s, and this host's clock has an earlier time: set the clock",
				one.path, one.certificate.NotBefore.Format(time.RFC3339)))
		case end.Sub(now) < early:
			warnings = append(warnings, fmt.Sprintf("%s expires on %s: %s", one.path, end.Format(time.DateOnly), one.remedy))
		}
	}
	if r := c.OwnRevoked(); r != nil {
		warnings = append(warnings, fmt.Sprintf("%s was revoked at %s: nobody accepts it: %s",
			certificatePath(c.dir, c.name), r.At.Format(time.RFC3339), again(current.chain)))
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.problem != nil {
		warnings = append(warnings, fmt.Sprintf("changed certificates are not used: %v", c.problem))
	}
	return warnings
}
