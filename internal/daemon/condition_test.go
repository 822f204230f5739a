package daemon_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ballast-lb/ballast/internal/api"
)

// Promise: When no server of a service takes new connections, they are dropped (`dropped_no_server`), and `status`
// and `nodes` report it.
func TestControllersHearWhatIsWrongWithALoadBalancer(t *testing.T) {
	t.Parallel()
	h := newRemoteHost(t)
	h.start()
	hub, end := h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(5, nil, 2, 3))
	h.eventually("lb1 to be ready for the controller", func() bool {
		nodes := hub.Nodes.List()
		return len(nodes) == 1 && nodes[0].Ready == "yes" && nodes[0].Revision == 5
	})
	unserved := func(problem string) bool {
		return strings.HasPrefix(problem, "service web: no server takes new connections")
	}
	hub.Topics.SetState(viewOf(6, []uint16{2, 3}, 2, 3))
	h.await("the problem here", func(s api.LBStatus) bool { return s.Ready && slices.ContainsFunc(s.Problems, unserved) })
	h.eventually("the problem there", func() bool { return slices.ContainsFunc(hub.Nodes.List()[0].Problems, unserved) })
	hub.Topics.SetState(viewOf(7, []uint16{2}, 2, 3))
	h.eventually("the end of it", func() bool { return !slices.ContainsFunc(hub.Nodes.List()[0].Problems, unserved) })
}

// A controller that has just begun does not know the addresses of nodes that have not joined yet, and takes such a VIP.
func TestALoadBalancerWhoseOwnAddressIsAVIPIsNotReady(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newRemoteHost(t)
	h.start()
	hub, end := h.control(1)
	defer end()
	hub.Topics.SetState(viewOf(5, nil, 2, 3))
	own := netip.MustParseAddr("10.9.0.1")
	h.eventually("the controller to know the address that tunnels come from", func() bool { return hub.Nodes.OwnAddresses()[own] == "load balancer lb1" })
	view := viewOf(6, nil, 2, 3)
	view.Services[0].Service.VIP, view.Services[0].Service.Ports = own, []uint16{9435}
	hub.Topics.SetState(view)
	h.await("not to be ready", func(s api.LBStatus) bool {
		all := strings.Join(s.NotReady, "\n")
		return !s.Ready && strings.Contains(all, "is where this load balancer listens by --metrics") && strings.Contains(all, "its VIP 10.9.0.1 is this load balancer's own address")
	})
	hub.Topics.SetState(viewOf(7, nil, 2, 3))
	h.await("to be ready again", func(s api.LBStatus) bool { return s.Ready })
}
