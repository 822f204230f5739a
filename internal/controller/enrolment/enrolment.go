// Package enrolment has machines become nodes: operators invite them, they join by a token, and renew their certificates from then on.
package enrolment

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/documents"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Options are what an enrolment needs.
type Options struct {
	Name, Version string // of this controller
	Address       string // host:port that nodes reach it at
	Mirror        *desired.Mirror
	Writer        *desired.Writer
	Credentials   *pki.Credentials
	Live          func() []store.Member                         // controllers
	Nodes         func() ([]*ballastv1.NodeStatus, error)       // controllers and nodes that this one knows
	Drained       func(context.Context, *pki.Identity) []string // what of a node is given no connections, and the command that ends this
	Refused       func(address string, why error)               // counts and logs who was refused
	Now           func() time.Time                              // nil: time.Now
	Log           *slog.Logger
}

// Enrolment implements ballastv1connect.EnrolmentHandler and RenewalHandler, and Serve.
type Enrolment struct {
	o     Options
	gate  *gate
	renew *gate
}

// New returns one.
func New(o Options) *Enrolment {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Enrolment{o, newGate(limit{joinRate, joinBurst, atOnceEach}, limit{joinWide, joinWide, atOnceWide}), newGate(limit{renewRate, renewBurst, atOnceEach})}
}

// signing is the authority that signs for nodes now.
func (e *Enrolment) signing(now *documents.Snapshot, at time.Time) (*pki.Signing, error) {
	if len(now.Signing.Certificate) == 0 {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
			"this fleet has no signing authority, so nodes join with certificates of `ballast ctl pki issue`: give it one with `ballast ctl pki delegate`"))
	}
	s, err := e.o.Credentials.Signing(now.Signing.Certificate, now.Signing.Key, at)
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return s, nil
}

// addresses are where nodes reach controllers, this one first.
func (e *Enrolment) addresses() (list []string) {
	list = append(list, e.o.Address)
	for _, m := range e.o.Live() {
		if m.Name != e.o.Name && m.Address != "" {
			list = append(list, m.Address)
		}
	}
	return list
}

// soon is how long before the end of the signing authority operators hear of it.
const soon = 90 * 24 * time.Hour

// Problems are what operators should know.
func (e *Enrolment) Problems() (problems []string) {
	now := e.o.Mirror.Now()
	if now == nil || len(now.Signing.Certificate) == 0 {
		return nil
	}
	s, err := e.signing(now, e.o.Now())
	if err != nil {
		return []string{"certificates of nodes are not renewed: " + err.(*connect.Error).Message()}
	}
	if left := s.Certificate.NotAfter.Sub(e.o.Now()); left < soon {
		problems = append(problems, fmt.Sprintf("the signing authority ends on %s, and the certificates of nodes with it: `ballast ctl pki delegate` makes another one, after a new authority if that ends, too",
			s.Certificate.NotAfter.Format(time.DateOnly)))
	}
	return problems
}

// Implementation constants: how long what is over stays in the store.
const (
	invitationGrace = 7 * 24 * time.Hour
	enrolledGrace   = 30 * 24 * time.Hour // its name is known meanwhile
)

// Keep drops what has been over for long.
func (e *Enrolment) Keep(ctx context.Context, at time.Time) error {
	stale := func(now *documents.Snapshot) (changed []store.Document, err error) {
		for _, id := range slices.Sorted(maps.Keys(now.Invitations)) {
			if at.After(now.Invitations[id].Ends.Add(invitationGrace)) {
				changed = append(changed, now.Delete(documents.InvitationsPrefix+id))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(now.Enrolled)) {
			if at.After(now.Enrolled[name].Ends.Add(enrolledGrace)) {
				changed = append(changed, now.Delete(documents.EnrolledPrefix+name))
			}
		}
		return changed[:min(len(changed), keepAtOnce)], nil
	}
	now := e.o.Mirror.Now()
	if now == nil {
		return nil
	}
	if changed, err := stale(now); err != nil || len(changed) == 0 {
		return err
	}
	return e.o.Writer.Update(ctx, stale)
}

// keepAtOnce bounds the documents of one transaction.
const keepAtOnce = 50
