package lb

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

var clientMAC = net.HardwareAddr{2, 9, 9, 9, 9, 9}

// routerSpace is a namespace that forwards from its loopback device, by which test runs come in, to the clients.
func routerSpace(t *testing.T) *netspace.Space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	name := fmt.Sprintf("blt-route-%d", os.Getpid())
	space, err := netspace.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		space.Close()
		netspace.Remove(name)
	})
	err = space.Do(func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out", HardwareAddr: nodeMAC[:]}, PeerName: "far"}
		mustSet(netlink.LinkAdd(pair))
		for _, name := range []string{"lo", "far", "out"} {
			link, err := netlink.LinkByName(name)
			mustSet(err)
			mustSet(netlink.LinkSetUp(link))
		}
		for _, client := range []netip.Addr{client4, client6} {
			bits := client.BitLen()
			network := &net.IPNet{IP: client.AsSlice(), Mask: net.CIDRMask(bits, bits)}
			mustSet(netlink.RouteAdd(&netlink.Route{LinkIndex: pair.Attrs().Index, Dst: network, Scope: netlink.SCOPE_LINK}))
			mustSet(netlink.NeighSet(&netlink.Neigh{LinkIndex: pair.Attrs().Index, IP: client.AsSlice(), HardwareAddr: clientMAC, State: netlink.NUD_PERMANENT}))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"net.ipv4.conf.all.forwarding", "net.ipv4.conf.lo.forwarding", "net.ipv6.conf.all.forwarding", "net.ipv6.conf.lo.forwarding"} {
		if err := space.Sysctl(key, "1"); err != nil {
			t.Fatal(err)
		}
	}
	return space
}

func TestAnswersAreForwardedAsARouterWould(t *testing.T) {
	space := routerSpace(t)
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, throughService(vip, model.ForwardNAT, 8080))
		f := flowTo(vip, 80, 1)
		hopLimit := map[bool]int{false: 14 + 8, true: 14 + 7}[vip.Is6()]
		for lifetime, action := range map[byte]uint32{64: xdpRedirect, 2: xdpRedirect, 1: xdpPass} {
			frame := w.answered(f, 1, timestamps(clockNow(), 9))
			frame[hopLimit] = lifetime
			if !vip.Is6() {
				setIPv4Checksum(frame[14:])
			}
			var got result
			mustSet(space.Do(func() error {
				got = w.run(frame)
				return nil
			}))
			if got.action != action || got.verdict != lbVerdictRETURNED {
				t.Fatalf("%s, lifetime %d: action %d, %s", vip, lifetime, got.action, verdictNames[got.verdict])
			}
			if err := verifyFrame(got.frame); err != nil {
				t.Error(err)
			}
			if action != xdpRedirect {
				continue
			}
			if got.frame[hopLimit] != lifetime-1 || hex.EncodeToString(got.frame[:12]) != hex.EncodeToString(append(clientMAC[:6:6], nodeMAC[:]...)) {
				t.Errorf("%s: %x", vip, got.frame)
			}
		}
	}
}
