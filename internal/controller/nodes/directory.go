package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/controller/desired"
	"github.com/ballast-lb/ballast/internal/controller/election"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/store"
)

// Options are what a directory needs.
type Options struct {
	Name, Address, Version string // of this controller
	Began                  time.Time
	Mirror                 *desired.Mirror
	Election               *election.Election
	Joined                 *hub.Nodes
	Engine                 *engine.Engine
	HasPeer                func(controller string) bool // reports whether a controller is a member of the store; nil: its members are others
	// Self returns what keeps this controller from its work, and what else operators should know of it.
	Self func() (obstacles, problems []string)
}

// Directory lists nodes.
type Directory struct{ o Options }

// NewDirectory returns one.
func NewDirectory(o Options) *Directory { return &Directory{o} }

// List lists this controller, the others that keep the state, as far as it knows, and the nodes that are connected to
// it.
func (d *Directory) List() ([]*ballastv1.NodeStatus, error) {
	stops, problems := d.o.Self()
	others := d.o.Election.Now()
	live, gone, lives := slices.Clone(others.Live), maps.Clone(others.Gone), election.Lives(d.o.Name, others.Live)
	if d.o.HasPeer != nil {
		maps.DeleteFunc(gone, func(name string, _ *ballastv1.NodeStatus) bool { return !d.o.HasPeer(name) }) // they were removed
	}
	if !lives {
		delete(gone, d.o.Name) // it answers
		live = append(live, store.Member{Name: d.o.Name, Address: d.o.Address, Version: d.o.Version})
		slices.SortFunc(live, func(a, b store.Member) int { return cmp.Compare(a.Name, b.Name) })
	}
	now := d.o.Mirror.Now()
	if now == nil {
		return nil, desired.ErrUnknown
	}
	var nodes []*ballastv1.NodeStatus
	for _, member := range live {
		status := &ballastv1.NodeStatus{Role: string(pki.Controller), Name: member.Name, Address: member.Address, Version: member.Version,
			Ready: "yes", LastSeen: timestamppb.Now()} // it keeps its lease
		switch {
		case member.Name == d.o.Name:
			status.Since, status.Revision = timestamppb.New(d.o.Began), now.Revision
			status.Problems = append(stops, problems...)
			if len(stops) > 0 {
				status.Ready = "no"
			}
		case !lives:
			status.Ready, status.LastSeen = "", nil
			status.Problems = []string{fmt.Sprintf("as last known: %s, which was asked, hears nothing of the store", d.o.Name)}
		}
		status.Problems = append(status.Problems, election.Contested([]store.Member{member})...)
		for name := range now.Services {
			if others.Leads(member.Name, name) {
				status.Services = append(status.Services, name)
			}
		}
		slices.Sort(status.Services)
		nodes = append(nodes, status)
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		nodes = append(nodes, gone[name])
	}
	return append(nodes, d.withHealth(append(d.o.Joined.List(), d.o.Joined.Lost()...))...), nil
}

// withHealth tells of the nodes of the second tier whether they are healthy, also of those that are not connected.
func (d *Directory) withHealth(nodes []*ballastv1.NodeStatus) []*ballastv1.NodeStatus {
	for _, s := range d.o.Engine.Servers(model.SecondTierName) {
		at := slices.IndexFunc(nodes, func(n *ballastv1.NodeStatus) bool { return n.Role == string(pki.LB) && n.Name == s.Server.Name })
		if at < 0 {
			at = len(nodes)
			nodes = append(nodes, &ballastv1.NodeStatus{Role: string(pki.LB), Name: s.Server.Name, Problems: []string{"not connected"}})
		}
		nodes[at].Health, nodes[at].HealthDetail = s.Health, s.HealthDetail
	}
	return nodes
}

// LostLoadBalancers may run on without a controller.
func (d *Directory) LostLoadBalancers() (names []string) {
	for _, n := range d.o.Joined.Lost() {
		if n.Role == string(pki.LB) {
			names = append(names, n.Name)
		}
	}
	return names
}

// OwnAddresses are those of controllers that live, as far as they or their certificates name them, and of nodes that
// are connected or lost: those that they join by, and hub.Nodes.OwnAddresses.
func (d *Directory) OwnAddresses() map[netip.Addr]string {
	owners := d.o.Joined.OwnAddresses()
	add := func(address, owner string) {
		if host, err := netip.ParseAddrPort(address); err == nil { // else it is a name
			owners[host.Addr().Unmap()] = owner
		}
	}
	for _, member := range d.o.Election.Now().Live {
		add(member.Address, "controller "+member.Name)
		for _, address := range member.Addresses {
			owners[address] = "controller " + member.Name
		}
	}
	for _, n := range append(d.o.Joined.List(), d.o.Joined.Lost()...) {
		owner := "agent " + n.Name
		if n.Role == string(pki.LB) {
			owner = "load balancer " + n.Name
		}
		add(n.Address, owner)
	}
	return owners
}
