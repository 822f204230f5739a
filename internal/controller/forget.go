// Nodes that are lost for good: each controller remembers for itself who was connected to it.
package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// ForgetNode forgets a node here and at all other controllers that live. A controller that asks has been asked itself, and passes it on.
func (f fleetOf) ForgetNode(ctx context.Context, name string) (changes []string, err error) {
	changes, err = f.forgetHere(ctx, name)
	by, _ := api.CallerOf(ctx)
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound || by.Role == string(pki.Controller) {
		return changes, err
	}
	unknown, others := err, f.others()
	if err = nil; len(changes) > 0 && len(others) > 0 {
		for i := range changes {
			changes[i] = f.name + ": " + changes[i]
		}
	}
	for _, other := range others {
		there, refused := f.forgetAt(ctx, other, name)
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

// others are the controllers that the store takes for alive, without this one.
func (f fleetOf) others() []store.Member {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return slices.DeleteFunc(slices.Clone(f.live), func(m store.Member) bool { return m.Name == f.name })
}

func (f fleetOf) forgetAt(ctx context.Context, other store.Member, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	client := api.NewFleetClient([]string{other.Address}, f.credentials.To(pki.Controller, other.Name))
	answer, err := client.ForgetNode(ctx, &ballastv1.NodeRequest{Node: name})
	return answer.GetChanges(), err
}

// forgetHere also forgets controllers whose lease has ended.
func (f fleetOf) forgetHere(ctx context.Context, name string) (changes []string, err error) {
	f.mutex.Lock()
	_, gone := f.gone[name]
	f.gone = maps.Clone(f.gone)
	delete(f.gone, name)
	f.mutex.Unlock()
	changes, err = f.hub.Nodes.Forget(name)
	if gone {
		changes, err = append(changes, fmt.Sprintf("controller %s: forgotten", name)), nil
	}
	if err == nil {
		if err := f.forgetReplica(ctx, name); err != nil {
			return changes, err
		}
		f.nodesChanged()
		by, _ := api.CallerOf(ctx)
		f.log.Info("forgotten", "nodes", changes, "by", by)
	}
	return changes, err
}
