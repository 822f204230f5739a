package daemon

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
)

// desired is the desired state of one load balancer, as the fleet API reads and changes it.
type desired struct{ lb *LB }

func (d desired) Fleet(context.Context) (fleet model.Fleet, revision uint64, err error) {
	d.lb.mu.Lock()
	defer d.lb.mu.Unlock()
	return d.lb.node.Running, d.lb.generation, nil // a change replaces it: what was given out stays as it is
}

// Newest is what this node was told last.
func (d desired) Newest(ctx context.Context) (uint64, error) {
	_, revision, err := d.Fleet(ctx)
	if d.lb.remote != nil && len(d.lb.remote.Connected()) == 0 {
		err = &api.Unconfirmed{Why: errors.New(nodeclient.NoController)}
	}
	return revision, err
}

// History is in the log.
func (d desired) History(context.Context) ([]*ballastv1.FleetChange, error) {
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("a load balancer keeps no history: who changed what is in its log, and controllers keep the last changes"))
}

func (d desired) Change(ctx context.Context, dryRun bool, edit node.Edit) (changes []string, revision uint64, err error) {
	return d.lb.change(ctx, dryRun, edit)
}

func (d desired) Forget(ctx context.Context, service, server string) (changes []string, revision uint64, err error) {
	return d.lb.forget(ctx, service, server)
}

// Servers tells what the engine of this process knows; a load balancer that runs by controllers knows less than they do.
func (d desired) Servers(_ context.Context, service string) (list []*ballastv1.ServerStatus, err error) {
	if d.lb.engine != nil {
		return hub.ServersToProto(d.lb.engine.Servers(service)), nil
	}
	services, err := d.lb.services()
	d.lb.mu.Lock()
	defer d.lb.mu.Unlock()
	for i := range services {
		s := &services[i]
		if service != "" && s.Name != service {
			continue
		}
		down, weights := set(d.lb.unhealthy[s.Name].Down), d.lb.softWeights(s.Name)
		for j := range s.Servers {
			list = append(list, told(s, &s.Servers[j], down, weights))
		}
	}
	return list, err
}

// told is what this node was told of a server, and what it counts by itself.
func told(s *api.ServiceStatus, server *api.ServerStatus, down map[uint16]bool, weights map[uint16]uint16) *ballastv1.ServerStatus {
	status := &ballastv1.ServerStatus{Service: s.Name, Server: api.ServerToProto(&server.Server), Removed: server.Removed,
		Health: "unchecked"}
	if s.Affinity.Cookies() {
		status.Connections = new(uint64(max(server.Open, 0)))
	}
	if s.Health.Check != model.CheckNone {
		status.Health = "unknown"
	}
	if down[server.ID] {
		status.Health = "unhealthy"
	}
	if server.TakesNew() && !server.Removed && !down[server.ID] {
		status.Weight = uint32(server.Weight)
		if weight, ok := weights[server.ID]; ok {
			status.Weight = uint32(weight)
		}
	}
	return status
}

// Nodes knows of nobody else, but for the nodes of the second tier that this one sends to.
func (d desired) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) {
	status := d.lb.status()
	revision := status.Generation
	if status.ByControllers {
		revision = status.Revision
	}
	nodes := []*ballastv1.NodeStatus{{Role: status.Role, Name: status.Name, Version: status.Version, Revision: revision, Ready: yesNo(status.Ready), Problems: status.Problems}}
	d.lb.mu.Lock()
	nodes[0].Epochs, nodes[0].Epoch = d.lb.node.Running.Keys.Epochs(), d.lb.node.Running.Keys.Current
	d.lb.mu.Unlock()
	if status.Tier != nil {
		for _, node := range status.Tier.Second {
			nodes = append(nodes, &ballastv1.NodeStatus{Role: status.Role, Name: node.Name, Address: node.Address.String(), Health: node.Health, HealthDetail: node.HealthDetail})
		}
	}
	return nodes, nil
}

// ForgetNode has nothing to forget.
func (d desired) ForgetNode(context.Context, string) ([]string, error) {
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("a load balancer remembers no other nodes: controllers do"))
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// MakesKeys is false: they come from the file, for this and for all other nodes.
func (d desired) MakesKeys() bool { return false }

// KeyNodes knows of nobody.
func (d desired) KeyNodes() *rotation.Nodes {
	if d.lb.remote != nil {
		return &rotation.Nodes{Blind: fmt.Sprintf("this load balancer runs by controllers, and they know what the nodes have: use `%s`", d.lb.askControllers())}
	}
	return &rotation.Nodes{Blind: "a load balancer that runs by a file sees no other node: look that all load balancers and agents write the new epoch, and that " +
		"no agent counts connections of the old one (`ballast ctl status` on each); see \"Rotating keys\" in docs/operate.md",
		BlindUnused: "it is newer than the one in use: `ballast ctl key use`, or `current` in the files, is next, once all load balancers and agents have the key; " +
			"if it was in use before, look that no agent counts connections of it (`ballast ctl status` on each)"}
}
