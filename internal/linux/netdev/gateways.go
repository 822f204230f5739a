package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Specification of our default routes: who reads `ip route show table TABLE` knows whose they are by it.
const (
	gatewayProtocol = 98 // not assigned in /etc/iproute2/rt_protos
	gatewayMetric   = 98
)

// Link is the device that an address of this host is on, and the addresses that it reaches there without a router.
type Link struct {
	Ifindex int
	Prefix  netip.Prefix
}

// LinkOf returns where an address of this host is.
func LinkOf(address netip.Addr) (l Link, err error) {
	addresses, err := netlink.AddrList(nil, family(address.Is6()))
	if err != nil {
		return l, fmt.Errorf("list addresses: %w", err)
	}
	for i := range addresses {
		if have, ok := netip.AddrFromSlice(addresses[i].IP); ok && have.Unmap() == address {
			ones, _ := addresses[i].Mask.Size()
			return Link{addresses[i].LinkIndex, netip.PrefixFrom(address, ones).Masked()}, nil
		}
	}
	return l, fmt.Errorf("%s is not an address of this host", address)
}

func family(ipv6 bool) int {
	if ipv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// GatewayRoute is the default route of one family in a routing table, by gateways that share the connections. The table may have other routes.
type GatewayRoute struct {
	Table int
	IPv6  bool
}

// ForeignRoute says that a table has somebody else's default route in the place of ours.
type ForeignRoute struct{ text string }

func (f *ForeignRoute) Error() string { return f.text }

// Set makes it lead to the gateways on a device's link; without any it is removed. It is not touched where it is so, nor where another default route would
// be mixed up with it or come before it.
func (g GatewayRoute) Set(ifindex int, gateways []netip.Addr) (changed bool, err error) {
	ours, foreign, err := g.list()
	switch {
	case err != nil:
		return false, err
	case len(gateways) == 0:
		return len(ours) > 0, g.remove(ours)
	case foreign != nil:
		return false, &ForeignRoute{fmt.Sprintf("table %d has another default route (%s): delete it, or give it a metric above %d, or name another --gateway-table", g.Table, foreign, gatewayMetric)}
	}
	want := []string{}
	route := netlink.Route{Family: family(g.IPv6), Table: g.Table, Protocol: gatewayProtocol, Priority: gatewayMetric, Dst: g.everywhere()}
	for _, gateway := range gateways {
		want = append(want, fmt.Sprint(ifindex, gateway))
		route.MultiPath = append(route.MultiPath, &netlink.NexthopInfo{LinkIndex: ifindex, Gw: gateway.AsSlice()})
	}
	if slices.Sort(want); slices.Equal(want, hops(ours)) {
		return false, nil
	}
	if err := netlink.RouteReplace(&route); err != nil {
		return false, fmt.Errorf("route by %v in table %d: %w", gateways, g.Table, err)
	}
	return true, nil
}

// Remove removes it, if it is there.
func (g GatewayRoute) Remove() error {
	ours, _, err := g.list()
	return errors.Join(err, g.remove(ours))
}

func (g GatewayRoute) remove(ours []netlink.Route) (err error) {
	for i := range ours {
		if fault := netlink.RouteDel(&ours[i]); fault != nil && !errors.Is(fault, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("remove the default route of table %d: %w", g.Table, fault))
		}
	}
	return err
}

// list returns our routes and one of somebody else that is in their way.
func (g GatewayRoute) list() (ours []netlink.Route, foreign *netlink.Route, err error) {
	routes, err := netlink.RouteListFiltered(family(g.IPv6), &netlink.Route{Table: g.Table}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, unix.ENOENT) { // nobody has used the table yet
		return nil, nil, fmt.Errorf("list the routes of table %d: %w", g.Table, err)
	}
	for i := range routes {
		switch r := &routes[i]; {
		case r.Dst != nil && !isDefault(r.Dst):
		case r.Protocol == gatewayProtocol && r.Priority == gatewayMetric:
			ours = append(ours, *r)
		case r.Priority <= gatewayMetric:
			foreign = r
		}
	}
	return ours, foreign, nil
}

// hops are those of routes, sorted.
func hops(routes []netlink.Route) []string {
	all := []string{}
	for i := range routes {
		r := &routes[i]
		if len(r.MultiPath) == 0 {
			all = append(all, fmt.Sprint(r.LinkIndex, r.Gw))
		}
		for _, hop := range r.MultiPath {
			all = append(all, fmt.Sprint(hop.LinkIndex, hop.Gw))
		}
	}
	slices.Sort(all)
	return all
}

func (g GatewayRoute) everywhere() *net.IPNet {
	if g.IPv6 {
		return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
}
