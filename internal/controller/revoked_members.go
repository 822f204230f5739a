// Controllers whose certificate is revoked leave the members of the store in the same act: what the store knows is every key of the fleet.
package controller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// leaving returns the members of the store that a revocation is about, this controller last, and those that stay. A controller that answers
// with a certificate that is not revoked by it stays.
func (f fleetOf) leaving(ctx context.Context, r *pki.Revocation) (leave, stay []etcd.Peer, err error) {
	if f.peers.cluster == nil || r.Role != "" && r.Role != pki.Controller {
		return nil, nil, nil
	}
	members, err := f.peers.cluster.Peers(ctx)
	if err != nil {
		return nil, nil, err
	}
	self := -1
	for i, p := range members {
		switch {
		case p.Name == f.name && r.Covers(f.credentials.Own()):
			self = i
		case p.Name == f.name || r.Name != "" && p.Name != r.Name:
			stay = append(stay, p)
		default:
			shown := f.shownAt(ctx, p)
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
	return leave, stay, nil
}

// shownAt is the certificate that a controller shows now; nil: it does not answer, or is refused.
func (f fleetOf) shownAt(ctx context.Context, p etcd.Peer) *x509.Certificate {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	host, _, err := net.SplitHostPort(p.Address)
	if err != nil {
		return nil
	}
	connection, err := (&tls.Dialer{Config: f.credentials.At(pki.Controller, p.Name, host)}).DialContext(ctx, "tcp", p.Address)
	if err != nil {
		return nil
	}
	defer connection.Close()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// leave removes a controller from the members of the store.
func (f fleetOf) leave(ctx context.Context, p etcd.Peer, stay []etcd.Peer) error {
	if len(stay) == 0 {
		return fmt.Errorf("controller %s is the only member of the store", p.Name)
	}
	if err := controllersAPI(f).removePeer(ctx, stay, p.ID); err != nil {
		return fmt.Errorf("controller %s cannot leave the store: %w", p.Name, err)
	}
	return nil
}

// removeRevoked has controllers leave the store before their certificate is revoked: while they count, revoking could take its majority away. Where
// they cannot, nothing is done unless lockOut; then the rest is what the operator has to do.
func (f fleetOf) removeRevoked(ctx context.Context, leave, stay []etcd.Peer, lockOut bool) (changes []string, err error) {
	for i, p := range leave {
		if p.Name == f.name {
			continue // it could not revoke anything any more: leaveLast
		}
		err := f.leave(ctx, p, slices.Concat(stay, leave[i+1:]))
		switch {
		case err == nil:
			changes = append(changes, fmt.Sprintf("controller %s: removed", p.Name))
		case !lockOut && errors.Is(err, etcd.ErrLastQuorum):
			return nil, errLockOut([]string{err.Error()})
		case !lockOut:
			return nil, unavailable(err)
		default:
			changes = append(changes, stillMember(p.Name))
		}
	}
	return changes, nil
}

// leaveLast has this controller itself leave the store, which ends it.
func (f fleetOf) leaveLast(ctx context.Context, leave, stay []etcd.Peer) (changes []string) {
	for _, p := range leave {
		if p.Name != f.name {
			continue
		}
		if err := f.leave(ctx, p, stay); err != nil {
			f.log.Warn("this controller's certificate is revoked, and it is still a member of the store", "error", err)
			return []string{stillMember(p.Name)}
		}
		return []string{fmt.Sprintf("controller %s: removed", p.Name)}
	}
	return nil
}

func stillMember(name string) string {
	return fmt.Sprintf("controller %[1]s is still a member of the store, though its certificate is revoked: `ballast ctl controller remove %[1]s`", name)
}

// revokedMembers names members whose certificate is revoked, as far as this controller knows without asking: those that have shown one that is not
// since it started are none.
func (c *controller) revokedMembers() (problems []string) {
	if c.peers.cluster == nil {
		return nil
	}
	revoked := c.credentials.Revoked()
	for _, name := range c.peers.cluster.PeerNames() {
		shown := c.peers.shown.of(name)
		if name == c.name {
			shown = c.credentials.Own()
		}
		if slices.ContainsFunc(revoked, func(r pki.Revocation) bool {
			if shown != nil {
				return r.Covers(shown)
			}
			return r.Name == name && r.Serial == ""
		}) {
			problems = append(problems, stillMember(name))
		}
	}
	return problems
}
