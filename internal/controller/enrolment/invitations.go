// What operators ask: to invite, to see who is invited, to take an invitation back.
package enrolment

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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

// Bounds of invitations.
const (
	defaultValid = time.Hour
	maxValid     = 30 * 24 * time.Hour
	minLife      = time.Minute
	maxLife      = 366 * 24 * time.Hour
	maxUses      = 1000
	maxOpen      = 1000 // invitations in the store
)

func refuse(code connect.Code, format string, values ...any) error {
	return connect.NewError(code, fmt.Errorf(format, values...))
}

// Invite implements ballastv1connect.EnrolmentHandler.
func (e *Enrolment) Invite(ctx context.Context, r *ballastv1.InviteRequest) (*ballastv1.InviteResponse, error) {
	at := e.o.Now()
	by, _ := api.CallerOf(ctx)
	invitation, err := invitationOf(r, at)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	invitation.By = by
	token := enrol.NewToken(invitation.Role, pki.HashOf(e.o.Credentials.Root()), invitation.Ends)
	invitation.Hash = token.Hash()
	changes, _, err := e.o.Writer.Record(ctx, r.DryRun, func(now *documents.Snapshot) ([]string, []store.Document, error) {
		if _, err := e.signing(now, at); err != nil {
			return nil, nil, err
		}
		if len(now.Invitations) >= maxOpen {
			return nil, nil, refuse(connect.CodeResourceExhausted, "there are %d invitations: they go %v after their end: use fewer with more --uses", maxOpen, invitationGrace)
		}
		document, err := now.Put(documents.InvitationsPrefix+token.ID, invitation)
		return []string{fmt.Sprintf("invitation %s: role %s, %s until %s", token.ID, invitation.Role, model.Counted(invitation.Uses, "use", "uses"), invitation.Ends.Format(time.RFC3339))},
			[]store.Document{document}, err
	})
	if err != nil {
		return nil, err
	}
	if r.DryRun { // a token that nobody would take
		return &ballastv1.InviteResponse{Changes: changes}, nil
	}
	return &ballastv1.InviteResponse{Token: token.String(), Invitation: toProto(token.ID, invitation), Controllers: e.addresses()}, nil
}

// invitationOf is what a request asks for.
func invitationOf(r *ballastv1.InviteRequest, at time.Time) (*documents.Invitation, error) {
	valid, life := defaultValid, pki.DefaultEnrolledLife
	if r.Valid != nil {
		valid = r.Valid.AsDuration()
	}
	if r.Life != nil {
		life = r.Life.AsDuration()
	}
	role := pki.Role(r.Role)
	switch {
	case role != pki.LB && role != pki.Agent:
		return nil, fmt.Errorf("role %q: nodes of roles lb and agent join by tokens; for others use `ballast ctl pki issue`", r.Role)
	case r.Uses > maxUses:
		return nil, fmt.Errorf("%d uses: at most %d", r.Uses, maxUses)
	case valid <= 0 || valid > maxValid:
		return nil, fmt.Errorf("valid for %v: use a time of up to %v", valid, maxValid)
	case life < minLife || life > maxLife:
		return nil, fmt.Errorf("certificates for %v: use %v to %v", life, minLife, maxLife)
	case r.Uses > 1 && (r.Name != "" || len(r.Addresses) > 0):
		return nil, fmt.Errorf("%d uses with a name or an address: those are of one node: make an invitation for each", r.Uses)
	}
	if r.Name != "" {
		if err := pki.CheckName(r.Name); err != nil {
			return nil, err
		}
	}
	at = at.UTC().Truncate(time.Second)
	i := &documents.Invitation{Role: role, Uses: cmp.Or(int(r.Uses), 1), Made: at, Ends: at.Add(valid), Name: r.Name, Life: life}
	for _, text := range r.Addresses {
		address, err := netip.ParseAddr(text)
		if err != nil || !ofHost(address) {
			return nil, fmt.Errorf("address %q: use an IPv4 or IPv6 address of the node", text)
		}
		i.Addresses = append(i.Addresses, address.Unmap())
	}
	return i, nil
}

// ofHost reports whether a machine can be known by an address.
func ofHost(address netip.Addr) bool {
	return address.Zone() == "" && address.Unmap().IsGlobalUnicast()
}

func toProto(id string, i *documents.Invitation) *ballastv1.Invitation {
	message := &ballastv1.Invitation{Id: id, Role: string(i.Role), Uses: uint32(i.Uses), Left: uint32(i.Left()), Made: timestamppb.New(i.Made), Ends: timestamppb.New(i.Ends),
		By: i.By.Name, Name: i.Name, Joined: i.Joined}
	for _, address := range i.Addresses {
		message.Addresses = append(message.Addresses, address.String())
	}
	if !i.Revoked.IsZero() {
		message.Revoked = timestamppb.New(i.Revoked)
	}
	return message
}

// ListInvitations implements ballastv1connect.EnrolmentHandler.
func (e *Enrolment) ListInvitations(ctx context.Context, _ *ballastv1.ListInvitationsRequest) (*ballastv1.ListInvitationsResponse, error) {
	if _, err := e.o.Writer.Newest(ctx); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	now := e.o.Mirror.Now()
	answer := &ballastv1.ListInvitationsResponse{}
	ids := slices.SortedFunc(maps.Keys(now.Invitations), func(a, b string) int {
		return cmp.Or(now.Invitations[a].Made.Compare(now.Invitations[b].Made), strings.Compare(a, b))
	})
	for _, id := range ids {
		shown := toProto(id, now.Invitations[id])
		if now.Restored(documents.InvitationsPrefix + id) {
			shown.Left = 0
		}
		answer.Invitations = append(answer.Invitations, shown)
	}
	return answer, nil
}

// RevokeInvitation implements ballastv1connect.EnrolmentHandler.
func (e *Enrolment) RevokeInvitation(ctx context.Context, r *ballastv1.RevokeInvitationRequest) (*ballastv1.ChangeResponse, error) {
	changes, revision, err := e.o.Writer.Record(ctx, r.DryRun, func(now *documents.Snapshot) ([]string, []store.Document, error) {
		before := now.Invitations[r.Id]
		switch {
		case before == nil:
			return nil, nil, refuse(connect.CodeNotFound, "there is no invitation %q: see `ballast ctl invite list`", r.Id)
		case !before.Revoked.IsZero():
			return nil, nil, nil
		}
		next := *before
		next.Revoked = e.o.Now().UTC().Truncate(time.Second)
		document, err := now.Put(documents.InvitationsPrefix+r.Id, &next)
		change := fmt.Sprintf("invitation %s: revoked", r.Id)
		if len(before.Joined) > 0 {
			change += fmt.Sprintf("; %s joined by it and have certificates: `ballast ctl pki revoke` ends these", strings.Join(before.Joined, ", "))
		}
		return []string{change}, []store.Document{document}, err
	})
	return &ballastv1.ChangeResponse{Changes: changes, Revision: revision}, err
}

// SetSigningAuthority implements ballastv1connect.EnrolmentHandler.
func (e *Enrolment) SetSigningAuthority(ctx context.Context, r *ballastv1.SetSigningAuthorityRequest) (*ballastv1.ChangeResponse, error) {
	next, err := e.o.Credentials.Signing(r.Certificate, r.Key, e.o.Now())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	var warnings []string
	changes, revision, err := e.o.Writer.Record(ctx, r.DryRun, func(now *documents.Snapshot) ([]string, []store.Document, error) {
		if _, err := e.signing(now, e.o.Now()); err == nil {
			warnings = []string{"there is a signing authority already: what it has signed stays valid, and nodes renew with the new one"}
			if !r.Force && !r.DryRun {
				return nil, nil, api.Dangerous(warnings)
			}
		}
		document, err := now.Put(documents.SigningKey, documents.Signing{Certificate: r.Certificate, Key: r.Key})
		return []string{fmt.Sprintf("signing authority: serial number %s, valid until %s", pki.SerialOf(next.Certificate), next.Certificate.NotAfter.Format(time.DateOnly))},
			[]store.Document{document}, err
	})
	return &ballastv1.ChangeResponse{Changes: changes, Revision: revision, Warnings: warnings}, err
}
