// The network of a lab: its links, and what breaks them.
package world

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/process/slowlink"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Network is a topology that has been built.
type Network struct {
	Topology
	lab   *host.Lab
	wire  *link.Wire            // what frames to the router pass
	lossy map[string]*link.Wire // by end: NODE/INTERFACE
	slow  *host.Process         // the clients' link, if it is
	seen  host.Transcript       // the ClientHellos that it reports at its end
}

// Lose makes one end of a link lose frames on their way out; faults of zero make it whole again.
func (n *Network) Lose(node, name string, faults link.Faults) {
	end := node + "/" + name
	if n.lossy[end] == nil {
		wire := script.Must(link.Load())
		n.lossy[end] = wire
		n.lab.OnClose(func() { _ = wire.Close() })
		script.Check(n.lab.Space(node).Do(func() error {
			link, err := net.InterfaceByName(name)
			if err != nil {
				return err
			}
			return wire.AttachLoss(link.Index)
		}))
	}
	script.Check(n.lossy[end].SetFaults(faults))
}

// losses are the frames that were lost on purpose, by end of a link.
func (n *Network) losses() map[string]link.Losses {
	all := map[string]link.Losses{}
	for end, wire := range n.lossy {
		losses, err := wire.Losses()
		script.Checkf(err, "read losses of %s", end)
		all[end] = losses
	}
	return all
}

// Silence makes all packets between the router and a load balancer disappear, as if it had lost its power, with its links up; false: no more.
func (n *Network) Silence(i int, silent bool) {
	var faults link.Faults
	if silent {
		faults.DropPermille = 1000
	}
	n.Lose(RouterNode, uplink(LBName(i)), faults)
	n.Lose(LBName(i), "eth0", faults)
}

// Partition cuts a node off the management network, or heals that.
func (n *Network) Partition(node string, cut bool) {
	script.Check(n.lab.Space(managementNode).SetLink(node, !cut))
}

// CutFirstPaths loses all that is sent to the addresses that clients' MPTCP connections began from.
func (n *Network) CutFirstPaths() {
	script.Check(n.lab.Run(RouterNode, "", "ip", "route", "add", "blackhole", firstPaths.String()))
}

// EndClientLink ends what is between clients and router, and returns what ClientHellos it has seen, by source.
func (n *Network) EndClientLink() (seen map[netip.Addr]slowlink.Seen) {
	n.slow.Stop(n.lab.Context)
	script.Check(json.Unmarshal([]byte(n.seen.String()), &seen))
	return seen
}

// OpenFrames opens the frames of a node's interface.
func (n *Network) OpenFrames(node, name string) (socket *frames.Socket, err error) {
	err = n.lab.Space(node).Do(func() error {
		socket, err = frames.Open(name)
		return err
	})
	return socket, err
}

// AnswerByLB sends the answers of all servers by one load balancer.
func (n *Network) AnswerByLB(lb int) {
	gateways := fabricAddresses(lb)
	for i := range n.Servers {
		n.answerBy(i+1, [2]netip.Prefix(gateways))
	}
}

// answerBy sets the route of a server's answers. Their MTU is that of the world: the fabric's extra room is
// for the tunnels of the load balancers.
func (n *Network) answerBy(i int, gateway [2]netip.Prefix) {
	mtu := fullMTU
	if far := n.Servers[i-1].FarMTU; far != 0 {
		mtu = far
	}
	n.routeOut(ServerName(i), mtu, gateway)
}

// routeOut sets a node's routes to everywhere.
func (n *Network) routeOut(node string, mtu int, gateway [2]netip.Prefix) {
	space := n.lab.Space(node)
	script.Check(errors.Join(
		space.Route(anywhere4, mtu, netspace.NextHop{Gateway: gateway[0].Addr(), Interface: "eth0"}),
		space.Route(anywhere6, mtu, netspace.NextHop{Gateway: gateway[1].Addr(), Interface: "eth0"})))
}

// routeUp sets a load balancer's routes to clients.
func (n *Network) routeUp(i int) {
	_, router4 := uplinkAddresses(i, false)
	_, router6 := uplinkAddresses(i, true)
	n.routeOut(LBName(i), 0, [2]netip.Prefix{router4, router6})
}

// routeToFarServers sets a load balancer's routes to the servers beyond the fabric.
func (n *Network) routeToFarServers(lb string) {
	var errs []error
	for i, server := range n.Servers {
		if server.FarMTU == 0 {
			continue
		}
		mtu := server.FarMTU
		if n.RoutesHideMTU {
			mtu = 0
		}
		by4 := netspace.NextHop{Gateway: fabricGateway[0].Addr(), Interface: "eth1"}
		by6 := netspace.NextHop{Gateway: fabricGateway[1].Addr(), Interface: "eth1"}
		errs = append(errs,
			n.lab.Space(lb).Route(prefix("10.40.%d.0/24", i+1), mtu, by4),
			n.lab.Space(lb).Route(prefix("fd40:0:0:%x::/64", i+1), mtu, by6))
	}
	script.Check(errors.Join(errs...))
}

// routeSecondOut sets the route of what a load balancer of the second tier sends itself.
func (n *Network) routeSecondOut(name string) {
	gateway := netspace.NextHop{Gateway: fabricGateway[0].Addr(), Interface: "eth0"}
	script.Check(n.lab.Space(name).Route(anywhere4, 0, gateway))
}

// FunctionsBy makes some load balancers the gateways of all functions, as a routing protocol would. None: the router.
func (n *Network) FunctionsBy(lbs ...int) {
	var hops []netspace.NextHop
	for _, lb := range lbs {
		hops = append(hops, netspace.NextHop{Gateway: fabricAddresses(lb)[0].Addr(), Interface: "eth0"})
	}
	if len(hops) == 0 {
		hops = append(hops, netspace.NextHop{Gateway: fabricGateway[0].Addr(), Interface: "eth0"})
	}
	for i := 1; i <= n.Functions; i++ {
		script.Check(n.lab.Space(ServerName(i)).Route(anywhere4, 0, hops...))
	}
}

// routedBy are the load balancers that the router's kernel sends a VIP's packets to.
func (n *Network) routedBy(vip netip.Addr) (names []string, err error) {
	err = n.lab.Space(RouterNode).Do(func() error {
		family := netlink.FAMILY_V4
		if vip.Is6() {
			family = netlink.FAMILY_V6
		}
		routes, err := netlink.RouteList(nil, family)
		for _, route := range routes {
			if route.Dst == nil || !route.Dst.IP.Equal(vip.AsSlice()) {
				continue
			}
			hops := []int{route.LinkIndex}
			for _, hop := range route.MultiPath {
				hops = append(hops, hop.LinkIndex)
			}
			for _, index := range hops {
				if device, err := netlink.LinkByIndex(index); index != 0 && err == nil {
					names = append(names, strings.TrimSuffix(device.Attrs().Name, "-up"))
				}
			}
		}
		return err
	})
	slices.Sort(names)
	return names, err
}

// AwaitRoutes waits until the router sends the packets of all VIPs to these load balancers.
func (n *Network) AwaitRoutes(within time.Duration, lbs ...int) {
	var want []string
	for _, i := range lbs {
		want = append(want, LBName(i))
	}
	await.Promised(n.lab.Context, within, fmt.Sprintf("the router sends to %v", want), func() error {
		for _, vip := range n.VIPs {
			have, err := n.routedBy(vip)
			if err == nil && !slices.Equal(have, want) {
				err = fmt.Errorf("it sends %s to %v", vip, have)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
