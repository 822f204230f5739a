package api

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// roleLB is the role of load balancers in NodeStatus.
const roleLB = "lb"

// ListNodes tells of everybody who is connected, and of everybody with a tier.
func (f *fleetAPI) ListNodes(ctx context.Context, _ *ballastv1.ListNodesRequest) (*ballastv1.ListNodesResponse, error) {
	list, err := f.desired.Nodes(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	fleet, _, err := f.desired.Fleet(ctx)
	if err != nil {
		return nil, refusal(err)
	}
	known := map[string]*ballastv1.NodeStatus{}
	for _, status := range list {
		if status.Role == roleLB {
			known[status.Name] = status
		}
	}
	for i := range fleet.Nodes {
		n := &fleet.Nodes[i]
		status := known[n.Name]
		if status == nil {
			status = &ballastv1.NodeStatus{Role: roleLB, Name: n.Name}
			if f.desired.MakesKeys() { // controllers know who has joined
				status.Problems = []string{"is not connected, and was not within a day: start it there (ballast lb --controller ...); its name must be that of its certificate"}
			}
			list = append(list, status)
		}
		status.Node = NodeToProto(n)
	}
	return &ballastv1.ListNodesResponse{Nodes: list}, nil
}

func (f *fleetAPI) AddNode(ctx context.Context, r *ballastv1.AddNodeRequest) (*ballastv1.ChangeResponse, error) {
	added, err := NodeFromProto(r.Node)
	if err != nil {
		return nil, refusal(err)
	}
	var id uint16
	answer, err := f.change(ctx, r.DryRun, false, func(fleet *model.Fleet, _ []fleet.Removed) error {
		if fleet.Node(added.Name) != nil {
			return exists("node", added.Name, "remove it first, or choose another name")
		}
		fleet.Nodes = append(fleet.Nodes, added)
		fleet.MakeRoomForNodes()
		giveNodeIDs(fleet, fleet)
		id = fleet.Nodes[len(fleet.Nodes)-1].ID
		return nil
	})
	if err == nil {
		answer.Id = uint32(id)
	}
	return answer, err
}

func (f *fleetAPI) RemoveNode(ctx context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, r.DryRun, r.Force, func(fleet *model.Fleet, _ []fleet.Removed) error {
		before := len(fleet.Nodes)
		fleet.Nodes = slices.DeleteFunc(fleet.Nodes, func(n model.Node) bool { return n.Name == r.Node })
		if len(fleet.Nodes) == before {
			return noNode(r.Node)
		}
		if !fleet.HasSecondTier() {
			fleet.NodeHealth = model.Health{}
		}
		return nil
	})
}

// ForgetNode changes what one controller remembers, and nothing of the fleet.
func (f *fleetAPI) ForgetNode(ctx context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	if r.Role != "" {
		if _, err := pki.ParseRole(r.Role); err != nil {
			return nil, refusal(&model.Invalid{Path: "role", Problem: fmt.Sprintf("%q is none", r.Role), Remedy: "use lb, agent or controller"})
		}
	}
	changes, err := f.desired.ForgetNode(ctx, r.DryRun, r.Node, pki.Role(r.Role))
	if err != nil {
		return nil, refusal(err)
	}
	return &ballastv1.ChangeResponse{Changes: changes}, nil
}

func (f *fleetAPI) DrainNode(ctx context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	return f.setNodeState(ctx, r, model.StateDraining)
}

func (f *fleetAPI) UndrainNode(ctx context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	return f.setNodeState(ctx, r, model.StateActive)
}

func (f *fleetAPI) setNodeState(ctx context.Context, r *ballastv1.NodeRequest, state model.ServerState) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, r.DryRun, r.Force, func(fleet *model.Fleet, _ []fleet.Removed) error {
		n := fleet.Node(r.Node)
		if n == nil {
			return noNode(r.Node)
		}
		n.State = state
		return nil
	})
}

func (f *fleetAPI) SetNodeHealth(ctx context.Context, r *ballastv1.SetNodeHealthRequest) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, r.DryRun, true, func(fleet *model.Fleet, _ []fleet.Removed) error {
		dropUnusableCheck(&fleet.NodeHealth, r.Health)
		var in input
		in.health("node_health", &fleet.NodeHealth, r.Health)
		if len(in) > 0 {
			return in[0]
		}
		return nil
	})
}

func (f *fleetAPI) SetReplicas(ctx context.Context, r *ballastv1.SetReplicasRequest) (*ballastv1.ChangeResponse, error) {
	return f.change(ctx, r.DryRun, r.Force, func(fleet *model.Fleet, _ []fleet.Removed) error {
		var in input
		in.replicas("replicas", &fleet.Replicas, r.Replicas)
		if len(in) > 0 {
			return in[0]
		}
		return nil
	})
}

func (f *fleetAPI) ListReplicas(ctx context.Context, _ *ballastv1.ListReplicasRequest) (*ballastv1.ListReplicasResponse, error) {
	answer, err := f.desired.Replicas(ctx)
	return answer, refusal(err)
}

func (f *fleetAPI) DrainReplica(ctx context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	return f.drainReplica(ctx, r, true)
}

func (f *fleetAPI) UndrainReplica(ctx context.Context, r *ballastv1.NodeRequest) (*ballastv1.ChangeResponse, error) {
	return f.drainReplica(ctx, r, false)
}

func (f *fleetAPI) drainReplica(ctx context.Context, r *ballastv1.NodeRequest, off bool) (*ballastv1.ChangeResponse, error) {
	changes, revision, err := f.desired.DrainReplica(ctx, r.DryRun, r.Node, off)
	return &ballastv1.ChangeResponse{Changes: changes, Revision: revision}, refusal(err)
}

// giveNodeIDs gives nodes of the second tier their ids where they are not given: that of the node before of the same name, or at the same
// address, else the next free one. When all ids are taken it gives none, which Validate refuses.
func giveNodeIDs(next, before *model.Fleet) {
	named, at, given := map[string]uint16{}, map[netip.Addr]uint16{}, map[uint16]bool{}
	for _, n := range before.Nodes {
		named[n.Name], at[n.Address] = n.ID, n.ID
	}
	for _, n := range next.Nodes {
		given[n.ID] = true
	}
	var without []*model.Node
	for i := range next.Nodes {
		n := &next.Nodes[i]
		if n.Tier != model.TierSecond || n.ID != 0 {
			continue
		}
		id := named[n.Name]
		if id == 0 {
			id = at[n.Address]
		}
		if id == 0 || given[id] {
			without = append(without, n)
			continue
		}
		n.ID, given[id] = id, true
	}
	for _, n := range without {
		n.ID, _ = next.NextFreeNodeID()
	}
}

func noNode(name string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no node %q with a tier: see `ballast ctl node list`", name))
}
