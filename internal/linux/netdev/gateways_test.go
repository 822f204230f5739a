package netdev_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const gatewayTable = 4242

// function is a host with load balancers on its link, by family.
type function struct {
	*testing.T
	space   *netspace.Space
	ifindex int
}

func newFunction(t *testing.T) *function {
	f := &function{T: t, space: progtest.NewSpace(t, "f")}
	peer := progtest.NewSpace(t, "p")
	for _, space := range []*netspace.Space{f.space, peer} {
		progtest.Check(t, space.Sysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	progtest.Connect(t, f.space, "eth0", 1, peer, "eth0", 2, 9, 1500)
	f.do(func() error {
		device, err := net.InterfaceByName("eth0")
		f.ifindex = device.Index
		return err
	})
	return f
}

func (f *function) do(do func() error) {
	f.Helper()
	progtest.Check(f, f.space.Do(do))
}

// routes are the table's, as text.
func (f *function) routes(family int) (all []string) {
	f.do(func() error {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: gatewayTable}, netlink.RT_FILTER_TABLE)
		for i := range routes {
			all = append(all, routes[i].String())
		}
		return err
	})
	return all
}

func addresses(list ...string) (all []netip.Addr) {
	for _, one := range list {
		all = append(all, netip.MustParseAddr(one))
	}
	return all
}

var gatewayFamilies = map[int][]netip.Addr{netlink.FAMILY_V4: addresses("10.9.0.2", "10.9.0.3", "10.9.0.4"), netlink.FAMILY_V6: addresses("fd09::2", "fd09::3", "fd09::4")}

func TestTheGatewayRouteLeadsToThoseThatAreNamed(t *testing.T) {
	f := newFunction(t)
	for family, gateways := range gatewayFamilies {
		route := netdev.GatewayRoute{Table: gatewayTable, IPv6: family == netlink.FAMILY_V6}
		set := func(want bool, gateways ...netip.Addr) {
			t.Helper()
			f.do(func() error {
				changed, err := route.Set(f.ifindex, gateways)
				if err == nil && changed != want {
					t.Errorf("%v: changed: %v", gateways, changed)
				}
				return err
			})
			text := strings.Join(f.routes(family), "\n")
			for _, gateway := range gatewayFamilies[family] {
				named := false
				for _, one := range gateways {
					named = named || one == gateway
				}
				if strings.Contains(text, gateway.String()) != named {
					t.Errorf("%v: %s", gateways, text)
				}
			}
		}
		set(false)
		set(true, gateways...)
		set(false, gateways[2], gateways[1], gateways[0])
		set(true, gateways[1])
		set(false, gateways[1])
		set(true, gateways[0], gateways[2])
		set(true)
		set(true, gateways...)
		f.do(route.Remove)
		f.do(route.Remove)
		if left := f.routes(family); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}

func TestOthersRoutesOfTheTableStay(t *testing.T) {
	f := newFunction(t)
	for family, gateways := range gatewayFamilies {
		everywhere, narrow := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("192.0.2.0/24")
		if family == netlink.FAMILY_V6 {
			everywhere, narrow = netip.MustParsePrefix("::/0"), netip.MustParsePrefix("2001:db8::/32")
		}
		route := netdev.GatewayRoute{Table: gatewayTable, IPv6: family == netlink.FAMILY_V6}
		other := func(to netip.Prefix, metric int) *netlink.Route {
			return &netlink.Route{Family: family, Table: gatewayTable, Protocol: 4, Priority: metric, LinkIndex: f.ifindex, Gw: gateways[2].AsSlice(),
				Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}}
		}
		f.do(func() error {
			return errors.Join(netlink.RouteAdd(other(narrow, 1)), netlink.RouteAdd(other(everywhere, 4000)))
		})
		before := f.routes(family)
		set := func() (err error) {
			f.do(func() error {
				_, err = route.Set(f.ifindex, gateways[:2])
				return nil
			})
			return err
		}
		progtest.Check(t, set())
		if have := f.routes(family); len(have) <= len(before) {
			t.Errorf("no route of ours: %v", have)
		}
		f.do(route.Remove)
		if have := f.routes(family); strings.Join(have, "\n") != strings.Join(before, "\n") {
			t.Errorf("%v instead of %v", have, before)
		}
		for _, metric := range []int{97, 98} { // it would come before ours, or be part of it
			f.do(func() error { return netlink.RouteAdd(other(everywhere, metric)) })
			foreign := &netdev.ForeignRoute{}
			if err := set(); !errors.As(err, &foreign) || !strings.Contains(err.Error(), gateways[2].String()) {
				t.Errorf("metric %d: %v", metric, err)
			}
			if have := f.routes(family); len(have) != len(before)+1 {
				t.Errorf("metric %d: %v", metric, have)
			}
			f.do(func() error { return netlink.RouteDel(other(everywhere, metric)) })
		}
		progtest.Check(t, set())
	}
}

func TestTheLinkOfAnAddressIsFound(t *testing.T) {
	f := newFunction(t)
	f.do(func() error {
		for address, prefix := range map[string]string{"10.9.0.1": "10.9.0.0/24", "fd09::1": "fd09::/64"} {
			l, err := netdev.LinkOf(netip.MustParseAddr(address))
			if err != nil || l.Ifindex != f.ifindex || l.Prefix.String() != prefix {
				t.Errorf("%s: %+v, %v", address, l, err)
			}
		}
		if _, err := netdev.LinkOf(netip.MustParseAddr("10.9.0.2")); err == nil {
			t.Error("an address of another host has a link here")
		}
		return nil
	})
}
