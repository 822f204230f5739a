package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

func (h *agentHost) onDevice(change func(netlink.Link) error) {
	h.t.Helper()
	require(h.t, h.onDeviceNamed("eth0", change))
}

// awaitTunnels sends frames of a load balancer to the server until one more is recognised.
func (h *agentHost) awaitTunnels(what string) {
	h.t.Helper()
	before := h.counters()["decapsulated"]
	for deadline := time.Now().Add(hostDeadline); h.counters()["decapsulated"] == before; time.Sleep(20 * time.Millisecond) {
		var mac net.HardwareAddr
		h.onDevice(func(device netlink.Link) error { mac = device.Attrs().HardwareAddr; return nil })
		require(h.t, h.peer.Do(func() error { return sendTunnelled(mac, net.IP{10, 9, 0, 1}, net.IP{10, 9, 0, 2}) }))
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: tunnels are not recognised: %v", what, h.counters())
		}
	}
}

// sendTunnelled transmits a SYN to the service in IP in IP by the calling thread's eth0.
func sendTunnelled(mac net.HardwareAddr, from, to net.IP) error {
	return sendFrame(mac, from, &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolIPv4, SrcIP: from, DstIP: to})
}

// sendSYN does so as a client.
func sendSYN(mac net.HardwareAddr) error { return sendFrame(mac, net.IP{203, 0, 113, 7}) }

func sendFrame(mac net.HardwareAddr, from net.IP, outer ...gopacket.SerializableLayer) error {
	inner := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from, DstIP: net.IP{198, 51, 100, 10}}
	tcp := &layers.TCP{SrcPort: 1234, DstPort: 80, SYN: true}
	stack := append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: mac, EthernetType: layers.EthernetTypeIPv4}}, outer...)
	buffer := gopacket.NewSerializeBuffer()
	err := errors.Join(tcp.SetNetworkLayerForChecksum(inner),
		gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append(stack, inner, tcp)...))
	if err != nil {
		return err
	}
	device, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	return unix.Sendto(socket, buffer.Bytes(), 0, &unix.SockaddrLinklayer{Ifindex: device.Index})
}

func TestAgentFollowsItsDeviceAndItsAddresses(t *testing.T) {
	t.Parallel()
	h := newAgentHost(t)
	sum := h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	h.awaitTunnels("at first")
	h.onDevice(func(device netlink.Link) error {
		return netlink.LinkSetHardwareAddr(device, net.HardwareAddr{2, 0, 0, 0, 9, 9})
	})
	h.awaitTunnels("after a change of the MAC")

	address, err := netlink.ParseAddr("10.9.0.2/24")
	require(t, err)
	h.onDevice(func(device netlink.Link) error { return netlink.AddrDel(device, address) })
	h.await("the address to go", func(s api.AgentStatus) bool { return len(s.Services) == 0 })
	h.onDevice(func(device netlink.Link) error { return netlink.AddrAdd(device, address) })
	h.await("the address to come back", func(s api.AgentStatus) bool { return len(s.Services) == 1 })
	h.awaitTunnels("with the address back")

	h.onDevice(netlink.LinkDel)
	require(t, netspace.Connect(end(h.space, []string{"10.9.0.2/24"}), end(h.peer, []string{"10.9.0.1/24"})))
	h.awaitTunnels("by a new device of the same name")
	require(t, h.peer.Route(netip.MustParsePrefix("198.51.100.10/32"), 0,
		netspace.NextHop{Gateway: netip.MustParseAddr("10.9.0.2"), Interface: "eth0"}))
	exchange(t, h.echo())
}

// The client is reached by another device than the one that packets come in by, and the way changes while it is connected.
//
// Promise: Connections are kept when answers leave by another device or their route changes.
// Also held by TestAnswersAreMarkedOnADeviceWhoseXDPHookIsTaken.
func TestAnswersThatLeaveByAnotherDeviceAreMarked(t *testing.T) {
	t.Parallel()
	noRaces(t)
	answersLeaveByAnotherDevice(t, false)
}

// What comes in there is no tunnel: others may have its XDP hook.
func TestAnswersAreMarkedOnADeviceWhoseXDPHookIsTaken(t *testing.T) {
	t.Parallel()
	noRaces(t)
	answersLeaveByAnotherDevice(t, true)
}

func answersLeaveByAnotherDevice(t *testing.T, taken bool) {
	h := newAgentHost(t)
	end := func(space *netspace.Space, host string) netspace.End {
		return netspace.End{Space: space, Interface: "eth9", Addresses: []netip.Prefix{netip.MustParsePrefix("10.19.0." + host + "/24")}}
	}
	require(t, netspace.Connect(end(h.space, "2"), end(h.peer, "1")))
	if taken {
		require(t, h.space.Do(func() error {
			device, err := net.InterfaceByName("eth9")
			if err == nil {
				_, err = link.AttachPass(device)
			}
			return err
		}))
	}
	client := netip.MustParsePrefix("192.0.2.1/32")
	require(t, h.peer.AddAddress("lo", client))
	sum := h.write(fmt.Sprintf(agentFile, 1))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum })
	way := func(gateway, device string) {
		require(t, h.space.Do(func() error {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(gateway)})
		}))
	}
	way("10.19.0.1", "eth9")
	h.await("the device of the new route", func(s api.AgentStatus) bool { return s.Interfaces["eth9"] == string(attach.XDPNone) })
	h.from = client.Addr()
	conn := h.echo()
	exchange(t, conn)
	way("10.9.0.1", "eth0")
	exchange(t, conn)
	way("10.19.0.1", "eth9")
	exchange(t, conn)
	time.Sleep(2 * time.Second) // it is looked whether all is there every second
	h.await("the agent on both devices", func(s api.AgentStatus) bool {
		return s.Ready && len(s.Problems) == 0 && s.Interfaces["eth9"] == string(attach.XDPNone)
	})
	counters := h.counters()
	if counters["egress_marked"] < 400 || counters["ingress_restored"] < 400 || counters["ingress_unmarked"] != 0 || counters["ingress_bad_cookie"] != 0 {
		t.Errorf("counters %v", counters)
	}
}
