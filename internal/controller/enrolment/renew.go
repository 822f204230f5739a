// Nodes that have a certificate of the signing authority, and renew it.
package enrolment

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/api/ballastv1/ballastv1connect"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

type shownKey struct{}

// ForNodes has Renew answer those who show a certificate of the signing authority, by mutual TLS.
func (e *Enrolment) ForNodes() (path string, handler http.Handler) {
	path, renewal := ballastv1connect.NewRenewalHandler(e, connect.WithReadMaxBytes(requestBytes))
	return path, hub.ForNodes(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		renewal.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), shownKey{}, r.TLS.PeerCertificates)))
	}))
}

const requestBytes = 16 << 10

// Renew implements ballastv1connect.RenewalHandler.
func (e *Enrolment) Renew(ctx context.Context, r *ballastv1.RenewRequest) (*ballastv1.RenewResponse, error) {
	shown := ctx.Value(shownKey{}).([]*x509.Certificate)
	who := shown[0].Subject.CommonName
	if !e.renew.enter(who) {
		return nil, refuse(connect.CodeResourceExhausted, "it is asked for too often")
	}
	defer e.renew.leave(who)
	wanted, err := pki.ParseRequest(r.Request)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	var chain [][]byte
	_, _, err = e.o.Writer.Record(ctx, false, func(now *documents.Snapshot) (changes []string, changed []store.Document, err error) {
		chain, changed, err = e.renewed(now, e.o.Now(), shown, &wanted)
		return nil, changed, err // the history would be full of them
	})
	if errors.Is(err, errOlder) {
		e.o.Log.Warn("certificate not renewed", "role", wanted.Role, "name", wanted.Name, "err", err)
	}
	if err != nil {
		return nil, err
	}
	e.o.Log.Info("certificate renewed", "role", wanted.Role, "name", wanted.Name)
	return &ballastv1.RenewResponse{Chain: chain}, nil
}

// errOlder is what controllers see of a certificate that somebody else has renewed.
var errOlder = errors.New("two hosts have its certificate, or it or the controllers were restored from a copy")

// renewed decides by one state of the store. TLS has verified what is shown. Only the newest certificate of a name is renewed, so a copy of it is good
// until its owner has renewed it. Who asks again with the same key gets the same certificate, and nothing is changed: the answer may have been lost.
func (e *Enrolment) renewed(now *documents.Snapshot, at time.Time, chain []*x509.Certificate, wanted *pki.Wanted) (
	signed [][]byte, changed []store.Document, err error,
) {
	shown := chain[0]
	identity, err := pki.IdentityOf(shown)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodePermissionDenied, err)
	}
	before := now.Enrolled[identity.Name]
	key, err := pki.KeyID(wanted.Key)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	switch {
	case shown.CheckSignatureFrom(e.o.Credentials.Root()) == nil:
		return nil, nil, refuse(connect.CodeFailedPrecondition, "the certificate of %s was issued by hand: `ballast ctl pki issue --force` renews it", identity.Name)
	case e.revokes(now, at, chain...) != nil:
		return nil, nil, refuse(connect.CodePermissionDenied, "the certificate of %s is revoked: it joins again by a token", identity.Name)
	case wanted.Role != identity.Role || wanted.Name != identity.Name:
		return nil, nil, refuse(connect.CodePermissionDenied, "%s %s asks for a certificate of %s %s: a new role or name needs a new token", identity.Role, identity.Name, wanted.Role, wanted.Name)
	case slices.ContainsFunc(wanted.DNS, func(name string) bool { return name != identity.Name }),
		len(wanted.Addresses) > 0 && !sameAddresses(wanted.Addresses, identity.Addresses):
		return nil, nil, refuse(connect.CodePermissionDenied, "%s asks for other addresses or names than its certificate has: those need a new token", identity.Name)
	case wanted.Key.Equal(shown.PublicKey):
		return nil, nil, refuse(connect.CodeInvalidArgument, "%s asks for a certificate for the key that it has: each has a key of its own", identity.Name)
	case at.Before(shown.NotAfter.Add(-pki.LifeOf(shown) / 2)):
		return nil, nil, refuse(connect.CodeFailedPrecondition, "the certificate of %s is not due yet: it is renewed from %s on", identity.Name, pki.RenewAt(shown).Format(time.RFC3339))
	case before == nil:
		return nil, nil, refuse(connect.CodePermissionDenied, "no certificate of %s is known to controllers, who may have been restored from a copy: join again with a new token (`ballast join --again`)", identity.Name)
	case before.Key == key && before.Role == wanted.Role && e.lives(before, at):
		return before.Chain, nil, nil
	case !bytes.Equal(shown.Raw, before.Chain[0]):
		return nil, nil, refuse(connect.CodePermissionDenied, "the certificate of %s is not the newest of that name: %w: if this is the right host, `ballast ctl pki revoke %s`, then join again with a new token (`ballast join --again`)",
			identity.Name, errOlder, identity.Name)
	}
	next := *before
	next.Key, next.Addresses = key, identity.Addresses
	if err := e.sign(now, at, wanted, &next); err != nil {
		return nil, nil, err
	}
	document, err := now.Put(documents.EnrolledPrefix+wanted.Name, &next)
	return next.Chain, []store.Document{document}, err
}

// revokes is the entry that revokes one of some certificates, on the list of this state of the store, or on that which this controller has heard of.
func (e *Enrolment) revokes(now *documents.Snapshot, at time.Time, certificates ...*x509.Certificate) *pki.Revocation {
	if r := e.o.Credentials.Revokes(certificates...); r != nil {
		return r
	}
	return e.o.Credentials.RevokedBy(now.Revoked, at, certificates...)
}
