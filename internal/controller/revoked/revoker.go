// How operators revoke certificates, and what keeps them from locking themselves out.
package revoked

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/controller/members"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
	"github.com/ballast-lb/ballast/internal/store/etcd"
)

// Implementation constants.
const (
	// Reserve is for root on a controller's host: a thief who fills the list can still be revoked.
	Reserve = 1000
	// clocksDiffer is how far ahead the time of an entry may be; one that is further was written by a wrong clock, or
	// forged.
	clocksDiffer = time.Hour
	// justRevoked is until when a controller may be among those that live though its certificate is revoked.
	justRevoked = time.Minute
)

// RevokerOptions are what a revoker needs.
type RevokerOptions struct {
	Options
	Live      func() []store.Member // controllers
	Departure func(context.Context, *pki.Revocation) (members.Departure, error)
	Nodes     func() ([]*ballastv1.NodeStatus, error)
}

// Revoker revokes certificates.
type Revoker struct{ o RevokerOptions }

// NewRevoker returns one.
func NewRevoker(o RevokerOptions) *Revoker { return &Revoker{o} }

func errLockOut(out []string) error {
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("nothing was changed: %s: if that is meant, repeat it with --force (in the API: lock_out)", strings.Join(out, "; ")))
}

// Revoke has nobody accept certificates any more; see api.Desired.
func (v *Revoker) Revoke(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	entry, err := v.revocation(ctx, r)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	warnings := []string{fmt.Sprintf("%s: nobody accepts it from now on, and that cannot be taken back: its owner needs another one (`ballast ctl pki issue`)", entry.What())}
	out := v.lockedOut(ctx, &entry, v.o.Mirror.Now())
	if len(out) > 0 && !r.LockOut {
		return nil, errLockOut(out)
	}
	warnings = append(warnings, out...)
	departure, err := v.o.Departure(ctx, &entry)
	if err != nil && !r.LockOut {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("find out who leaves the store with it: %w", err))
	}
	warnings = append(warnings, departure.Warnings()...)
	warnings = append(warnings, v.signs(&entry)...)
	unknown := entry.Name != "" && entry.Serial == "" && !v.known(ctx, entry.Name)
	if unknown {
		warnings = append(warnings, fmt.Sprintf("%s: no node or controller of that name is known, and no recorded change is by it: is the name right?", entry.Name))
	}
	covered := v.covered(ctx, &entry)
	if len(covered) > 1 {
		warnings = append(warnings, fmt.Sprintf("%s has several: %s: to revoke those of one role, name it (`--role`)", entry.Name, strings.Join(covered, ", ")))
	}
	if warnings = append(warnings, v.cutOff(&entry)...); !r.Force && !r.DryRun {
		return nil, api.Dangerous(warnings)
	}
	var removed []string
	if !r.DryRun {
		removed, err = departure.RemoveOthers(ctx, r.LockOut)
	}
	switch {
	case errors.Is(err, etcd.ErrLastQuorum):
		return nil, errLockOut([]string{err.Error()})
	case err != nil && !r.DryRun:
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	record := documents.ChangeBy(ctx)
	var changes []string
	revision, err := v.o.Writer.Commit(ctx, record, func(now *documents.Snapshot) ([]store.Document, error) {
		changes, record.Changes = nil, nil
		if news, err := admits(ctx, now, &entry); err != nil || !news {
			return nil, err
		}
		if out := v.lockedOut(ctx, &entry, now); len(out) > 0 && !r.LockOut { // somebody else may have revoked the other controllers meanwhile
			return nil, errLockOut(out)
		}
		if before := now.Revoked[entry.Key()]; before != nil && entry.Reason == "" {
			entry.Reason = before.Reason
		}
		changes = []string{"revoked: " + entry.What()}
		if len(covered) > 0 {
			changes[0] += ": " + strings.Join(covered, ", ")
		}
		if entry.Reason != "" {
			changes[0] += ": " + entry.Reason
		}
		if unknown {
			changes[0] += " (no node or controller of that name is known)"
		}
		changes = append(changes, removed...)
		if record.Changes = changes; r.DryRun {
			return nil, nil
		}
		document, err := now.Put(documents.RevokedPrefix+entry.Key(), &entry)
		return []store.Document{document}, err
	})
	if err != nil {
		if len(removed) > 0 {
			err = connect.NewError(connect.CodeOf(err), fmt.Errorf("%s, but the certificate is not revoked: %w", strings.Join(removed, "; "), err))
		}
		return nil, err
	}
	answer := &ballastv1.ChangeResponse{Changes: changes, Revision: revision, Warnings: warnings}
	if r.DryRun {
		return answer, nil
	}
	if len(changes) == 0 {
		changes = removed // it was revoked before
	}
	changes = append(changes, departure.RemoveSelf(ctx)...)
	if len(changes) > 0 {
		v.o.Log.Info("changed", "by", record.By, "revision", revision, "changes", changes)
	}
	answer.Changes = changes
	return answer, nil
}

// admits reports whether an entry is news to the list; an error: there is no room for it.
func admits(ctx context.Context, now *documents.Snapshot, entry *pki.Revocation) (news bool, err error) {
	room := pki.RevokedMax
	if by, _ := api.CallerOf(ctx); by.Certificate != nil {
		room -= Reserve
	}
	before := now.Revoked[entry.Key()]
	switch {
	case before != nil && (entry.Serial != "" || !entry.At.After(before.At) && !before.At.After(entry.At.Add(clocksDiffer))):
		return false, nil
	case before == nil && len(now.Revoked) >= room:
		return false, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(
			"the list of revoked certificates is full (%d): those that expire make room, and root on a controller's host (--instance) has room for %d in all: "+
				"else make a new authority (\"Lost key\" in docs/run/operate.md)", room, pki.RevokedMax))
	}
	return true, nil
}

// revocation is what a request asks for.
func (v *Revoker) revocation(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (entry pki.Revocation, err error) {
	now := time.Now()
	_, authorityEnds := v.o.Credentials.Ends()
	entry = pki.Revocation{Name: r.Name, Serial: r.Serial, Role: pki.Role(r.Role), At: now, Ends: authorityEnds, Reason: r.Reason}
	given := 0
	for _, is := range []bool{r.Name != "", r.Serial != "", len(r.Certificate) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return entry, errors.New("which certificate is meant is not clear: give one of name, serial and certificate")
	}
	if r.Role != "" && r.Name == "" {
		return entry, errors.New("a role is of a name: one certificate has the role that it has")
	}
	if len(r.Certificate) > 0 {
		certificate, err := v.o.Credentials.Revocable(r.Certificate, now)
		if err != nil {
			return entry, err
		}
		entry = pki.RevocationOf(certificate, now, r.Reason)
	}
	if r.Serial != "" {
		for _, certificate := range v.certificates(ctx) {
			if entry.Covers(certificate) {
				entry = pki.RevocationOf(certificate, now, r.Reason)
			}
		}
	}
	return v.o.Credentials.Checked(entry, now)
}

// certificates are those that are known here: of nodes that are connected or joined by a token, of whoever asks, of this controller.
func (v *Revoker) certificates(ctx context.Context) (known []*x509.Certificate) {
	by, _ := api.CallerOf(ctx)
	known = append(v.o.Hub.Nodes.Certificates(), v.o.Credentials.Own())
	if by.Certificate != nil {
		known = append(known, by.Certificate)
	}
	if now := v.o.Mirror.Now(); now != nil {
		for _, node := range now.Enrolled {
			if certificate, err := x509.ParseCertificate(node.Chain[0]); err == nil {
				known = append(known, certificate)
			}
		}
	}
	return known
}

// covered names the certificates that a revocation of a name is of, as far as they are known.
func (v *Revoker) covered(ctx context.Context, r *pki.Revocation) (named []string) {
	if r.Serial != "" {
		return nil
	}
	for _, certificate := range v.certificates(ctx) {
		if one := pki.RevocationOf(certificate, r.At, ""); r.Covers(certificate) {
			named = append(named, fmt.Sprintf("%s with serial number %s", one.Role, one.Serial))
		}
	}
	slices.Sort(named)
	return slices.Compact(named)
}

// lockedOut says who could do nothing about a revocation any more: whoever asks for it, or all controllers, as far as
// now, nil: unknown, tells.
func (v *Revoker) lockedOut(ctx context.Context, r *pki.Revocation, now *documents.Snapshot) (out []string) {
	by, _ := api.CallerOf(ctx)
	if by.Certificate != nil && r.Covers(by.Certificate) {
		out = append(out, fmt.Sprintf("it is the certificate that you use (%s)", by.Name))
	}
	if list := v.controllers(now); len(list) > 0 && !slices.ContainsFunc(list, func(name string) bool { return v.left(name, r, now) }) {
		out = append(out, "no controller would be left that nodes accept")
	}
	return out
}

// signs says what has to follow where a controller goes that may have been broken into: it has had the key of the signing authority. And it
// says what goes with that.
func (v *Revoker) signs(r *pki.Revocation) (warnings []string) {
	now := v.o.Mirror.Now()
	if now == nil || len(now.Signing.Certificate) == 0 {
		return nil
	}
	signing, err := x509.ParseCertificate(now.Signing.Certificate)
	if err != nil {
		return nil
	}
	if r.Covers(signing) {
		return []string{"it is the signing authority: all nodes that joined by a token are cut off, and join again once `ballast ctl pki delegate` has made another one"}
	}
	isController := r.Role == pki.Controller || r.Role == "" && slices.Contains(v.controllers(now), r.Name)
	if isController && v.o.Credentials.Revokes(signing) == nil {
		warnings = append(warnings, fmt.Sprintf("it is a controller's, which has the key of the signing authority: if it was stolen, revoke that, too: `ballast ctl pki revoke %s`", pki.SerialOf(signing)))
	}
	return warnings
}

// controllers are those that live, or while this one takes no part in that, those that the others have agreed on.
func (v *Revoker) controllers(now *documents.Snapshot) (names []string) {
	for _, m := range v.o.Live() {
		names = append(names, m.Name)
	}
	if len(names) == 0 && now != nil {
		for _, m := range now.Controllers.Members {
			names = append(names, m.Name)
		}
	}
	return names
}

// left reports whether nodes accept a controller still, after a revocation and those that others have just asked for.
func (v *Revoker) left(name string, r *pki.Revocation, now *documents.Snapshot) bool {
	revokes := func(r *pki.Revocation) bool {
		return r.Name == name && (r.Serial == "" && r.Role == "" || r.Role == pki.Controller)
	}
	if name == v.o.Name {
		revokes = func(r *pki.Revocation) bool { return r.Covers(v.o.Credentials.Own()) }
	}
	if revokes(r) || name == v.o.Name && v.o.Credentials.OwnRevoked() != nil {
		return false
	}
	if now == nil {
		return true
	}
	for _, other := range now.Revoked {
		if revokes(other) && (name == v.o.Name || time.Since(other.At) < justRevoked) {
			return false
		}
	}
	return true
}

// known reports whether a node, a controller, a server or who made a change that is still recorded has a name. Who
// holds a certificate and never used it here is not known.
func (v *Revoker) known(ctx context.Context, name string) bool {
	if by, _ := api.CallerOf(ctx); name == v.o.Name || by.Certificate != nil && by.Name == name {
		return true
	}
	now := v.o.Mirror.Now()
	if now == nil {
		return slices.Contains(v.controllers(now), name)
	}
	nodes, _ := v.o.Nodes()
	return slices.ContainsFunc(nodes, func(n *ballastv1.NodeStatus) bool { return n.Name == name }) ||
		slices.ContainsFunc(now.History.Changes, func(c documents.Change) bool { return c.By.Name == name }) ||
		slices.ContainsFunc(now.Nodes.Nodes, func(n model.Node) bool { return n.Name == name }) ||
		slices.ContainsFunc(slices.Collect(maps.Values(now.Services)), func(s *documents.Service) bool {
			return slices.ContainsFunc(s.Service.Servers, func(server model.Server) bool { return server.Name == name })
		})
}

// cutOff names whom a revocation cuts off now.
func (v *Revoker) cutOff(r *pki.Revocation) (who []string) {
	if r.Covers(v.o.Credentials.Own()) {
		who = append(who, fmt.Sprintf("controller %s, which you ask: nodes leave it", v.o.Name))
	}
	for _, certificate := range v.o.Hub.Nodes.Certificates() {
		if r.Covers(certificate) {
			who = append(who, fmt.Sprintf("%s is connected: it goes on by its last state, and reports nothing", certificate.Subject.CommonName))
		}
	}
	return who
}
