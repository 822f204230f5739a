// Nodes that have a certificate of the signing authority, and renew it.
package enrolment

import (
	"context"
	"crypto/x509"
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
	errorsTo := connect.NewErrorWriter()
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := hub.Certified(r)
		if err == nil && who.Role != pki.LB && who.Role != pki.Agent {
			err = refuse(connect.CodePermissionDenied, "the certificate of %s is for role %s: those of load balancers and agents are renewed", who.Name, who.Role)
		}
		if err != nil {
			hub.NoteRefused(r, pki.WrongRole, err)
			errorsTo.Write(w, r, err) // the client may have gone
			return
		}
		renewal.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), shownKey{}, r.TLS.PeerCertificates[0])))
	})
}

const requestBytes = 16 << 10

// Renew implements ballastv1connect.RenewalHandler.
func (e *Enrolment) Renew(ctx context.Context, r *ballastv1.RenewRequest) (*ballastv1.RenewResponse, error) {
	shown := ctx.Value(shownKey{}).(*x509.Certificate)
	if !e.renew.enter(shown.Subject.CommonName) {
		return nil, refuse(connect.CodeResourceExhausted, "it is asked for too often")
	}
	defer e.renew.leave()
	wanted, err := pki.ParseRequest(r.Request)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	var chain [][]byte
	err = e.o.Writer.Update(ctx, func(now *documents.Snapshot) ([]store.Document, error) {
		next, err := e.renewed(now, e.o.Now(), shown, &wanted)
		if err != nil {
			return nil, err
		}
		chain = next.Chain
		document, err := now.Put(documents.EnrolledPrefix+wanted.Name, next)
		return []store.Document{document}, err
	})
	if err != nil {
		return nil, err
	}
	e.o.Log.Info("certificate renewed", "role", wanted.Role, "name", wanted.Name)
	return &ballastv1.RenewResponse{Chain: chain}, nil
}

// renewed is what is known of a node with a new certificate, by one state of the store. TLS has verified the one that it shows.
func (e *Enrolment) renewed(now *documents.Snapshot, at time.Time, shown *x509.Certificate, wanted *pki.Wanted) (*documents.Enrolled, error) {
	identity, err := pki.IdentityOf(shown)
	if err != nil {
		return nil, connect.NewError(connect.CodePermissionDenied, err)
	}
	before := now.Enrolled[identity.Name]
	key, err := pki.KeyID(wanted.Key)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	switch {
	case shown.CheckSignatureFrom(e.o.Credentials.Root()) == nil:
		return nil, refuse(connect.CodeFailedPrecondition, "the certificate of %s was issued by hand: `ballast ctl pki issue --force` renews it", identity.Name)
	case e.o.Credentials.Revokes(shown) != nil:
		return nil, refuse(connect.CodePermissionDenied, "the certificate of %s is revoked: it joins again by a token", identity.Name)
	case wanted.Role != identity.Role || wanted.Name != identity.Name:
		return nil, refuse(connect.CodePermissionDenied, "%s %s asks for a certificate of %s %s: a new role or name needs a new token", identity.Role, identity.Name, wanted.Role, wanted.Name)
	case slices.ContainsFunc(wanted.DNS, func(name string) bool { return name != identity.Name }),
		len(wanted.Addresses) > 0 && !sameAddresses(wanted.Addresses, identity.Addresses):
		return nil, refuse(connect.CodePermissionDenied, "%s asks for other addresses or names than its certificate has: those need a new token", identity.Name)
	case wanted.Key.Equal(shown.PublicKey):
		return nil, refuse(connect.CodeInvalidArgument, "%s asks for a certificate for the key that it has: each has a key of its own", identity.Name)
	case at.Before(shown.NotAfter.Add(-pki.LifeOf(shown) / 2)):
		return nil, refuse(connect.CodeFailedPrecondition, "the certificate of %s is not due yet: it is renewed from %s on", identity.Name, pki.RenewAt(shown).Format(time.RFC3339))
	case before != nil && before.Role != identity.Role && e.lives(before, at):
		return nil, refuse(connect.CodePermissionDenied, "%s is the name of another node by now, for role %s", identity.Name, before.Role)
	}
	next := &documents.Enrolled{Role: identity.Role, Key: key, Addresses: identity.Addresses, Life: pki.LifeOf(shown), At: at.UTC().Truncate(time.Second)}
	if before != nil {
		next.Life, next.Invitation, next.At, next.From = before.Life, before.Invitation, before.At, before.From
	}
	return next, e.sign(now, at, wanted, next)
}
