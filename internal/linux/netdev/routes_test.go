package netdev_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// addRoutes makes routes of each kind: by rules to a table of their own, and by eth1, which is a VRF's where the kernel has them. 10.8.0.2 and fd08::2 are on
// eth0's link, and nothing leads to 203.0.113.0/24.
func addRoutes(t *testing.T, space *netspace.Space) {
	t.Helper()
	check(t, space.AddBridge("eth1", 1500, netip.MustParsePrefix("10.7.0.1/24")))
	check(t, onDevice(space, addRoutesBy))
}

func addRoutesBy(index int) error {
	port, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "vrf0"}, Table: 20}
	if err = netlink.LinkAdd(vrf); err == nil {
		err = errors.Join(netlink.LinkSetMaster(port, vrf), netlink.LinkSetUp(vrf))
	}
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	err = nil
	for to, route := range map[string]netlink.Route{
		"192.0.2.0/25":    {LinkIndex: index, Gw: net.ParseIP("10.8.0.2"), MTU: 1400},
		"192.0.2.128/25":  {LinkIndex: index, Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fd08::2")}},
		"198.18.0.0/16":   {LinkIndex: index, Gw: net.ParseIP("10.8.0.2"), Src: net.ParseIP("10.8.0.1")},
		"198.19.0.0/16":   {LinkIndex: index, Gw: net.ParseIP("10.8.0.3")},
		"fd99::/64":       {LinkIndex: index, Gw: net.ParseIP("fd08::2"), MTU: 1300},
		"203.0.113.0/24":  {Type: unix.RTN_UNREACHABLE},
		"198.51.100.0/26": {LinkIndex: index, Gw: net.ParseIP("10.8.0.9"), Table: 10},
		"fd97::/64":       {LinkIndex: index, Gw: net.ParseIP("fd08::9"), Table: 10},
		"10.9.0.0/24":     {LinkIndex: port.Attrs().Index, Scope: unix.RT_SCOPE_LINK}, // leaks into the VRF
		"10.10.0.0/24":    {LinkIndex: port.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Table: int(vrf.Table)},
	} {
		_, route.Dst, _ = net.ParseCIDR(to)
		err = errors.Join(err, netlink.RouteAdd(&route))
	}
	for _, to := range []string{"198.51.100.0/24", "fd97::/64"} {
		rule := netlink.NewRule()
		_, rule.Dst, _ = net.ParseCIDR(to)
		rule.Table, rule.Priority = 10, 100
		err = errors.Join(err, netlink.RuleAdd(rule))
	}
	return err
}

// reference is the next hop without its neighbour's MAC, by the netlink package.
func reference(address netip.Addr) (hop netdev.NextHop, gateway netip.Addr, err error) {
	routes, err := netlink.RouteGet(address.AsSlice())
	if err != nil {
		return hop, gateway, err
	}
	route := routes[0]
	link, err := netlink.LinkByIndex(route.LinkIndex)
	if err != nil {
		return hop, gateway, err
	}
	hop.Ifindex, hop.MTU = route.LinkIndex, uint16(cmp.Or(route.MTU, link.Attrs().MTU))
	hop.Source, _ = netip.AddrFromSlice(route.Src)
	hop.Source = hop.Source.Unmap()
	copy(hop.SourceMAC[:], link.Attrs().HardwareAddr)
	gateway = address
	if via, ok := route.Via.(*netlink.Via); ok {
		gateway, _ = netip.AddrFromSlice(via.Addr)
	} else if route.Gw != nil {
		gateway, _ = netip.AddrFromSlice(route.Gw)
	}
	hop.OnLink = gateway.Unmap() == address
	return hop, gateway.Unmap(), nil
}

// Many questions in a message have the answers that the netlink package has for each alone.
func TestRoutesThatAreAskedForTogetherAreThoseOfEachAlone(t *testing.T) {
	space := newSpace(t)
	addRoutes(t, space)
	var addresses []netip.Addr
	for _, first := range []string{"10.8.0.1", "192.0.2.1", "192.0.2.129", "198.18.255.254", "203.0.113.1", "198.51.100.60", "10.9.0.1", "10.10.0.1",
		"fd08::2", "fd99::1", "fd98::1", "fd97::1", "127.0.0.1"} {
		for address, i := netip.MustParseAddr(first), 0; i < 40; address, i = address.Next(), i+1 {
			addresses = append(addresses, address)
		}
	}
	check(t, space.Do(func() error {
		var routes netdev.Routes
		if err := routes.Ask(addresses); err != nil {
			return err
		}
		together, ways := netdev.NewResolverBy(&routes), map[string]bool{}
		for _, address := range addresses {
			have, err := together.Lookup(address)
			have.Destination = [6]byte{}
			want, gateway, none := reference(address)
			var unresolved *netdev.Unresolved
			switch {
			case none != nil:
				if !errors.Is(err, none) {
					t.Errorf("%s: %v, and alone %v", address, err, none)
				}
			case address.IsLoopback() || address == netip.MustParseAddr("10.8.0.1"):
				if err == nil {
					t.Errorf("%s is this host's: %+v", address, have)
				}
			case err != nil && !errors.As(err, &unresolved) || have != want || unresolved != nil && unresolved.Neighbour != gateway:
				t.Errorf("%s: %+v, %v, and alone %+v by %s", address, have, err, want, gateway)
			default:
				ways[fmt.Sprint(want.Ifindex, want.MTU, want.OnLink, gateway.Is4())] = true
			}
		}
		if routes.Asked != len(addresses) || len(ways) < 7 {
			t.Errorf("%d questions about %d addresses with %d ways", routes.Asked, len(addresses), len(ways))
		}
		return nil
	}))
}

// A change of a large fleet looks each destination up once, by one socket, and the router that they are behind, which does not answer, once.
func TestManyRoutesCostLittle(t *testing.T) {
	space := newSpace(t)
	addRoutes(t, space)
	const servers = 10_000
	addresses := make([]netip.Addr, servers)
	for i, address := 0, netip.MustParseAddr("198.19.0.1"); i < servers; i, address = i+1, address.Next() {
		addresses[i] = address
	}
	check(t, space.Do(func() error {
		var routes netdev.Routes
		perServer := testing.AllocsPerRun(1, func() {
			routes = netdev.Routes{}
			check(t, routes.Ask(addresses))
			check(t, routes.Ask(addresses)) // which are known
		}) / servers
		if routes.Asked != servers || perServer > 12 { // a socket for each would be 20 more
			t.Errorf("%d questions about %d servers, %.1f allocations for each", routes.Asked, servers, perServer)
		}
		resolver := netdev.NewResolverBy(&routes)
		perServer = testing.AllocsPerRun(1, func() {
			for _, address := range addresses {
				if _, err := resolver.Lookup(address); !errors.Is(err, netdev.ErrUnresolved) {
					t.Fatalf("%s: %v", address, err)
				}
			}
		}) / servers
		if perServer > 1 { // to ask for their router each time would be 30 more
			t.Errorf("%.1f allocations for each server behind a router", perServer)
		}
		return nil
	}))
}
