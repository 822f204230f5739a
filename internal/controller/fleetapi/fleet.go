// Package fleetapi is the fleet API of a controller: it hands each call to what it is about.
package fleetapi

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/discovery"
	"github.com/ballast-lb/ballast/internal/controller/nodes"
	"github.com/ballast-lb/ballast/internal/controller/replicas"
	"github.com/ballast-lb/ballast/internal/controller/revoked"
	"github.com/ballast-lb/ballast/internal/controller/tickets"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Options are what answers.
type Options struct {
	Mirror    *desired.Mirror
	Writer    *desired.Writer
	Editor    desired.Editor
	Joined    *hub.Nodes
	Engine    *engine.Engine
	Nodes     *nodes.Directory
	Forgetter *nodes.Forgetter
	Ring      *replicas.Manager
	Tickets   *tickets.Manager
	Sources   *discovery.Manager
	Revoked   *revoked.List
	Revoker   *revoked.Revoker
}

// Fleet implements api.Desired.
type Fleet struct{ o Options }

var _ api.Desired = (*Fleet)(nil)

// New returns the fleet API.
func New(o Options) *Fleet { return &Fleet{o} }

// Fleet implements api.Desired.
func (f *Fleet) Fleet(ctx context.Context) (model.Fleet, uint64, error) {
	if _, _, err := f.o.Mirror.Known(ctx); err != nil {
		return model.Fleet{}, 0, err
	}
	return f.o.Mirror.Fleet()
}

// FleetAt implements api.Desired.
func (f *Fleet) FleetAt(ctx context.Context, revision uint64) (model.Fleet, error) {
	now, _, err := f.o.Mirror.Known(ctx)
	if err != nil {
		return model.Fleet{}, err
	}
	return now.FleetAt(revision, time.Now())
}

// Newest implements api.Desired.
func (f *Fleet) Newest(ctx context.Context) (uint64, error) { return f.o.Writer.Newest(ctx) }

// History implements api.Desired.
func (f *Fleet) History(context.Context) (list []*ballastv1.FleetChange, err error) {
	now := f.o.Mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	kept := now.KeptFrom()
	for i := range now.History.Changes {
		c := &now.History.Changes[i]
		list = append(list, &ballastv1.FleetChange{Time: timestamppb.New(c.Time), Name: c.By.Name, Role: c.By.Role, Address: c.By.Address, Comment: c.By.Comment,
			Changes: c.Changes, Revision: now.RevisionOf(c), Kept: i >= kept})
	}
	return list, nil
}

// Change carries an edit out that adds no VIP which is an address of the fleet itself.
func (f *Fleet) Change(ctx context.Context, dryRun bool, edit fleet.Edit) ([]string, uint64, error) {
	return f.o.Editor.Change(ctx, dryRun, func(next *fleet.Desired) error {
		before := vipsOf(&next.Running)
		if err := edit(next); err != nil {
			return err
		}
		return f.checkVIPs(before, &next.Running)
	})
}

// Forget implements api.Desired.
func (f *Fleet) Forget(ctx context.Context, dryRun bool, service, server string) ([]string, uint64, error) {
	return f.o.Editor.Forget(ctx, dryRun, service, server)
}

// Servers implements api.Desired.
func (f *Fleet) Servers(_ context.Context, service string) ([]*ballastv1.ServerStatus, error) {
	servers := f.o.Engine.Servers(service)
	f.o.Engine.MarkAgents(servers, f.o.Joined.Agents())
	return hub.ServersToProto(servers), nil
}

// Explain implements api.Desired.
func (f *Fleet) Explain(ctx context.Context, packet *ballastv1.MadeUpPacket) ([]*ballastv1.Explanation, error) {
	answers, err := f.o.Joined.Explain(ctx, packet)
	for _, name := range f.o.Nodes.LostLoadBalancers() {
		answers = append(answers, &ballastv1.Explanation{Node: name, Error: "is not connected to this controller: ask it there"})
	}
	slices.SortStableFunc(answers, func(a, b *ballastv1.Explanation) int { return strings.Compare(a.Node, b.Node) })
	return answers, err
}

// Replicas implements api.Desired.
func (f *Fleet) Replicas(context.Context) (*ballastv1.ListReplicasResponse, error) {
	return f.o.Ring.List()
}

// DrainReplica implements api.Desired.
func (f *Fleet) DrainReplica(ctx context.Context, dryRun bool, name string, off bool) ([]string, uint64, error) {
	return f.o.Ring.Drain(ctx, dryRun, name, off)
}

// TicketKeys implements api.Desired.
func (f *Fleet) TicketKeys(context.Context) (*ballastv1.ListTicketKeysResponse, error) {
	return f.o.Tickets.List()
}

// UseTicketKey implements api.Desired.
func (f *Fleet) UseTicketKey(ctx context.Context, dryRun bool, epoch uint32, force bool) ([]string, uint64, error) {
	return f.o.Tickets.Use(ctx, dryRun, epoch, force)
}

// RevokeTicketKeys implements api.Desired.
func (f *Fleet) RevokeTicketKeys(ctx context.Context, dryRun bool, newest uint32) ([]string, uint64, error) {
	return f.o.Tickets.Revoke(ctx, dryRun, newest)
}

// Sources implements api.Desired.
func (f *Fleet) Sources(service string) []*ballastv1.SourceStatus { return f.o.Sources.List(service) }

// PredecessorConnections implements api.Desired.
func (f *Fleet) PredecessorConnections(service string) fleet.Connections {
	now := f.o.Mirror.Now()
	if now == nil || now.Services[service] == nil {
		return fleet.Connections{}
	}
	of, all := now.Services[service].Service, now.Nodes.Nodes
	count, known := f.o.Joined.PredecessorConnections(service, func(name string) bool {
		at := slices.IndexFunc(all, func(n model.Node) bool { return n.Name == name })
		return at >= 0 && of.SendsToNodes(all[at].Tier)
	})
	return fleet.Connections{Live: count, Known: known && len(f.LostLoadBalancers()) == 0}
}

// LostLoadBalancers implements api.Desired.
func (f *Fleet) LostLoadBalancers() []string { return f.o.Nodes.LostLoadBalancers() }

// Nodes implements api.Desired.
func (f *Fleet) Nodes(context.Context) ([]*ballastv1.NodeStatus, error) { return f.o.Nodes.List() }

// ForgetNode implements api.Desired.
func (f *Fleet) ForgetNode(ctx context.Context, dryRun bool, name string, role pki.Role) ([]string, error) {
	return f.o.Forgetter.Forget(ctx, dryRun, name, role)
}

// RevokeCertificate implements api.Desired.
func (f *Fleet) RevokeCertificate(ctx context.Context, r *ballastv1.RevokeCertificateRequest) (*ballastv1.ChangeResponse, error) {
	return f.o.Revoker.Revoke(ctx, r)
}

// Revocations implements api.Desired.
func (f *Fleet) Revocations(context.Context) ([]pki.Revocation, error) { return f.o.Revoked.All() }

// KeyNodes implements api.Desired.
func (f *Fleet) KeyNodes() *rotation.Nodes { return f.o.Joined.Keys() }

// MakesKeys: every node is told them by the controllers.
func (f *Fleet) MakesKeys() bool { return true }

// checkVIPs refuses VIPs that are new to the fleet and addresses of its own: load balancers would take what controllers
// and nodes say to each other for a service's packets.
func (f *Fleet) checkVIPs(before map[netip.Addr]bool, fleet *model.Fleet) error {
	var owners map[netip.Addr]string
	for i := range fleet.Services {
		for _, vip := range fleet.Services[i].VIPs() {
			if before[vip] {
				continue
			}
			if owners == nil {
				owners = f.o.Nodes.OwnAddresses()
			}
			if owner := owners[vip]; owner != "" {
				return &model.Invalid{Path: fmt.Sprintf("services[%d].vip", i), Remedy: "use an address that no machine of the fleet has",
					Problem: fmt.Sprintf("%s is the address of %s: load balancers would take its traffic for the service's", vip, owner)}
			}
		}
	}
	return nil
}

func vipsOf(fleet *model.Fleet) map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for i := range fleet.Services {
		for _, vip := range fleet.Services[i].VIPs() {
			vips[vip] = true
		}
	}
	return vips
}
