// Controllers whose certificate is revoked leave the members of the store in the same act: what the store knows is
// every key of the fleet.
package members

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// Departure is about the members of the store that a revocation is about. The zero value is about nobody.
type Departure struct {
	cluster *Cluster
	leave   []etcd.Peer // this controller last
	stay    []etcd.Peer
}

// Departure returns who leaves the store with a revocation. A controller that answers with a certificate that is not
// revoked by it stays.
func (c *Cluster) Departure(ctx context.Context, r *pki.Revocation) (Departure, error) {
	if c.o.Store == nil || r.Role != "" && r.Role != pki.Controller {
		return Departure{}, nil
	}
	members, err := c.o.Store.Peers(ctx)
	if err != nil {
		return Departure{}, err
	}
	var leave, stay []etcd.Peer
	self := -1
	for i, p := range members {
		switch {
		case p.Name == c.o.Name && r.Covers(c.o.Credentials.Own()):
			self = i
		case p.Name == c.o.Name || r.Name != "" && p.Name != r.Name:
			stay = append(stay, p)
		default:
			shown := c.shownAt(ctx, p)
			if shown != nil && r.Covers(shown) || shown == nil && r.Name != "" {
				leave = append(leave, p)
			} else {
				stay = append(stay, p) // of a serial number whose owner nobody knows, members that do not answer are not taken for it
			}
		}
	}
	if self >= 0 {
		leave = append(leave, members[self])
	}
	return Departure{c, leave, stay}, nil
}

// Warnings says who leaves.
func (d Departure) Warnings() (warnings []string) {
	for _, p := range d.leave {
		warnings = append(warnings, fmt.Sprintf("controller %s leaves the store, which %s: to add it again, empty its --data-dir", p.Name,
			model.Counted(len(d.stay), "other controller keeps", "other controllers keep")))
	}
	return warnings
}

// shownAt is the certificate that a controller shows now; nil: it does not answer, or is refused.
func (c *Cluster) shownAt(ctx context.Context, p etcd.Peer) *x509.Certificate {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(p.Address)
	if err != nil {
		return nil
	}
	connection, err := (&tls.Dialer{Config: c.o.Credentials.At(pki.Controller, p.Name, host)}).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return nil
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// remove removes a controller from the members of the store.
func (d Departure) remove(ctx context.Context, p etcd.Peer, stay []etcd.Peer) error {
	if len(stay) == 0 {
		return fmt.Errorf("controller %s is the only member of the store", p.Name)
	}
	if err := d.cluster.remove(ctx, stay, p.ID); err != nil {
		return fmt.Errorf("controller %s cannot leave the store: %w", p.Name, err)
	}
	return nil
}

// RemoveOthers has controllers leave the store before their certificate is revoked: while they count, revoking could
// take its majority away. Where one cannot, the next are not tried unless lockOut; then the rest is what the operator
// has to do.
func (d Departure) RemoveOthers(ctx context.Context, lockOut bool) (changes []string, err error) {
	for i, p := range d.leave {
		if p.Name == d.cluster.o.Name {
			continue // it could not revoke anything any more: RemoveSelf
		}
		err := d.remove(ctx, p, slices.Concat(d.stay, d.leave[i+1:]))
		switch {
		case err == nil:
			changes = append(changes, removed(p.Name))
		case !lockOut:
			return nil, err
		default:
			changes = append(changes, stillMember(p.Name))
		}
	}
	return changes, nil
}

// RemoveSelf has this controller itself leave the store, which ends it.
func (d Departure) RemoveSelf(ctx context.Context) (changes []string) {
	for _, p := range d.leave {
		if p.Name != d.cluster.o.Name {
			continue
		}
		if err := d.remove(ctx, p, d.stay); err != nil {
			d.cluster.o.Log.Warn("this controller's certificate is revoked, and it is still a member of the store", "error", err)
			return []string{stillMember(p.Name)}
		}
		return []string{removed(p.Name)}
	}
	return nil
}

func removed(name string) string { return fmt.Sprintf("controller %s: removed", name) }

func stillMember(name string) string {
	return fmt.Sprintf("controller %[1]s is still a member of the store, though its certificate is revoked: `ballast ctl controller remove %[1]s`", name)
}

// RevokedMembers names members whose certificate is revoked, as far as this controller knows without asking: those that
// have shown one that is not since it started are none.
func (c *Cluster) RevokedMembers() (problems []string) {
	if c.o.Store == nil {
		return nil
	}
	revoked := c.o.Credentials.Revoked()
	for _, name := range c.o.Store.PeerNames() {
		shown := c.o.Shown.Of(name)
		if name == c.o.Name {
			shown = c.o.Credentials.Own()
		}
		if slices.ContainsFunc(revoked, func(r pki.Revocation) bool {
			if shown != nil {
				return r.Covers(shown)
			}
			return r.Name == name && r.Serial == "" && (r.Role == "" || r.Role == pki.Controller)
		}) {
			problems = append(problems, stillMember(name))
		}
	}
	return problems
}
