// The list of revoked certificates as a process knows it, and what it does to connections that stand.
package pki

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// revoked only grows, but for entries whose certificates have expired, or are of another authority: what was heard first, or last, or twice, or from whom, makes no
// difference, and nobody can take back what another has said. The zero value is empty.
type revoked struct {
	mutex   sync.Mutex
	entries map[string]Revocation // by Key
	held    map[*held]struct{}
	refused uint64 // handshakes and requests, and connections that were cut
}

// held is what goes on as long as a peer's certificate is good.
type held struct {
	chain []*x509.Certificate // as the peer has shown it, its own first
	cut   func(why error)
}

// find returns the entry that revokes a certificate, or one of those that are shown for it: nobody accepts it without these. The caller holds
// the lock.
func (l *revoked) find(chain []*x509.Certificate) *Revocation {
	for _, certificate := range chain {
		for _, key := range keysOf(certificate) {
			if r, ok := l.entries[key]; ok && r.Covers(certificate) {
				return &r
			}
		}
	}
	return nil
}

// keysOf are those of the entries that can revoke a certificate.
func keysOf(certificate *x509.Certificate) []string {
	name := certificate.Subject.CommonName
	return []string{(&Revocation{Serial: SerialOf(certificate)}).Key(), (&Revocation{Name: name}).Key(), (&Revocation{Name: name, Role: roleOf(certificate)}).Key()}
}

// refuse counts.
func (l *revoked) refuse(r *Revocation, chain []*x509.Certificate) error {
	certificate := chain[0]
	l.refused++
	reason := ""
	if r.Reason != "" {
		reason = ": " + r.Reason
	}
	remedy, by := "issue a new one with `ballast ctl pki issue`", ""
	if len(chain) > 1 {
		remedy = "its owner joins again, by a token: `ballast join --again`"
	}
	if !r.Covers(certificate) {
		by = "the signing authority of "
	}
	return refuse(Revoked, fmt.Errorf("%sthe certificate of %s with serial number %s was revoked at %s%s: %s", by,
		plain(certificate.Subject.CommonName), SerialOf(certificate), r.At.Format(time.RFC3339), reason, remedy))
}

// Revoke adds to the list of revoked certificates and cuts what they hold. It returns what is news of it. An error says what of the list
// makes no sense, or has no room; the rest is taken all the same.
func (c *Credentials) Revoke(list []Revocation, now time.Time) (news []Revocation, err error) {
	authority := c.latest().root
	l := &c.revoked
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.entries == nil {
		l.entries = map[string]Revocation{}
	}
	useless := func(r Revocation) bool {
		return !now.Before(r.Ends.Add(clockSkew)) || r.Authority != authorityID(authority)
	}
	maps.DeleteFunc(l.entries, func(_ string, r Revocation) bool { return useless(r) })
	for _, r := range list {
		r, wrong := r.checked(now, authority)
		if wrong != nil {
			err = fmt.Errorf("revoked certificates: %w", wrong)
			continue
		}
		before, known := l.entries[r.Key()]
		switch {
		case useless(r):
			continue
		case !known && len(l.entries) >= RevokedMax:
			err = fmt.Errorf("more than %d certificates are revoked: the others are not known here: make a new authority (\"Lost key\" in docs/run/operate.md)", RevokedMax)
			continue
		case known:
			if r = before.merged(r); r == before {
				continue
			}
		}
		l.entries[r.Key()] = r
		news = append(news, r)
	}
	if len(news) > 0 {
		l.cut()
	}
	return news, err
}

// cut ends what revoked certificates hold. The caller holds the lock.
func (l *revoked) cut() {
	for h := range l.held {
		if r := l.find(h.chain); r != nil {
			delete(l.held, h)
			h.cut(l.refuse(r, h.chain))
		}
	}
}

// Revoked returns the list, oldest entries first.
func (c *Credentials) Revoked() []Revocation {
	c.revoked.mutex.Lock()
	defer c.revoked.mutex.Unlock()
	return slices.SortedFunc(maps.Values(c.revoked.entries), func(a, b Revocation) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Key(), b.Key()))
	})
}

// RevokedCount is how many entries the list has, and how often one has refused or cut somebody.
func (c *Credentials) RevokedCount() (entries int, refused uint64) {
	c.revoked.mutex.Lock()
	defer c.revoked.mutex.Unlock()
	return len(c.revoked.entries), c.revoked.refused
}

// Refused says why a certificate of a peer, with those that it shows for it, is not accepted any more; nil: it is not revoked.
func (c *Credentials) Refused(chain ...*x509.Certificate) error {
	c.revoked.mutex.Lock()
	defer c.revoked.mutex.Unlock()
	if r := c.revoked.find(chain); r != nil {
		return c.revoked.refuse(r, chain)
	}
	return nil
}

// Revokes is the entry that revokes one of some certificates; nil: there is none. Nobody is refused by that.
func (c *Credentials) Revokes(certificates ...*x509.Certificate) *Revocation {
	c.revoked.mutex.Lock()
	defer c.revoked.mutex.Unlock()
	return c.revoked.find(certificates)
}

// RevokedBy is the entry of a list, by Key, that revokes one of some certificates, whether or not it was heard of here; nil: there is none.
func (c *Credentials) RevokedBy(list map[string]*Revocation, now time.Time, certificates ...*x509.Certificate) *Revocation {
	for _, certificate := range certificates {
		for _, key := range keysOf(certificate) {
			if r := list[key]; r != nil && !c.Foreign(r) {
				if checked, err := c.Checked(*r, now); err == nil && checked.Covers(certificate) {
					return &checked
				}
			}
		}
	}
	return nil
}

// OwnRevoked is the entry that revokes the certificate that this process shows; nil: there is none.
func (c *Credentials) OwnRevoked() *Revocation { return c.Revokes(c.latest().chain...) }

// Hold has cut called, once, if a peer's certificate, or one that it shows for it, is revoked before release is called. cut must not wait, nor
// call Credentials. It is an error if that is so already.
func (c *Credentials) Hold(chain []*x509.Certificate, cut func(why error)) (release func(), err error) {
	l := &c.revoked
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if r := l.find(chain); r != nil {
		return nil, l.refuse(r, chain)
	}
	if l.held == nil {
		l.held = map[*held]struct{}{}
	}
	h := &held{chain, cut}
	l.held[h] = struct{}{}
	return func() {
		l.mutex.Lock()
		defer l.mutex.Unlock()
		delete(l.held, h)
	}, nil
}

// DialFunc is of net.Dialer.DialContext.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer connects to peers by HTTP/2, with a config of Client, To or At, over what dial returns. Its connections are closed as soon as the
// peer's certificate is revoked.
func (c *Credentials) Dialer(config *tls.Config, dial DialFunc) DialFunc {
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	return c.HeldDialer(config, dial)
}

// HeldDialer does the same with whatever protocol the config names.
func (c *Credentials) HeldDialer(config *tls.Config, dial DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		inner, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		raw := &heldConnection{Conn: inner}
		connection := tls.Client(raw, config)
		err = connection.HandshakeContext(ctx)
		if err == nil {
			err = raw.hold(c, connection.ConnectionState().PeerCertificates)
		}
		if err != nil {
			inner.Close()
			return nil, err
		}
		return connection, nil
	}
}

// heldConnection is off the list of what is held when it is closed.
type heldConnection struct {
	net.Conn
	mutex   sync.Mutex
	release func()
}

func (h *heldConnection) hold(c *Credentials, chain []*x509.Certificate) (err error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.release, err = c.Hold(chain, func(error) { h.Conn.Close() })
	return err
}

func (h *heldConnection) Close() error {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.release != nil {
		h.release()
	}
	return h.Conn.Close()
}
