// Machines that have a token and no certificate.
package enrolment

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/enrol"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Serve answers one machine.
func (e *Enrolment) Serve(c *tls.Conn) {
	answer, err := e.converse(c)
	if err != nil {
		e.o.Refused(c.RemoteAddr().String(), err)
		code := connect.CodeOf(err)
		answer = &ballastv1.JoinAnswer{Refused: api.TextOf(err), Again: code == connect.CodeUnavailable || code == connect.CodeUnknown || code == connect.CodeResourceExhausted}
	}
	enrol.Send(c, answer) // who asked may have gone
}

func (e *Enrolment) converse(c *tls.Conn) (*ballastv1.JoinAnswer, error) {
	source := sourceOf(c.RemoteAddr())
	c.SetDeadline(e.deadline(enrol.AskTimeout))
	if err := enrol.Send(c, &ballastv1.JoinGreeting{Controller: e.o.Name, Version: e.o.Version, Time: timestamppb.New(e.o.Now())}); err != nil {
		return nil, err
	}
	who := neighbourhood(source)
	if !e.gate.enter(who...) {
		return nil, refuse(connect.CodeResourceExhausted, "too many ask to join: ask again in a moment")
	}
	defer e.gate.leave(who...)
	request := &ballastv1.JoinRequest{}
	if err := enrol.Receive(bufio.NewReaderSize(c, enrol.MessageBytes), request); err != nil {
		return nil, refuse(connect.CodeInvalidArgument, "it asks for nothing that makes sense: %w", err)
	}
	c.SetDeadline(e.deadline(enrol.SignTimeout))
	ctx, cancel := context.WithTimeout(context.Background(), enrol.SignTimeout)
	defer cancel()
	chain, err := e.Join(ctx, source, request)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, err
	}
	joined, err := pki.IdentityOf(leaf)
	if err != nil {
		return nil, err
	}
	return &ballastv1.JoinAnswer{Chain: chain, Controllers: e.addresses(), Drained: e.o.Drained(ctx, &joined)}, nil
}

// deadline is by the clock that connections go by, whatever Options.Now says.
func (e *Enrolment) deadline(after time.Duration) time.Time { return time.Now().Add(after) }

// errUnknown is all that somebody hears who has no secret of ours.
var errUnknown = refuse(connect.CodePermissionDenied, "no invitation of this token is known: it ended long ago, or was never made: make another one with `ballast ctl node invite`")

// Join signs a certificate for a machine, or returns the one that it was given before.
func (e *Enrolment) Join(ctx context.Context, source netip.Addr, r *ballastv1.JoinRequest) (chain [][]byte, err error) {
	wanted, err := pki.ParseRequest(r.Request)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if err := e.knows(ctx, r); err != nil {
		return nil, err
	}
	by := api.Caller{Name: wanted.Name, Role: string(wanted.Role), Address: source.String()}
	_, _, err = e.o.Writer.Record(api.WithCaller(ctx, by), false, func(now *documents.Snapshot) (changes []string, changed []store.Document, err error) {
		at := e.o.Now()
		chain, changed, err = e.admit(now, at, source, r, &wanted)
		if err != nil || len(changed) == 0 {
			return nil, changed, err
		}
		return []string{fmt.Sprintf("%s %s: joined from %s by invitation %s", wanted.Role, wanted.Name, source, r.Invitation)}, changed, nil
	})
	return chain, err
}

// knows keeps those from the store who have no secret. Another controller may just have made the invitation.
func (e *Enrolment) knows(ctx context.Context, r *ballastv1.JoinRequest) error {
	now, _, err := e.o.Mirror.Known(ctx)
	if err == nil && now.Invitations[r.Invitation] == nil {
		if _, err = e.o.Writer.Newest(ctx); err == nil {
			now = e.o.Mirror.Now()
		}
	}
	if err != nil {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	if invited(now, r) == nil {
		return errUnknown
	}
	return nil
}

// invited is the invitation whose secret a request has; nil: there is none.
func invited(now *documents.Snapshot, r *ballastv1.JoinRequest) *documents.Invitation {
	i, sum := now.Invitations[r.Invitation], sha256.Sum256(r.Secret)
	if i == nil || subtle.ConstantTimeCompare(sum[:], i.Hash) != 1 {
		return nil
	}
	return i
}

// admit decides by one state of the store. Who asks again with the same key gets the same certificate, and nothing is changed: the answer may
// have been lost.
func (e *Enrolment) admit(now *documents.Snapshot, at time.Time, source netip.Addr, r *ballastv1.JoinRequest, wanted *pki.Wanted) (
	chain [][]byte, changed []store.Document, err error,
) {
	invitation := invited(now, r)
	if invitation == nil {
		return nil, nil, errUnknown
	}
	key, err := pki.KeyID(wanted.Key)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if before := now.Enrolled[wanted.Name]; before != nil && before.Key == key && before.Invitation == r.Invitation && before.Role == wanted.Role && e.lives(before, at) {
		return before.Chain, nil, nil
	}
	if now.Restored(documents.InvitationsPrefix + r.Invitation) { // it may have been used or revoked since the backup
		return nil, nil, refuse(connect.CodePermissionDenied, "the token is from before the controllers' state was restored from a backup: make another one with `ballast ctl node invite`")
	}
	if err := checkInvitation(invitation, at, wanted); err != nil {
		return nil, nil, err
	}
	if err := e.checkName(now, at, wanted, source, invitation); err != nil {
		return nil, nil, err
	}
	addresses, err := e.addressesOf(now, at, wanted, source, invitation)
	if err != nil {
		return nil, nil, err
	}
	next := &documents.Enrolled{Role: wanted.Role, Key: key, Addresses: addresses, Life: invitation.Life, Invitation: r.Invitation,
		At: at.UTC().Truncate(time.Second), From: source.String()}
	if err := e.sign(now, at, wanted, next); err != nil {
		return nil, nil, err
	}
	used := *invitation
	used.Joined = append(slices.Clone(invitation.Joined), wanted.Name)
	first, err := now.Put(documents.InvitationsPrefix+r.Invitation, &used)
	second, other := now.Put(documents.EnrolledPrefix+wanted.Name, next)
	return next.Chain, []store.Document{first, second}, errors.Join(err, other)
}

// sign puts a new certificate into what is known of a node.
func (e *Enrolment) sign(now *documents.Snapshot, at time.Time, wanted *pki.Wanted, node *documents.Enrolled) error {
	signing, err := e.signing(now, at)
	if err != nil {
		return err
	}
	node.Chain, err = signing.Sign(&pki.Request{Role: wanted.Role, Name: wanted.Name, Addresses: node.Addresses, Life: node.Life}, wanted.Key, at)
	if err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	leaf, err := x509.ParseCertificate(node.Chain[0])
	if err != nil {
		return connect.NewError(connect.CodeInternal, err)
	}
	if r := e.revokes(now, at, leaf, signing.Certificate); r != nil { // the clocks of controllers differ
		return refuse(connect.CodeUnavailable, "%s, so a new one would be, too: ask again in a moment", r.What())
	}
	node.Ends = leaf.NotAfter
	return nil
}

// lives reports whether a node's certificate is one that others accept.
func (e *Enrolment) lives(node *documents.Enrolled, at time.Time) bool {
	if !at.Before(node.Ends) {
		return false
	}
	var chain []*x509.Certificate
	for _, der := range node.Chain {
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			return false
		}
		chain = append(chain, certificate)
	}
	return e.o.Credentials.Revokes(chain...) == nil
}

func checkInvitation(i *documents.Invitation, at time.Time, wanted *pki.Wanted) error {
	const another = "make another one with `ballast ctl node invite`"
	switch {
	case !i.Revoked.IsZero():
		return refuse(connect.CodePermissionDenied, "the token was revoked at %s: %s", i.Revoked.Format(time.RFC3339), another)
	case !at.Before(i.Ends):
		return refuse(connect.CodePermissionDenied, "the token ended at %s, and the controller's clock says %s: %s", i.Ends.Format(time.RFC3339), at.UTC().Format(time.RFC3339), another)
	case i.Left() == 0:
		return refuse(connect.CodePermissionDenied, "the token is used up, by %s: %s", some(i.Joined), another)
	case wanted.Role != i.Role:
		return refuse(connect.CodePermissionDenied, "the token is for role %s, not %s", i.Role, wanted.Role)
	case i.Name != "" && wanted.Name != i.Name:
		return refuse(connect.CodePermissionDenied, "the token is for %s, not %s: join with --name %s", i.Name, wanted.Name, i.Name)
	}
	return nil
}

// some are a few of many names, and how many others there are.
func some(names []string) string {
	text := strings.Join(names[:min(len(names), someNames)], ", ")
	if others := len(names) - someNames; others > 0 {
		text += " and " + model.Counted(others, "other", "others")
	}
	return text
}

const someNames = 5
