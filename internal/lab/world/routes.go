// The routes of a lab: who answers by whom, and what the router learns.
package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/host"
	"github.com/ballast-lb/ballast/internal/lab/script"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Routes are those of the nodes of a network.
type Routes struct {
	lab      *host.Lab
	topology *Topology
}

// AnswerByLB sends the answers of all servers by one load balancer.
func (r *Routes) AnswerByLB(lb int) {
	gateways := fabricAddresses(lb)
	for i := range r.topology.Servers {
		r.answerBy(i+1, [2]netip.Prefix(gateways))
	}
}

// answerBy sets the route of a server's answers. Their MTU is that of the world: the fabric's extra room is
// for the tunnels of the load balancers.
func (r *Routes) answerBy(i int, gateway [2]netip.Prefix) {
	mtu := fullMTU
	if far := r.topology.Servers[i-1].FarMTU; far != 0 {
		mtu = far
	}
	r.routeOut(ServerName(i), mtu, gateway)
}

// routeOut sets a node's routes to everywhere.
func (r *Routes) routeOut(node string, mtu int, gateway [2]netip.Prefix) {
	space := r.lab.Space(node)
	script.Check(errors.Join(
		space.Route(anywhere4, mtu, netspace.NextHop{Gateway: gateway[0].Addr(), Interface: "eth0"}),
		space.Route(anywhere6, mtu, netspace.NextHop{Gateway: gateway[1].Addr(), Interface: "eth0"})))
}

// uplinkHop is the router's next hop to load balancer i.
func uplinkHop(i int, v6 bool) netspace.NextHop {
	balancer, _ := uplinkAddresses(i, v6)
	return netspace.NextHop{Gateway: balancer.Addr(), Interface: UplinkName(i)}
}

// Send has the router send the packets of a VIP to these load balancers, as a routing protocol would.
func (r *Routes) Send(vip netip.Addr, lbs ...int) {
	var hops []netspace.NextHop
	for _, lb := range lbs {
		hops = append(hops, uplinkHop(lb, vip.Is6()))
	}
	script.Check(r.lab.Space(RouterNode).Route(netip.PrefixFrom(vip, vip.BitLen()), 0, hops...))
}

// routeUp sets a load balancer's routes to clients.
func (r *Routes) routeUp(i int) {
	_, router4 := uplinkAddresses(i, false)
	_, router6 := uplinkAddresses(i, true)
	r.routeOut(LBName(i), 0, [2]netip.Prefix{router4, router6})
}

// routeToFarServers sets a load balancer's routes to the servers beyond the fabric.
func (r *Routes) routeToFarServers(lb string) {
	var errs []error
	for i, server := range r.topology.Servers {
		if server.FarMTU == 0 {
			continue
		}
		mtu := server.FarMTU
		if r.topology.RoutesHideMTU {
			mtu = 0
		}
		by4 := netspace.NextHop{Gateway: fabricGateway[0].Addr(), Interface: "eth1"}
		by6 := netspace.NextHop{Gateway: fabricGateway[1].Addr(), Interface: "eth1"}
		errs = append(errs,
			r.lab.Space(lb).Route(prefix("10.40.%d.0/24", i+1), mtu, by4),
			r.lab.Space(lb).Route(prefix("fd40:0:0:%x::/64", i+1), mtu, by6))
	}
	script.Check(errors.Join(errs...))
}

// routeSecondOut sets the route of what a load balancer of the second tier sends itself.
func (r *Routes) routeSecondOut(name string) {
	gateway := netspace.NextHop{Gateway: fabricGateway[0].Addr(), Interface: "eth0"}
	script.Check(r.lab.Space(name).Route(anywhere4, 0, gateway))
}

// FunctionsBy makes some load balancers the gateways of all functions, as a routing protocol would. None: the router.
func (r *Routes) FunctionsBy(lbs ...int) {
	var hops []netspace.NextHop
	for _, lb := range lbs {
		hops = append(hops, netspace.NextHop{Gateway: fabricAddresses(lb)[0].Addr(), Interface: "eth0"})
	}
	if len(hops) == 0 {
		hops = append(hops, netspace.NextHop{Gateway: fabricGateway[0].Addr(), Interface: "eth0"})
	}
	for i := 1; i <= r.topology.Functions; i++ {
		script.Check(r.lab.Space(ServerName(i)).Route(anywhere4, 0, hops...))
	}
}

// functionTable is the routing table of functions that follow their gateways by themselves; without any, the main one applies.
const functionTable = 100

// followGateways has a function forward by the route that its agent keeps.
func (r *Routes) followGateways(node string) {
	script.Checkf(r.lab.Run(node, "", "ip", "rule", "add", "iif", "eth0", "lookup", strconv.Itoa(functionTable)), "let %s forward by its agent's route", node)
}

// BlackholeFunctions has functions forward by their agents' routes alone.
func (r *Routes) BlackholeFunctions() {
	for i := 1; i <= r.topology.Functions; i++ {
		script.Check(r.lab.Run(ServerName(i), "", "ip", "route", "add", "blackhole", "default", "metric", "1000", "table", strconv.Itoa(functionTable)))
	}
}

// gatewaysOf are the load balancers among the next hops of a route.
func (r *Routes) gatewaysOf(route *netlink.Route) (lbs []int) {
	hops := []net.IP{route.Gw}
	for _, hop := range route.MultiPath {
		hops = append(hops, hop.Gw)
	}
	for lb := 1; lb <= r.topology.LBs; lb++ {
		if slices.ContainsFunc(hops, net.IP(fabricAddresses(lb)[0].Addr().AsSlice()).Equal) {
			lbs = append(lbs, lb)
		}
	}
	return lbs
}

// AwaitGateways waits until these functions send to these load balancers, and to no others.
func (r *Routes) AwaitGateways(functions []int, lbs ...int) {
	await.Promised(r.lab.Context, gatewaysWithin, fmt.Sprintf("functions send to load balancers %v", lbs), func() error {
		for _, i := range functions {
			err := r.lab.Space(ServerName(i)).Do(func() error {
				routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: functionTable}, netlink.RT_FILTER_TABLE)
				var have []int
				for k := range routes {
					have = append(have, r.gatewaysOf(&routes[k])...)
				}
				if err == nil && !slices.Equal(have, lbs) {
					err = fmt.Errorf("%s sends to %v", ServerName(i), have)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

const gatewaysWithin = 10 * time.Second

// WatchGateways returns what waits until these functions no longer send to a load balancer, and tells when the last has left it.
func (r *Routes) WatchGateways(functions []int, lb int) (left func() time.Time) {
	type change struct {
		function int
		at       time.Time
	}
	ctx, cancel := context.WithTimeout(r.lab.Context, gatewaysWithin)
	changes := make(chan change)
	for _, i := range functions {
		updates := make(chan netlink.RouteUpdate)
		script.Checkf(r.lab.Space(ServerName(i)).Do(func() error { return netlink.RouteSubscribe(updates, ctx.Done()) }), "watch the routes of %s", ServerName(i))
		go func() {
			for update := range updates {
				if update.Table == functionTable && update.Type == unix.RTM_NEWROUTE && !slices.Contains(r.gatewaysOf(&update.Route), lb) {
					select {
					case changes <- change{i, time.Now()}:
					case <-ctx.Done():
					}
				}
			}
		}()
	}
	return func() (last time.Time) {
		defer cancel()
		waits := slices.Clone(functions)
		for len(waits) > 0 {
			select {
			case c := <-changes:
				if slices.Contains(waits, c.function) {
					last = c.at
				}
				waits = slices.DeleteFunc(waits, func(i int) bool { return i == c.function })
			case <-ctx.Done():
				script.Check(fmt.Errorf("functions %v send to %s yet: %w", waits, LBName(lb), context.Cause(ctx)))
			}
		}
		return last
	}
}

// routedBy are the load balancers that the router's kernel sends a VIP's packets to.
func (r *Routes) routedBy(vip netip.Addr) (names []string, err error) {
	err = r.lab.Space(RouterNode).Do(func() error {
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
func (r *Routes) AwaitRoutes(within time.Duration, lbs ...int) {
	var want []string
	for _, i := range lbs {
		want = append(want, LBName(i))
	}
	await.Promised(r.lab.Context, within, fmt.Sprintf("the router sends to %v", want), func() error {
		for _, vip := range r.topology.VIPs {
			have, err := r.routedBy(vip)
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
