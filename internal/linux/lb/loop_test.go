package lb

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// routerAndLB are two hosts on one wire that send each other what they have no use for: the router has routes to the VIPs by the load
// balancer, which is a router, too, and has its default routes by the router.
func routerAndLB(t *testing.T, w *world) (router, lb *netspace.Space) {
	t.Helper()
	spaces := [2]*netspace.Space{}
	var ends [2]netspace.End
	for i := range spaces {
		space, err := netspace.Create(fmt.Sprintf("blt-circle-%d-%d", os.Getpid(), i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			space.Close()
			netspace.Remove(space.Name)
		})
		spaces[i] = space
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := space.Sysctl(key, "1"); err != nil {
				t.Fatal(err)
			}
		}
		ends[i] = netspace.End{Space: space, Interface: "eth0", MTU: 1500, Addresses: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.7.0.%d/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd07::%d/64", i+1))}}
	}
	router, lb = spaces[0], spaces[1]
	if err := netspace.Connect(ends[0], ends[1]); err != nil {
		t.Fatal(err)
	}
	for i, vip := range []netip.Addr{vip4, vip6} {
		via := func(host int) netspace.NextHop {
			return netspace.NextHop{Gateway: ends[host].Addresses[i].Addr(), Interface: "eth0"}
		}
		everywhere := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		if vip.Is4() {
			everywhere = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		}
		if err := errors.Join(router.Route(netip.PrefixFrom(vip, vip.BitLen()), 0, via(1)), lb.Route(everywhere, 0, via(0))); err != nil {
			t.Fatal(err)
		}
	}
	err := lb.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		attached, err := link.AttachXDP(link.XDPOptions{Program: w.lb.Program(), Interface: device.Index})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return router, lb
}

// sendDatagram sends one to an address and returns the socket.
func sendDatagram(t *testing.T, from *netspace.Space, to netip.AddrPort) (socket net.Conn) {
	t.Helper()
	err := from.Do(func() (err error) {
		if socket, err = net.Dial("udp", to.String()); err != nil {
			return err
		}
		_, err = socket.Write([]byte("x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

func (w *world) unserved(verdict lbVerdict) uint64 { return w.verdicts()[verdictKey{"", verdict}] }

var forwardedDatagrams = regexp.MustCompile(`Ip6OutForwDatagrams\s+(\d+)`)

// forwarded is how many packets a host has forwarded as a router.
func forwarded(t *testing.T, space *netspace.Space) (ipv4, ipv6 string) {
	t.Helper()
	snmp, err := space.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	snmp6, err := space.ReadFile("/proc/thread-self/net/snmp6")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(strings.Split(string(snmp), "\n")[1])
	return fields[6], string(forwardedDatagrams.FindSubmatch(snmp6)[1])
}

// Promise: A router (`ip_forward`) drops packets to a VIP or former VIP that no service takes
// (`dropped_no_service`), so that they do not loop; the host gets them if the address is its own.
// Also held by TestARouterDropsWhateverIsForAVIPAndNoServiceOfIt and
// TestWhatIsForAFormerVIPIsDroppedOnlyOnItsWayBack.
func TestWhatNobodyServesCrossesTheWireToARouterOnce(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	router, lb := routerAndLB(t, w)
	for _, services := range []string{"of other ports", "removed"} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			before := w.unserved(lbVerdictDROPPED_NO_SERVICE)
			sendDatagram(t, router, netip.AddrPortFrom(vip, 9999))
			for deadline := time.Now().Add(20 * time.Second); w.unserved(lbVerdictDROPPED_NO_SERVICE) == before; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s, services %s: nothing was dropped", vip, services)
				}
			}
			if got := w.unserved(lbVerdictDROPPED_NO_SERVICE) - before; got != 1 {
				t.Errorf("%s, services %s: the datagram came %d times", vip, services, got)
			}
		}
		w.update(func(want *plan.Want) { want.Services = nil })
	}
	if ipv4, ipv6 := forwarded(t, lb); ipv4 != "0" || ipv6 != "0" {
		t.Errorf("the load balancer forwarded %s IPv4 and %s IPv6 packets", ipv4, ipv6)
	}
}

func TestAVIPThatIsAnAddressOfTheHostTooIsTheHosts(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	router, lb := routerAndLB(t, w)
	before := w.unserved(lbVerdictDROPPED_NO_SERVICE)
	for _, vip := range []netip.Addr{vip4, vip6} {
		if err := lb.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())); err != nil {
			t.Fatal(err)
		}
		awaitLocal(t, lb, vip)
		socket := sendDatagram(t, router, netip.AddrPortFrom(vip, 9999))
		_ = socket.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := socket.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want the host to refuse it", vip, err)
		}
	}
	if got := w.unserved(lbVerdictDROPPED_NO_SERVICE) - before; got != 0 {
		t.Errorf("%d packets for the host itself were dropped", got)
	}
}

// awaitLocal waits until the kernel takes what is for an address for its own: an IPv6 address is added a little before its route.
func awaitLocal(t *testing.T, space *netspace.Space, address netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		var routes []netlink.Route
		err := space.Do(func() (err error) {
			routes, err = netlink.RouteGet(address.AsSlice())
			return err
		})
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is not local: %v, %v", address, routes, err)
		}
	}
}

// What comes in by the loopback device of routerSpace, whose routes lead on.
func TestARouterDropsWhateverIsForAVIPAndNoServiceOfIt(t *testing.T) {
	space := routerSpace(t)
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	w.forwards = true
	for _, vip := range []netip.Addr{vip4, vip6} {
		if err := space.Route(netip.PrefixFrom(vip, vip.BitLen()), 0, netspace.NextHop{Interface: "out"}); err != nil {
			t.Fatal(err)
		}
	}
	withOptions := append([]byte{0x46}, ipPacket(client4, vip4, 6, flowTo(vip4, 80, 1).tcp(syn, nil, nil))[1:]...)
	unknown := flowTo(vip4, 9999, 1)
	for name, frame := range map[string][]byte{
		"SYN":              unknown.frame(unknown.tcp(syn, synOptions(), nil)),
		"SYN, tagged":      ethernet(5, ipPacket(client4, vip4, 6, unknown.tcp(syn, synOptions(), nil))),
		"SYN over IPv6":    flowTo(vip6, 9999, 1).frame(flowTo(vip6, 9999, 1).tcp(syn, synOptions(), nil)),
		"UDP":              ethernet(0, ipPacket(client4, vip4, 17, unknown.udp(nil))),
		"GRE":              ethernet(0, ipPacket(client4, vip4, 47, make([]byte, 20))),
		"IP options":       ethernet(0, withOptions),
		"ICMP":             icmpFrame(client4, vip4, 13, 0, 1, make([]byte, 12)),
		"ICMPv6":           icmpFrame(client6, vip6, 139, 0, 1, make([]byte, 12)),
		"an error":         pathError(unknown, 3, 1, 0, unknown.answer(1), 128),
		"extension header": ethernet(0, ipPacket(client6, vip6, 60, make([]byte, 40))),
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			want := w.expect(frame)
			if want.verdict != lbVerdictDROPPED_NO_SERVICE {
				t.Fatalf("the reference expects %s", verdictNames[want.verdict])
			}
			var got result
			mustSet(space.Do(func() error {
				got = w.run(frame)
				return nil
			}))
			w.compare(frame, got, want)
		})
	}
	stranger := icmpFrame(client4, netip.MustParseAddr("192.0.2.77"), 8, 0, 1, nil)
	var got result
	mustSet(space.Do(func() error {
		got = w.run(stranger)
		return nil
	}))
	if got.verdict != lbVerdictPASSED_NO_SERVICE {
		t.Errorf("what is not for a VIP: %s", verdictNames[got.verdict])
	}
}

// The host may be the way to who has the address now.
func TestWhatIsForAFormerVIPIsDroppedOnlyOnItsWayBack(t *testing.T) {
	space := routerSpace(t)
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	w.update(func(want *plan.Want) { want.Services = nil })
	for _, vip := range []netip.Addr{vip4, vip6} {
		if err := space.Route(netip.PrefixFrom(vip, vip.BitLen()), 0, netspace.NextHop{Interface: "out"}); err != nil {
			t.Fatal(err)
		}
		frame := flowTo(vip, 80, 1).frame(flowTo(vip, 80, 1).tcp(syn, synOptions(), nil))
		for _, step := range []struct {
			hop  net.HardwareAddr
			want lbVerdict
		}{{clientMAC, lbVerdictPASSED_NO_SERVICE}, {net.HardwareAddr(frame[6:12]), lbVerdictDROPPED_NO_SERVICE}} {
			var got result
			mustSet(space.Do(func() error {
				out, err := netlink.LinkByName("out")
				if err == nil {
					err = netlink.NeighSet(&netlink.Neigh{LinkIndex: out.Attrs().Index, IP: vip.AsSlice(), HardwareAddr: step.hop, State: netlink.NUD_PERMANENT})
				}
				got = w.run(frame)
				return err
			}))
			if got.verdict != step.want {
				t.Errorf("%s, on its way from %s to %s: %s, want %s", vip, net.HardwareAddr(frame[6:12]), step.hop, verdictNames[got.verdict], verdictNames[step.want])
			}
		}
	}
}
