package netdev_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var neighbourMAC = net.HardwareAddr{2, 0, 0, 0, 0, 9}

// newSpace has eth0 with 10.8.0.1/24 and fd08::1/64, and neighbours 10.8.0.2 and fd08::2.
func newSpace(t *testing.T) *netspace.Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	name := fmt.Sprintf("ballast-dev-%d", os.Getpid())
	space, err := netspace.Create(name)
	check(t, err)
	t.Cleanup(func() {
		space.Close()
		check(t, netspace.Remove(name))
	})
	check(t, space.AddBridge("eth0", 1600, netip.MustParsePrefix("10.8.0.1/24"), netip.MustParsePrefix("fd08::1/64")))
	for _, address := range []string{"10.8.0.2", "fd08::2"} {
		check(t, onDevice(space, func(index int) error { return setNeighbour(index, address, neighbourMAC) }))
	}
	return space
}

func onDevice(space *netspace.Space, change func(index int) error) error {
	return space.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return change(link.Attrs().Index)
	})
}

func setNeighbour(index int, address string, mac net.HardwareAddr) error {
	return netlink.NeighSet(&netlink.Neigh{LinkIndex: index, IP: net.ParseIP(address), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLookupFindsNeighboursOfEitherFamily(t *testing.T) {
	space := newSpace(t)
	check(t, onDevice(space, func(index int) error {
		_, far, _ := net.ParseCIDR("192.0.2.1/32")
		via := &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("fd08::2")}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: far, Via: via})
	}))
	check(t, space.Do(func() error {
		resolver := netdev.NewResolver()
		for _, address := range []string{"10.8.0.2", "fd08::2", "192.0.2.1"} {
			hop, err := resolver.Lookup(netip.MustParseAddr(address))
			if err != nil || net.HardwareAddr(hop.Destination[:]).String() != neighbourMAC.String() {
				t.Errorf("%s: %+v, %v", address, hop, err)
			}
		}
		if _, err := resolver.Lookup(netip.MustParseAddr("10.8.0.3")); !errors.Is(err, netdev.ErrUnresolved) {
			t.Errorf("a neighbour that is not there: %v", err)
		}
		return nil
	}))
}

func TestADeviceIsTheWayOfARouteOnceTheNeighbourAnswers(t *testing.T) {
	space := newSpace(t)
	check(t, space.Do(func() error {
		for _, address := range []string{"10.8.0.2", "fd08::2"} {
			device, err := netdev.RouteDevice(netip.MustParseAddr(address))
			if err != nil || device.Name != "eth0" {
				t.Errorf("%s: %+v, %v", address, device, err)
			}
		}
		if _, err := netdev.RouteDevice(netip.MustParseAddr("10.8.0.3")); !errors.Is(err, netdev.ErrUnresolved) {
			t.Errorf("a neighbour that is not there: %v", err)
		}
		if device, err := netdev.RouteDevice(netip.MustParseAddr("10.8.0.1")); err == nil {
			t.Errorf("an address of this host: %+v", device)
		}
		return nil
	}))
}

// A temporary address is another one tomorrow, and servers know load balancers by their addresses.
//
// Promise: Tunnels come from the lasting IPv6 address of a prefix where the kernel prefers temporary ones
// (`use_tempaddr=2`).
// Public: PurpleI2P/i2pd#1251 (tunnels leave by a temporary IPv6 address, and end with it).
func TestTunnelsDoNotComeFromTemporaryAddresses(t *testing.T) {
	space := newSpace(t)
	const lasting = "fd08::1"
	source := func() (source string) {
		t.Helper()
		check(t, space.Do(func() error {
			hop, err := netdev.NewResolver().Lookup(netip.MustParseAddr("fd08::2"))
			source = hop.Source.String()
			return err
		}))
		return source
	}
	kernels := func() (source net.IP) {
		t.Helper()
		check(t, space.Do(func() error {
			routes, err := netlink.RouteGet(net.ParseIP("fd08::2"))
			if err == nil {
				source = routes[0].Src
			}
			return err
		}))
		return source
	}
	if source() != lasting {
		t.Fatalf("without a temporary address tunnels come from %s", source())
	}
	check(t, space.Sysctl("net/ipv6/conf/eth0/use_tempaddr", "2"))
	check(t, onDevice(space, func(index int) error { // fd09::1 is of another prefix
		link, err := netlink.LinkByIndex(index)
		if err != nil {
			return err
		}
		for _, a := range []struct {
			address string
			flags   int
		}{{"fd09::1/64", unix.IFA_F_NODAD}, {"fd08::9/64", unix.IFA_F_NODAD | unix.IFA_F_MANAGETEMPADDR}} {
			address, err := netlink.ParseAddr(a.address)
			if err != nil {
				return err
			}
			address.Flags = a.flags
			if err := netlink.AddrAdd(link, address); err != nil {
				return err
			}
		}
		return nil
	}))
	await.True(t, "the kernel prefers a temporary address", func() bool {
		from := kernels()
		return !from.Equal(net.ParseIP("fd08::9")) && !from.Equal(net.ParseIP(lasting))
	})
	if from := source(); from != lasting && from != "fd08::9" {
		t.Errorf("tunnels come from %s, the kernel's choice is %s", from, kernels())
	}
	check(t, onDevice(space, func(index int) error {
		link, err := netlink.LinkByIndex(index)
		list, listed := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, a := range list {
			if a.IP.Equal(net.ParseIP(lasting)) {
				err = errors.Join(err, netlink.AddrDel(link, &a))
			}
		}
		return errors.Join(err, listed)
	}))
	if from := source(); from != "fd08::9" {
		t.Errorf("tunnels come from %s", from)
	}
}

// Changes that come closer together than Watch settles are reported all the same.
func TestWatchReportsWhileChangesGoOn(t *testing.T) {
	space := newSpace(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reports atomic.Int32
	check(t, space.Do(func() error { return netdev.Watch(ctx, func(bool) { reports.Add(1) }) }))
	check(t, onDevice(space, func(index int) error {
		end := time.Now().Add(9 * time.Second) // before looks that come anyhow are as many
		for i := 0; reports.Load() < 3; i++ {
			if time.Now().After(end) {
				return fmt.Errorf("%d reports", reports.Load())
			}
			if err := setNeighbour(index, "10.8.0.4", net.HardwareAddr{2, 0, 0, 0, 1, byte(i)}); err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	}))
}

// A rule leads elsewhere without a word about routes.
func TestWatchTellsNeighboursFromRoutesAndTheirRules(t *testing.T) {
	space := newSpace(t)
	rule := func(family int) func(index, i int) error {
		return func(_, i int) error {
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table = family, 100+i, unix.RT_TABLE_MAIN
			return netlink.RuleAdd(rule)
		}
	}
	_, far, _ := net.ParseCIDR("192.0.2.0/24")
	for _, c := range []struct {
		name           string
		onlyNeighbours bool
		change         func(index, i int) error
	}{
		{"a neighbour", true, func(index, i int) error {
			return setNeighbour(index, "10.8.0.4", net.HardwareAddr{2, 0, 0, 0, 1, byte(i)})
		}},
		{"a rule", false, rule(netlink.FAMILY_V4)},
		{"a rule of IPv6", false, rule(netlink.FAMILY_V6)},
		{"a route", false, func(index, i int) error {
			return netlink.RouteReplace(&netlink.Route{LinkIndex: index, Dst: far, Gw: net.ParseIP("10.8.0.2"), MTU: 1300 + i})
		}},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		reports, deadline := make(chan bool, 1000), time.After(4*time.Second) // before the report that comes anyhow
		check(t, space.Do(func() error { return netdev.Watch(ctx, func(onlyNeighbours bool) { reports <- onlyNeighbours }) }))
		for i, reported := 0, false; !reported; i++ {
			check(t, onDevice(space, func(index int) error { return c.change(index, i) }))
			select {
			case only := <-reports: // others' news may be among them while the device is new
				reported = only == c.onlyNeighbours
			case <-deadline:
				t.Fatalf("%s: not reported", c.name)
			}
		}
		cancel()
	}
}

func TestMicrosecondRoutesOfEveryTableAreFound(t *testing.T) {
	space := newSpace(t)
	check(t, onDevice(space, func(index int) error {
		const tcpUsecTS = 1 << 4
		_, far, _ := net.ParseCIDR("203.0.113.0/24")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: far, Table: 100, Features: tcpUsecTS})
	}))
	check(t, space.Do(func() error {
		if found := netdev.MicrosecondRoutes(); len(found) != 1 {
			t.Errorf("found %q", found)
		}
		return nil
	}))
}
