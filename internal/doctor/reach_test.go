package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// Servers that drop everything are told from one that refuses, and there is time for all of them.
func TestReachTellsManySilentServersFromARefusal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	name := fmt.Sprintf("ballast-doc-%d-reach", os.Getpid())
	t.Cleanup(func() { check(netspace.Remove(name)) })
	space, err := netspace.Create(name)
	check(err)
	check(space.AddBridge("eth0", 1500, netip.MustParsePrefix("10.98.0.1/24")))
	router := netip.MustParseAddr("10.98.0.2")
	check(space.KnowNeighbours("eth0", map[netip.Addr]net.HardwareAddr{router: {2, 0, 0, 0, 0, 1}}))
	check(space.Route(netip.MustParsePrefix("10.97.0.0/16"), 0, netspace.NextHop{Gateway: router, Interface: "eth0"}))
	accepts, refuses := netip.MustParseAddrPort("10.98.0.1:80"), netip.MustParseAddrPort("10.98.0.1:81")
	unreachable := netip.MustParseAddrPort("192.0.2.1:80")
	addresses := []netip.AddrPort{accepts, refuses, unreachable}
	const silent = 2*reachAtOnce + 1
	for address, i := netip.MustParseAddr("10.97.0.1"), 0; i < silent; address, i = address.Next(), i+1 {
		addresses = append(addresses, netip.AddrPortFrom(address, 80))
	}
	var found map[netip.AddrPort]reach
	check(space.Do(func() error {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(accepts))
		if err != nil {
			return err
		}
		defer listener.Close()
		found = reachOf(t.Context(), addresses)
		return nil
	}))
	for i, address := range addresses {
		if have, ok := found[address]; !ok || have != (reach{silent: i >= 3}) {
			t.Errorf("%s: %+v, found %v", address, have, ok)
		}
	}
}
