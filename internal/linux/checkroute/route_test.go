package checkroute_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// routeVIP sends what is for the VIP to a gateway.
func (n *checkNet) routeVIP(vip netip.Addr, gateway, device string) {
	n.Helper()
	progtest.Check(n, n.lb.Route(netip.PrefixFrom(vip, vip.BitLen()), 0, netspace.NextHop{Gateway: netip.MustParseAddr(gateway), Interface: device}))
}

// The packet that is encapsulated for a device passes the program there once more, or has been on it all the time.
func TestTheRouteToTheVIPMayLeadToTheServersDevice(t *testing.T) {
	n := newCheckNet(t)
	for i, vip := range n.servers[0].vips {
		n.routeVIP(vip, n.address(0, i == 1).String(), "eth0")
		n.path(n.address(0, i == 1))
		for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
			n.set(vip, vip.Is4(), func(target *checkroute.Target) { target.Forward = forward })
			for server := range n.servers {
				if who, err := n.fetch(server, securePort); who != n.name(server) {
					t.Errorf("%s to %s: a check of %s is answered by %q: %v", forward, vip, n.name(server), who, err)
				}
			}
		}
	}
}

// Whether or not the kernel has VLAN devices, the tag is what arrives with the packet.
func TestChecksOfAServerInAVLANAreTagged(t *testing.T) {
	n := newCheckNet(t)
	tags := n.tags(n.servers[0].server)
	for i, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		vlan := uint16(5 + i)
		n.set(n.servers[0].vips[0], false, func(target *checkroute.Target) { target.Forward, target.Path.VLAN = forward, vlan })
		ctx, cancel := context.WithTimeout(t.Context(), progtest.Deadline)
		done := make(chan struct{})
		go func() { // nobody answers a packet with a tag
			defer close(done)
			if conn, _, err := n.dial(ctx, n.key(0), plainPort, nil); err == nil {
				conn.Close()
			}
		}()
		for tag := uint16(0); tag != vlan; {
			select {
			case tag = <-tags: // or that of a packet from before
			case <-ctx.Done():
				t.Fatalf("%s: no packet with tag %d", forward, vlan)
			}
		}
		cancel()
		<-done
	}
}

// tags are the VLAN tags of TCP packets for port 80 that arrive at eth0.
func (n *checkNet) tags(space *netspace.Space) <-chan uint16 {
	n.Helper()
	tags := make(chan uint16, 1000)
	var fd int
	progtest.Check(n, space.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(progtest.Htons(unix.ETH_P_ALL)))
		return err
	}))
	progtest.Check(n, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
	progtest.Check(n, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}))
	ended, ctx := make(chan struct{}), n.Context()
	n.Cleanup(func() { <-ended; unix.Close(fd) })
	go func() {
		defer close(ended)
		frame, control := make([]byte, 192), make([]byte, 128)
		for ctx.Err() == nil {
			size, controlSize, _, from, err := unix.Recvmsg(fd, frame, control, 0)
			address, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || address.Pkttype == unix.PACKET_OUTGOING || size < 54 || frame[23] != unix.IPPROTO_TCP || binary.BigEndian.Uint16(frame[36:]) != plainPort {
				continue
			}
			messages, err := unix.ParseSocketControlMessage(control[:controlSize])
			if err == nil && len(messages) == 1 {
				tags <- binary.NativeEndian.Uint16(messages[0].Data[16:]) // tp_vlan_tci of struct tpacket_auxdata
			}
		}
	}()
	return tags
}

// straight expects a check to go straight, and why.
func (n *checkNet) straight(what string, key checkroute.Key, reason string) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), progtest.Deadline)
	defer cancel()
	conn, remarks, err := n.dial(ctx, key, plainPort, nil)
	if conn != nil {
		conn.Close()
	}
	if err != nil || reason == "" && remarks.Direct != "" || !strings.Contains(remarks.Direct, reason) {
		n.Errorf("%s: straight because of %q, want %q (%v)", what, remarks.Direct, reason, err)
	}
}

func TestChecksGoStraightWhereTheTunnelCannotSayAnything(t *testing.T) {
	n := newCheckNet(t)
	vip, vip6 := n.servers[0].vips[0], n.servers[0].vips[1]
	n.straight("before Set", n.key(0), "not set up yet")
	n.set(vip, false, nil)
	n.straight("a usual check", n.key(0), "")
	n.straight("a server that was not named", checkroute.Key{Service: "web", ID: 99}, "not set up yet")
	for _, forward := range []model.Forward{model.ForwardGUE, model.ForwardL2} {
		n.set(vip, false, func(target *checkroute.Target) {
			target.Forward, target.Ports = forward, []model.PortRange{{First: securePort, Last: securePort}}
		})
		n.straight("a port that the agent does not know, by "+forward.String(), n.key(0), map[model.Forward]string{model.ForwardGUE: "port 80 is not the service's"}[forward])
	}
	n.set(vip, false, func(target *checkroute.Target) {
		target.Ports = []model.PortRange{{First: plainPort, Last: plainPort}, {First: securePort, Last: securePort}}
	})
	n.straight("a port that the agent knows", n.key(0), "")
	n.set(vip, false, func(target *checkroute.Target) { target.Forward = model.ForwardNAT })
	n.straight("nat", n.key(0), "nat")
	n.set(vip, false, func(target *checkroute.Target) { target.Return = model.ReturnThrough })
	n.straight("return: through", n.key(0), "through")
	// Without a way out to the VIP the server's address takes its place, if it is of the same family.
	either := func(what string, vip netip.Addr, reason string) {
		n.set(vip, vip.Is6(), nil)
		n.straight(what+", a server of its family", n.key(0), "")
		n.set(vip, vip.Is4(), nil)
		n.straight(what+", a server of the other family", n.key(0), reason)
	}
	progtest.Check(t, n.lb.Do(func() error {
		return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: vip.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	}))
	either("no route", vip, "network is unreachable")
	n.routeVIP(vip, "10.7.0.99", "eth2")
	either("a gateway that is not there", vip, "not resolved")
	n.routeVIP(vip, "10.7.0.2", "eth2")
	progtest.Check(t, n.lb.Sysctl("net/ipv4/conf/eth0/rp_filter", "1"))
	either("a strict reverse path filter", vip, "net.ipv4.conf.eth0.rp_filter")
	n.straight("the other device, which is not strict", n.key(1), "")
	progtest.Check(t, n.lb.Sysctl("net/ipv4/conf/all/rp_filter", "2"))
	n.set(vip, true, nil)
	n.straight("a loose reverse path filter", n.key(0), "")
	progtest.Check(t, n.lb.AddAddress("lo", netip.PrefixFrom(vip6, 128)))
	either("a VIP of this host's own", vip6, "this host's own")
}

// Between a change of routes and the next Set, packets may not pass the program: they reach who knows whom.
func TestAChangedRouteIsNoticed(t *testing.T) {
	n := newCheckNet(t)
	vip := n.servers[0].vips[0]
	n.set(vip, false, nil)
	n.straight("the route as it was", n.key(1), "")
	n.routeVIP(vip, "10.9.0.2", "eth0")
	n.straight("the route has changed", n.key(1), "by another device")
	n.straight("and still", n.key(1), "by another device")
	n.path(n.address(0, false))
	n.set(vip, false, nil)
	n.straight("after Set", n.key(1), "")
	if who, err := n.fetch(1, plainPort); who != n.name(1) {
		t.Errorf("answered by %q: %v", who, err)
	}
}

func TestAServerThatCannotBeReachedIsNotDialled(t *testing.T) {
	n := newCheckNet(t)
	n.set(n.servers[0].vips[0], false, func(target *checkroute.Target) { target.Path = plan.Path{} })
	_, remarks, err := n.dial(t.Context(), n.key(0), plainPort, nil)
	if remarks.Direct != "" || err == nil || !strings.Contains(err.Error(), "next hop") {
		t.Errorf("straight %q, error %v", remarks.Direct, err)
	}
}
