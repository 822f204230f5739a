// Nodes that are lost for good: each controller remembers for itself who was connected to it.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/election"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// reachTimeout bounds what is asked of another controller.
const reachTimeout = 2 * time.Second

// ForgetOptions are what a Forgetter needs.
type ForgetOptions struct {
	Name          string // of this controller
	Joined        *hub.Nodes
	Election      *election.Election
	Credentials   *pki.Credentials
	ForgetReplica func(ctx context.Context, name string) error
	Changed       func() // called when a node has been forgotten
	Log           *slog.Logger
}

// Forgetter forgets nodes.
type Forgetter struct{ o ForgetOptions }

// NewForgetter returns one.
func NewForgetter(o ForgetOptions) *Forgetter { return &Forgetter{o} }

// Forget forgets nodes of a name, of one role or, if that is empty, of all, here and at all other controllers that live. A
// controller that asks has been asked itself, and passes it on. A dry run only tells.
func (f *Forgetter) Forget(ctx context.Context, dryRun bool, name string, role pki.Role) (changes []string, err error) {
	changes, err = f.here(ctx, dryRun, name, role)
	by, _ := api.CallerOf(ctx)
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound || by.Role == string(pki.Controller) {
		return changes, err
	}
	unknown, others := err, f.o.Election.Others()
	if err = nil; len(changes) > 0 && len(others) > 0 {
		for i := range changes {
			changes[i] = f.o.Name + ": " + changes[i]
		}
	}
	for _, other := range others {
		there, refused := f.at(ctx, other, dryRun, name, role)
		for _, line := range there {
			changes = append(changes, other.Name+": "+line)
		}
		if refused != nil && connect.CodeOf(refused) != connect.CodeNotFound {
			err = errors.Join(err, fmt.Errorf("controller %s still remembers %s: %w", other.Name, name, refused))
		}
	}
	switch {
	case err != nil && len(changes) > 0:
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%w (%s)", err, strings.Join(changes, ", ")))
	case err != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	case len(changes) == 0:
		return nil, unknown
	}
	return changes, nil
}

func (f *Forgetter) at(ctx context.Context, other store.Member, dryRun bool, name string, role pki.Role) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	client := api.NewFleetClient([]string{other.Address}, f.o.Credentials.To(pki.Controller, other.Name), api.WithDryRun(dryRun))
	answer, err := client.ForgetNode(ctx, &ballastv1.NodeRequest{Node: name, Role: string(role), DryRun: dryRun})
	return answer.GetChanges(), err
}

// here also forgets controllers whose lease has ended.
func (f *Forgetter) here(ctx context.Context, dryRun bool, name string, role pki.Role) (changes []string, err error) {
	gone := (role == "" || role == pki.Controller) && f.o.Election.Forget(dryRun, name)
	changes, err = f.o.Joined.Forget(dryRun, name, role)
	if gone {
		changes, err = append(changes, fmt.Sprintf("controller %s: forgotten", name)), nil
	}
	if err == nil && !dryRun {
		if role == "" || role == pki.LB {
			if err := f.o.ForgetReplica(ctx, name); err != nil {
				return changes, err
			}
		}
		f.o.Changed()
		by, _ := api.CallerOf(ctx)
		f.o.Log.Info("forgotten", "nodes", changes, "by", by)
	}
	return changes, err
}
