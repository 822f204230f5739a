package daemon_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/doctor"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

// handOnFile is agentFile whose other server, at an address of the test, is handed what is not this server's.
func handOnFile(other string) string {
	return strings.Replace(fmt.Sprintf(agentFile, 1), "10.9.0.3", other, 1)
}

// handedOn are the packets that the agent hands on to a server of its peer.
type handedOn struct {
	*agentHost
	stop            netip.Addr
	sends, receives *frames.Socket // on the peer's devices that tunnels come from, and that the server is behind
	sent            uint16
	seen            map[uint16]bool
}

func (h *agentHost) handedOn(device, stop string) *handedOn {
	h.t.Helper()
	o := &handedOn{agentHost: h, stop: netip.MustParseAddr(stop), sent: 1000, seen: map[uint16]bool{}}
	open := func(device string) (socket *frames.Socket) {
		require(h.t, h.peer.Do(func() (err error) { socket, err = frames.Open(device); return err }))
		h.t.Cleanup(func() { socket.Close() })
		return socket
	}
	o.sends, o.receives = open("eth0"), open(device)
	return o
}

// send has the agent hand on one more packet, and waits until it has.
func (o *handedOn) send() (id uint16) {
	o.t.Helper()
	before := o.counters()["handed_on"]
	o.sent++
	stray := frames.Segment{From: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Client: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.7"), o.sent),
		Service: netip.MustParseAddrPort("198.51.100.10:80")} // of no connection of the server's
	o.onDevice(func(device netlink.Link) error { stray.To = device.Attrs().HardwareAddr; return nil })
	frame, err := stray.WithStop(netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2"), o.stop)
	require(o.t, err)
	require(o.t, o.sends.Send(frame))
	o.eventually("a packet to be handed on", func() bool { return o.counters()["handed_on"] > before })
	return o.sent
}

// arrived tells whether the peer has received a packet for the server.
func (o *handedOn) arrived(id uint16) bool {
	o.t.Helper()
	for {
		frame, err := o.receives.Receive()
		require(o.t, err)
		if frame == nil {
			return o.seen[id]
		}
		const destinationAt = 14 + 16
		if segment, ok := frames.Tunnelled(frame); ok && [4]byte(frame[destinationAt:]) == o.stop.As4() {
			o.seen[segment.Client.Port()] = true
		}
	}
}

// expect sends packets until one arrives.
func (o *handedOn) expect(when string) {
	o.t.Helper()
	o.eventually(when+" packets that are handed on to arrive", func() bool { return o.arrived(o.send()) })
}

// Promise: An agent is not ready while a device that it hands packets on by drops them, and says why.
// Also held by TestAnAgentIsNotReadyWhileItsOnlyDeviceDropsWhatItHandsOn,
// TestAnAgentNamesWhyADeviceThatItHandsPacketsOnByTakesNoProgram and TestAgentsHandOnByTwoDevices.
func TestAnAgentIsNotReadyWhileADeviceThatItHandsPacketsOnByDropsThem(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.write(handOnFile("10.8.0.2"))
	h.start()
	h.await("readiness without a way to the other server", func(s api.AgentStatus) bool { return s.Ready })
	h.second()
	refused := func(s api.AgentStatus) bool { return !s.Ready && says(s.NotReady, "ballast pass --interface eth1") }
	h.await("the device that has joined", refused)
	o := h.handedOn("eth1", "10.8.0.2")
	lost := []uint16{o.send(), o.send(), o.send()}
	if found := h.doctorOnExits(doctor.RoleAgent); len(found) != 1 || found[0].Severity != doctor.Problem || !strings.Contains(found[0].Remedy, "ballast pass --interface eth1") {
		t.Errorf("doctor finds %+v", found)
	}
	h.onPeerDevice("eth1", attachPass)
	h.await("the peer's program", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	o.expect("with the peer's program")
	if found := h.doctorOnExits(doctor.RoleAgent); len(found) != 1 || found[0].Severity != doctor.OK {
		t.Errorf("doctor finds %+v with it", found)
	}
	if slices.ContainsFunc(lost, o.arrived) {
		t.Error("packets that were handed on to a device without program have arrived")
	}
	h.onPeerDevice("eth1", link.DetachPass)
	h.await("the refusal again", refused)
	require(t, h.onDeviceNamed("eth1", netlink.LinkDel))
	h.await("readiness without the device", func(s api.AgentStatus) bool { return s.Ready })
	h.second()
	h.await("the device that is back", refused)
}

// What leaves by the device that it came in by is sent by XDP_TX, and a veth peer without program drops that, too.
func TestAnAgentIsNotReadyWhileItsOnlyDeviceDropsWhatItHandsOn(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	require(t, h.peer.AddAddress("eth0", netip.MustParsePrefix("10.9.0.3/24")))
	h.write(handOnFile("10.9.0.3"))
	h.start()
	o := h.handedOn("eth0", "10.9.0.3")
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
	o.expect("with the peer's program")
	h.onPeer(link.DetachPass)
	h.await("the refusal", func(s api.AgentStatus) bool { return !s.Ready && says(s.NotReady, "ballast pass --interface eth0") })
	lost := o.send()
	h.onPeer(attachPass)
	h.await("the peer's program", func(s api.AgentStatus) bool { return s.Ready })
	o.expect("with the peer's program again")
	if o.arrived(lost) {
		t.Error("a packet that was handed on to a peer without program has arrived")
	}
}

// Socket buffers leave by every device.
func TestAnAgentInGenericModeHandsOnByAnyDevice(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.role = "generic-agent"
	h.second()
	h.write(handOnFile("10.8.0.2"))
	h.start()
	h.await("the agent", func(s api.AgentStatus) bool { return s.Ready && s.Interfaces["eth0"] == "generic" })
	h.handedOn("eth1", "10.8.0.2").expect("in generic mode")
	h.await("no problem", func(s api.AgentStatus) bool { return s.Ready && len(s.Problems) == 0 })
}

// No program can be attached where the driver knows no native XDP.
func TestAnAgentNamesWhyADeviceThatItHandsPacketsOnByTakesNoProgram(t *testing.T) {
	t.Parallel()
	noRaces(t)
	h := newAgentHost(t)
	h.second()
	require(t, h.space.AddBridge("br0", 1500, netip.MustParsePrefix("10.7.0.1/24")))
	require(t, h.space.Do(func() error {
		bridge, err := netlink.LinkByName("br0")
		if err != nil {
			return err
		}
		port, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		far := &netlink.Neigh{LinkIndex: bridge.Attrs().Index, IP: net.IP{10, 7, 0, 2}, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 7, 2}, State: unix.NUD_PERMANENT}
		return errors.Join(netlink.LinkSetMaster(port, bridge), netlink.NeighAdd(far))
	}))
	h.write(handOnFile("10.7.0.2"))
	h.start()
	h.await("the refusal", func(s api.AgentStatus) bool {
		return !s.Ready && says(s.NotReady, "servers are reached by br0, which drops redirected frames: attach the pass program: attach to br0 in native mode") && says(s.NotReady, "use --xdp-mode generic")
	})
	if found := h.doctorOnExits(doctor.RoleAgent); len(found) != 1 || found[0].Severity != doctor.Problem || found[0].Subject != "br0" {
		t.Errorf("doctor finds %+v", found)
	}
	// Load balancers name no further stops with this one, so nothing is handed on.
	sum := h.write(strings.Replace(handOnFile("10.7.0.2"), "ports: [80],", "ports: [80], fallback: hash,", 1))
	h.await("readiness once nothing is handed on", func(s api.AgentStatus) bool { return s.Ready && s.Config.SHA256 == sum && len(s.Problems) == 0 })
}
