// The fleet API on a load balancer: its own desired state.
package lb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

var noHistory = connect.NewError(connect.CodeFailedPrecondition, errors.New("a load balancer keeps no history: who changed what is in its log, and controllers keep the last changes"))

// fleetAPI is the desired state of one load balancer, as the fleet API reads and changes it.
type fleetAPI struct{ observer }

func (f fleetAPI) Fleet(context.Context) (running model.Fleet, revision uint64, err error) {
	now := f.tables.Now()
	return now.Running, now.Generation, nil
}

// FleetAt is in no log.
func (f fleetAPI) FleetAt(context.Context, uint64) (model.Fleet, error) {
	return model.Fleet{}, noHistory
}

// Newest is the generation that runs here; controllers may have a newer state.
func (f fleetAPI) Newest(ctx context.Context) (uint64, error) {
	_, revision, err := f.Fleet(ctx)
	if f.controllers != nil && len(f.controllers.Connected()) == 0 {
		err = &api.Unconfirmed{Why: errors.New(nodeclient.NoController)}
	}
	return revision, err
}

// History is in the log.
func (f fleetAPI) History(context.Context) ([]*ballastv1.FleetChange, error) {
	return nil, noHistory
}

func (f fleetAPI) Change(ctx context.Context, dryRun bool, edit fleet.Edit) (changes []string, revision uint64, err error) {
	return f.edit(ctx, dryRun, edit)
}

func (f fleetAPI) Forget(ctx context.Context, dryRun bool, service, server string) (changes []string, revision uint64, err error) {
	return f.forget(ctx, dryRun, service, server)
}

// Servers tells what the engine of this process knows; a load balancer that runs by controllers knows less than they do.
func (f fleetAPI) Servers(_ context.Context, service string) (list []*ballastv1.ServerStatus, err error) {
	if f.local != nil {
		return asApplied(f.tables.Now(), hub.ServersToProto(f.local.Servers(service))), nil
	}
	services, err := f.services()
	now := f.tables.Now()
	for i := range services {
		s := &services[i]
		if service != "" && s.Name != service {
			continue
		}
		list = append(list, f.judge(now, s)...)
	}
	f.complete(list)
	return list, err
}

// Sources are asked by controllers alone.
func (f fleetAPI) Sources(string) []*ballastv1.SourceStatus { return nil }

// PredecessorConnections implements api.Desired.
func (f fleetAPI) PredecessorConnections(service string) fleet.Connections {
	now := f.tables.Now()
	place, served := now.Places[service]
	count, err := now.PredecessorConnections(place)
	return fleet.Connections{Live: uint64(count), Known: err == nil && served}
}

// LostLoadBalancers are known to controllers alone: answers of one load balancer speak for itself.
func (f fleetAPI) LostLoadBalancers() []string { return nil }

// judge tells what is known of a service's servers; see Servers.
func (f fleetAPI) judge(now *dataplane.Snapshot, s *api.ServiceStatus) (list []*ballastv1.ServerStatus) {
	if f.local != nil {
		return asApplied(now, hub.ServersToProto(f.local.Servers(s.Name)))
	}
	down, failing, weights := now.DownOf(s.Name), now.FailingOf(s.Name), f.tables.Weights(s.Name)
	starting := f.tables.Starting()[s.Name]
	for i := range s.Servers {
		list = append(list, serverToProto(s, &s.Servers[i], down, failing, weights))
		if start, starts := starting[s.Servers[i].ID]; starts && !s.Servers[i].Removed {
			list[i].SlowStart, list[i].WholeAt = float64(start.Tenths)/slowstart.Whole, timestamppb.New(start.Whole)
		}
	}
	if f.alone.Load() == nil {
		return list
	}
	f.judgedHere(s.Name, list)
	return asApplied(now, list)
}

// complete adds what this load balancer sees of servers that controllers judge.
func (f fleetAPI) complete(list []*ballastv1.ServerStatus) {
	if now := time.Now(); f.judges() == nil {
		seenHere(list, f.checks.Results(), f.controllers.Silence(now), now)
	}
}

// serverToProto is what controllers have sent of a server, and what this node counts by itself.
func serverToProto(s *api.ServiceStatus, server *api.ServerStatus, down, failing map[uint16]bool, weights map[uint16]uint16) *ballastv1.ServerStatus {
	status := &ballastv1.ServerStatus{Service: s.Name, Server: api.ServerToProto(&server.Server), Removed: server.Removed,
		Health: "unchecked"}
	if s.Affinity.Cookies() {
		status.Connections = new(uint64(max(server.Open, 0)))
	}
	if s.Health.Check != model.CheckNone {
		status.Health = "unknown"
	}
	if failing[server.ID] {
		status.Health = "unhealthy"
		if !down[server.ID] {
			status.HealthDetail = fmt.Sprintf("gets new connections all the same: all servers are unhealthy (all_down: %s)", s.Health.AllDown)
		}
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
func (f fleetAPI) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) {
	status := f.status()
	revision := status.Generation
	if status.ByControllers {
		revision = status.Revision
	}
	nodes := []*ballastv1.NodeStatus{{Role: status.Role, Name: status.Name, Version: status.Version, Revision: revision, Ready: yesNo(status.Ready), Problems: status.Problems}}
	keys := f.tables.Now().Running.Keys
	nodes[0].Epochs, nodes[0].Epoch = keys.Epochs(), keys.Current
	if status.Tier != nil {
		for _, node := range status.Tier.Second {
			nodes = append(nodes, &ballastv1.NodeStatus{Role: status.Role, Name: node.Name, Address: node.Address.String(), Health: node.Health, HealthDetail: node.HealthDetail})
		}
	}
	return nodes, nil
}

// Explain asks nobody else.
func (f fleetAPI) Explain(_ context.Context, packet *ballastv1.MadeUpPacket) ([]*ballastv1.Explanation, error) {
	return []*ballastv1.Explanation{f.explainer.Explain(packet)}, nil
}

// ForgetNode has nothing to forget.
func (f fleetAPI) ForgetNode(context.Context, bool, string, pki.Role) ([]string, error) {
	return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("a load balancer remembers no other nodes: controllers do"))
}

// errNoRing is why a load balancer tells nothing of the ring.
var errNoRing = connect.NewError(connect.CodeFailedPrecondition, errors.New("a load balancer knows only what controllers send of the ring: ask one of them"))

func (f fleetAPI) Replicas(context.Context) (*ballastv1.ListReplicasResponse, error) {
	return nil, errNoRing
}

func (f fleetAPI) DrainReplica(context.Context, bool, string, bool) ([]string, uint64, error) {
	return nil, 0, errNoRing
}

// errNoTickets is why a load balancer tells nothing of keys of session tickets.
var errNoTickets = connect.NewError(connect.CodeFailedPrecondition, errors.New("a load balancer never has keys of session tickets: ask a controller; without controllers each server has its own (docs/features/sessions.md)"))

func (f fleetAPI) TicketKeys(context.Context) (*ballastv1.ListTicketKeysResponse, error) {
	return nil, errNoTickets
}

func (f fleetAPI) UseTicketKey(context.Context, bool, uint32, bool) ([]string, uint64, error) {
	return nil, 0, errNoTickets
}

func (f fleetAPI) RevokeTicketKeys(context.Context, bool, uint32) ([]string, uint64, error) {
	return nil, 0, errNoTickets
}

// errNoRevocations is why a load balancer does not revoke.
var errNoRevocations = connect.NewError(connect.CodeFailedPrecondition, errors.New("controllers keep the list of revoked certificates: ask one of them; without controllers there is none"))

func (f fleetAPI) RevokeCertificate(context.Context, *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	return nil, errNoRevocations
}

// Revocations are those that controllers have told.
func (f fleetAPI) Revocations(context.Context) ([]pki.Revocation, error) {
	if f.controllers == nil {
		return nil, errNoRevocations
	}
	return f.credentials.Revoked(), nil
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// MakesKeys is false: they come from the file, for this and for all other nodes.
func (f fleetAPI) MakesKeys() bool { return false }

// KeyNodes knows of nobody.
func (f fleetAPI) KeyNodes() *rotation.Nodes {
	if f.controllers != nil {
		return &rotation.Nodes{Blind: fmt.Sprintf("this load balancer runs by controllers, and they know what the nodes have: use `%s`", f.askControllers())}
	}
	return &rotation.Nodes{Blind: "a load balancer that runs by a file sees no other node: look that all load balancers and agents write the new epoch, and that " +
		"no agent counts connections of the old one (`ballast ctl status` on each); see \"Rotating keys\" in docs/run/operate.md",
		BlindUnused: "it is newer than the one in use: `ballast ctl key use`, or `current` in the files, is next, once all load balancers and agents have the key; " +
			"if it was in use before, look that no agent counts connections of it (`ballast ctl status` on each)"}
}
