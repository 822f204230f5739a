// Revoked certificates: a list in the store that only grows, until they have expired.
package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Implementation constants.
const (
	// revokedGrace is how long an entry is kept after what it is about has expired: clocks differ.
	revokedGrace = 24 * time.Hour
	ownLook      = time.Second // at whether this controller's own certificate is good
	// revokedReserve is for root on a controller's host: a thief who fills the list can still be revoked.
	revokedReserve = 1000
	// clocksDiffer is how far ahead the time of an entry may be; one that is further was written by a wrong clock, or forged.
	clocksDiffer = time.Hour
	// justRevoked is until when a controller may be among those that live though its certificate is revoked.
	justRevoked = time.Minute
)

func errLockOut(out []string) error {
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("nothing was changed: %s: if that is meant, repeat it with --force (in the API: lock_out)", strings.Join(out, "; ")))
}

func revocations(now *documents.Snapshot) []pki.Revocation {
	list := make([]pki.Revocation, 0, len(now.Revoked))
	for _, key := range slices.Sorted(maps.Keys(now.Revoked)) {
		list = append(list, *now.Revoked[key])
	}
	return list
}

// revoke goes by what the store says of certificates, whatever else is wrong with it, until ctx ends.
func (c *controller) revoke(ctx context.Context) {
	said := ""
	var seen map[string]*pki.Revocation
	for {
		now, changed := c.mirror.Next()
		if now != nil && (seen == nil || !maps.Equal(seen, now.Revoked)) { // whoever changes an entry makes another
			seen = now.Revoked
			news, err := c.credentials.Revoke(revocations(now), time.Now())
			if len(news) > 0 {
				c.hub.Topics.SetRevoked(c.credentials.Revoked(), news)
				c.log.Warn("certificates are revoked: they are refused from now on", "number", len(news), "last", news[len(news)-1].What())
			}
			if text := fmt.Sprint(err); err != nil && text != said {
				said = text
				c.log.Error("a part of the list of revoked certificates is not taken", "error", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// keepRevoked writes what this controller knows and a store that was restored from a copy does not, and drops what has expired or is
// of another authority.
func (c *controller) keepRevoked(ctx context.Context, at time.Time) error {
	known := c.credentials.Revoked()
	stale := func(now *documents.Snapshot) (changed []store.Document, err error) {
		for i := range known {
			if r := &known[i]; now.Revoked[r.Key()] == nil && at.Before(r.Ends) {
				document, err := now.Put(documents.RevokedPrefix+r.Key(), r)
				if err != nil {
					return nil, err
				}
				changed = append(changed, document)
			}
		}
		for key, r := range now.Revoked {
			if !at.Before(r.Ends.Add(revokedGrace)) || c.credentials.Foreign(r) {
				changed = append(changed, now.Delete(documents.RevokedPrefix+key))
			}
		}
		return changed, nil
	}
	if now := c.mirror.Now(); now == nil {
		return nil
	} else if changed, err := stale(now); err != nil || len(changed) == 0 {
		return err
	}
	_, err := c.writer.Commit(ctx, &documents.Change{}, stale)
	return err
}

// RevokeCertificate implements api.Desired.
func (f fleetOf) RevokeCertificate(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (changes []string, revision uint64, err error) {
	entry, err := f.revocation(ctx, r)
	if err != nil {
		return nil, 0, connect.NewError(connect.CodeInvalidArgument, err)
	}
	warnings := []string{fmt.Sprintf("%s: nobody accepts it from now on, and that cannot be taken back: its owner needs another one (`ballast ctl pki issue`)", entry.What())}
	out := f.lockedOut(ctx, &entry, f.mirror.Now())
	if len(out) > 0 && !r.LockOut {
		return nil, 0, errLockOut(out)
	}
	warnings = append(warnings, out...)
	leave, stay, err := f.leaving(ctx, &entry)
	if err != nil && !r.LockOut {
		return nil, 0, unavailable(fmt.Errorf("find out who leaves the store with it: %w", err))
	}
	for _, p := range leave {
		warnings = append(warnings, fmt.Sprintf("controller %s leaves the store, which %s: to add it again, empty its --data-dir", p.Name, model.Counted(len(stay), "other controller keeps", "other controllers keep")))
	}
	unknown := entry.Name != "" && entry.Serial == "" && !f.known(ctx, entry.Name)
	if unknown {
		warnings = append(warnings, fmt.Sprintf("%s: no node or controller of that name is known, and no recorded change is by it: is the name right?", entry.Name))
	}
	if !r.Force {
		return nil, 0, api.Dangerous(append(warnings, f.cutOff(&entry)...))
	}
	removed, err := f.removeRevoked(ctx, leave, stay, r.LockOut)
	if err != nil {
		return nil, 0, err
	}
	room := pki.RevokedMax
	if by, _ := api.CallerOf(ctx); by.Certificate != nil {
		room -= revokedReserve
	}
	record := documents.ChangeBy(ctx)
	revision, err = f.writer.Commit(ctx, record, func(now *documents.Snapshot) ([]store.Document, error) {
		changes, record.Changes = nil, nil
		before := now.Revoked[entry.Key()]
		switch {
		case before != nil && (entry.Serial != "" || !entry.At.After(before.At) && !before.At.After(entry.At.Add(clocksDiffer))):
			return nil, nil
		case before == nil && len(now.Revoked) >= room:
			return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(
				"the list of revoked certificates is full (%d): those that expire make room, and root on a controller's host (--instance) has room for %d in all: "+
					"else make a new authority (\"Lost key\" in docs/run/operate.md)", room, pki.RevokedMax))
		}
		if out := f.lockedOut(ctx, &entry, now); len(out) > 0 && !r.LockOut { // somebody else may have revoked the other controllers meanwhile
			return nil, errLockOut(out)
		}
		if before != nil && entry.Reason == "" {
			entry.Reason = before.Reason
		}
		changes = []string{"revoked: " + entry.What()}
		if entry.Reason != "" {
			changes[0] += ": " + entry.Reason
		}
		if unknown {
			changes[0] += " (no node or controller of that name is known)"
		}
		changes = append(changes, removed...)
		record.Changes = changes
		document, err := now.Put(documents.RevokedPrefix+entry.Key(), &entry)
		return []store.Document{document}, err
	})
	if err != nil {
		if len(removed) > 0 {
			err = connect.NewError(connect.CodeOf(err), fmt.Errorf("%s, but the certificate is not revoked: %w", strings.Join(removed, "; "), err))
		}
		return nil, 0, err
	}
	if len(changes) == 0 {
		changes = removed // it was revoked before
	}
	changes = append(changes, f.leaveLast(ctx, leave, stay)...)
	if len(changes) > 0 {
		f.log.Info("changed", "by", record.By, "revision", revision, "changes", changes)
	}
	return changes, revision, nil
}

// revocation is what a request asks for.
func (f fleetOf) revocation(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (entry pki.Revocation, err error) {
	now := time.Now()
	_, authorityEnds := f.credentials.Ends()
	entry = pki.Revocation{Name: r.Name, Serial: r.Serial, At: now, Ends: authorityEnds, Reason: r.Reason}
	given := 0
	for _, is := range []bool{r.Name != "", r.Serial != "", len(r.Certificate) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return entry, errors.New("which certificate is meant is not clear: give one of name, serial and certificate")
	}
	if len(r.Certificate) > 0 {
		certificate, err := f.credentials.Revocable(r.Certificate, now)
		if err != nil {
			return entry, err
		}
		entry = pki.RevocationOf(certificate, now, r.Reason)
	}
	if r.Serial != "" {
		by, _ := api.CallerOf(ctx)
		for _, certificate := range append(f.hub.Nodes.Certificates(), f.credentials.Own(), by.Certificate) {
			if certificate != nil && entry.Covers(certificate) {
				entry = pki.RevocationOf(certificate, now, r.Reason)
			}
		}
	}
	return f.credentials.Checked(entry, now)
}

// lockedOut says who could do nothing about a revocation any more: whoever asks for it, or all controllers, as far as now, nil: unknown, tells.
func (f fleetOf) lockedOut(ctx context.Context, r *pki.Revocation, now *documents.Snapshot) (out []string) {
	by, _ := api.CallerOf(ctx)
	if by.Certificate != nil && r.Covers(by.Certificate) {
		out = append(out, fmt.Sprintf("it is the certificate that you use (%s)", by.Name))
	}
	if list := f.controllers(now); len(list) > 0 && !slices.ContainsFunc(list, func(name string) bool { return f.left(name, r, now) }) {
		out = append(out, "no controller would be left that nodes accept")
	}
	return out
}

// controllers are those that live, or while this one takes no part in that, those that the others have agreed on.
func (f fleetOf) controllers(now *documents.Snapshot) (names []string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, m := range f.live {
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
func (f fleetOf) left(name string, r *pki.Revocation, now *documents.Snapshot) bool {
	revokes := func(r *pki.Revocation) bool { return r.Name == name && (r.Serial == "" || r.Role == pki.Controller) }
	if name == f.name {
		revokes = func(r *pki.Revocation) bool { return r.Covers(f.credentials.Own()) }
	}
	if revokes(r) || name == f.name && f.credentials.OwnRevoked() != nil {
		return false
	}
	if now == nil {
		return true
	}
	for _, other := range now.Revoked {
		if revokes(other) && (name == f.name || time.Since(other.At) < justRevoked) {
			return false
		}
	}
	return true
}

// known reports whether a node, a controller, a server or who made a change that is still recorded has a name. Who holds a certificate and
// never used it here is not known.
func (f fleetOf) known(ctx context.Context, name string) bool {
	if by, _ := api.CallerOf(ctx); name == f.name || by.Certificate != nil && by.Name == name {
		return true
	}
	now := f.mirror.Now()
	if now == nil {
		return slices.Contains(f.controllers(now), name)
	}
	nodes, _ := f.Nodes(ctx)
	changes, _ := f.History(ctx)
	return slices.ContainsFunc(nodes, func(n *ballastv1.NodeStatus) bool { return n.Name == name }) ||
		slices.ContainsFunc(changes, func(c *ballastv1.FleetChange) bool { return c.Name == name }) ||
		slices.ContainsFunc(now.Nodes.Nodes, func(n model.Node) bool { return n.Name == name }) ||
		slices.ContainsFunc(slices.Collect(maps.Values(now.Services)), func(s *documents.Service) bool {
			return slices.ContainsFunc(s.Service.Servers, func(server model.Server) bool { return server.Name == name })
		})
}

// cutOff names whom a revocation cuts off now.
func (f fleetOf) cutOff(r *pki.Revocation) (who []string) {
	if r.Covers(f.credentials.Own()) {
		who = append(who, fmt.Sprintf("controller %s, which you ask: nodes leave it", f.name))
	}
	for _, certificate := range f.hub.Nodes.Certificates() {
		if r.Covers(certificate) {
			who = append(who, fmt.Sprintf("%s is connected: it goes on by its last state, and reports nothing", certificate.Subject.CommonName))
		}
	}
	return who
}

// Revocations implements api.Desired.
func (f fleetOf) Revocations(context.Context) ([]pki.Revocation, error) {
	if f.mirror.Now() == nil {
		return nil, desired.ErrUnknown
	}
	return f.credentials.Revoked(), nil
}

// takePart divides the services with the others until ctx ends, but for the time in which this controller's own certificate is revoked: no
// node would hear it.
func (c *controller) takePart(ctx context.Context) {
	for ctx.Err() == nil {
		part, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			defer end()
			c.awaitOwn(part, func() bool { return c.credentials.OwnRevoked() != nil })
		})
		c.divide(part)
		end()
		watching.Wait()
		c.awaitOwn(ctx, func() bool { return c.credentials.OwnRevoked() == nil })
	}
}

// awaitOwn waits until something is true of the own certificate, or ctx ends.
func (c *controller) awaitOwn(ctx context.Context, holds func() bool) {
	tick := time.NewTicker(ownLook)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
