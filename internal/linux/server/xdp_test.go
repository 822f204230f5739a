package server_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

const (
	xdpDrop, xdpPass, xdpTX, xdpRedirect = 1, 2, 3, 4

	guePort = 6080
)

var (
	balancerMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	stopMAC     = net.HardwareAddr{2, 0, 0, 0, 0, 9}

	own4, own6   = netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::2")
	stop4, stop6 = netip.MustParseAddr("10.9.0.3"), netip.MustParseAddr("fd09::3")
	far4         = netip.MustParseAddr("10.9.0.4") // no next hop is known
)

// xdpRig runs frames through server_xdp as if they had come in by the server's eth0.
type xdpRig struct {
	*rig
	device   *net.Interface
	programs []ebpf.ProgramID // BPF programs of this machine when counting began
}

func newXDPRig(t *testing.T) *xdpRig {
	r := &xdpRig{rig: newRig(t, rigOptions{})}
	r.prepare()
	return r
}

// prepare makes known whose addresses are whose.
func (r *xdpRig) prepare() {
	t := r.t
	t.Helper()
	progtest.Check(t, r.server.Do(func() (err error) { r.device, err = net.InterfaceByName("eth0"); return err }))
	progtest.Check(t, r.agent.SetOwnAddresses([]netip.Addr{own4, own6}))
	here := plan.Path{Ifindex: uint32(r.device.Index), DestinationMAC: [6]byte(stopMAC), SourceMAC: [6]byte(r.device.HardwareAddr)}
	tagged, elsewhere := here, here
	tagged.VLAN = 300
	elsewhere.Ifindex++
	progtest.Check(t, r.agent.SetStops(map[netip.Addr]plan.Path{
		stop4: here, stop6: here, netip.MustParseAddr("10.9.0.5"): tagged, netip.MustParseAddr("10.9.0.6"): elsewhere,
	}))
}

// run returns the action, the frame as it left and the one verdict that was counted. The kernels' own multicast passes the same
// programs at times: it is never tunnelled.
func (r *xdpRig) run(frame []byte) (action uint32, out []byte, verdict string) {
	r.t.Helper()
	before, err := r.agent.Counters()
	progtest.Check(r.t, err)
	program, _, _ := r.agent.Programs()
	out = make([]byte, len(frame)+64)
	options := ebpf.RunOptions{Data: frame, DataOut: out, Context: struct{ Data, DataEnd, Meta, Ifindex, Queue, Egress uint32 }{
		DataEnd: uint32(len(frame)), Ifindex: uint32(r.device.Index),
	}}
	progtest.Check(r.t, r.server.Do(func() (err error) { action, err = program.Run(&options); return err }))
	after, err := r.agent.Counters()
	progtest.Check(r.t, err)
	const background = "passed_not_tunnelled"
	for name := range after {
		tc := strings.HasPrefix(name, "ingress_") || strings.HasPrefix(name, "egress_")
		if !tc && name != background && after[name].Packets != before[name].Packets {
			verdict += name
		}
	}
	if verdict == "" && after[background].Packets != before[background].Packets {
		verdict = background
	}
	return action, options.DataOut, verdict
}

// A tunnel describes a frame from the load balancer.
type tunnel struct {
	vlan     uint16
	from, to netip.Addr
	tos      uint8
	gue      []byte // GUE header; nil: none
	srh      []byte // segment routing header; nil: none
	checksum bool   // of the outer UDP
	hops     uint8  // of 64 that it has made
}

func (r *xdpRig) wrap(t tunnel, inner []byte) []byte {
	protocol := layers.IPProtocolIPv4
	if inner[0]>>4 == 6 {
		protocol = layers.IPProtocolIPv6
	}
	payload := inner
	list := r.ethernet(t)
	if t.gue != nil {
		header := bytes.Clone(t.gue)
		header[1] = byte(protocol)
		payload = append(header, inner...)
		protocol = layers.IPProtocolUDP
	}
	if t.srh != nil {
		header := bytes.Clone(t.srh)
		if header[0] == 0 {
			header[0] = byte(protocol)
		}
		payload = append(header, inner...)
		protocol = layers.IPProtocolIPv6Routing
	}
	switch outer := ipLayer(t.from, t.to, protocol, t.tos).(type) {
	case *layers.IPv4:
		outer.TTL -= t.hops
		list = append(list, outer)
	case *layers.IPv6:
		outer.HopLimit -= t.hops
		list = append(list, outer)
	}
	if t.gue != nil {
		udp := &layers.UDP{SrcPort: 50000, DstPort: guePort}
		udp.SetNetworkLayerForChecksum(list[len(list)-1].(gopacket.NetworkLayer))
		list = append(list, udp)
	}
	frame := build(r.t, append(list, gopacket.Payload(payload))...)
	if t.gue != nil && !t.checksum {
		at := len(frame) - len(payload) - 2
		frame[at], frame[at+1] = 0, 0
	}
	return frame
}

func (r *xdpRig) ethernet(t tunnel) (list []gopacket.SerializableLayer) {
	ethertype := layers.EthernetTypeIPv4
	if t.to.Is6() {
		ethertype = layers.EthernetTypeIPv6
	}
	eth := &layers.Ethernet{SrcMAC: balancerMAC, DstMAC: r.device.HardwareAddr, EthernetType: ethertype}
	if t.vlan == 0 {
		return append(list, eth)
	}
	eth.EthernetType = layers.EthernetTypeDot1Q
	return append(list, eth, &layers.Dot1Q{VLANIdentifier: t.vlan, Type: ethertype})
}

// header is what a frame to an address begins with; gopacket would pad it.
func (r *xdpRig) header(vlan uint16, to netip.Addr) []byte {
	full := build(r.t, append(r.ethernet(tunnel{vlan: vlan, to: to}), gopacket.Payload(make([]byte, 64)))...)
	return full[:len(full)-64]
}

func ipLayer(from, to netip.Addr, protocol layers.IPProtocol, tos uint8) gopacket.SerializableLayer {
	if to.Is6() {
		return &layers.IPv6{Version: 6, HopLimit: 64, TrafficClass: tos, NextHeader: protocol, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
	}
	return &layers.IPv4{Version: 4, TTL: 64, TOS: tos, Protocol: protocol, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
}

// inner is a TCP segment from a client to a service.
func inner(t testing.TB, vip netip.Addr, port uint16, clientPort uint16, flags string, tos uint8) []byte {
	client := netip.MustParseAddr("10.9.0.1")
	if vip.Is6() {
		client = netip.MustParseAddr("fd09::1")
	}
	tcp := &layers.TCP{SrcPort: layers.TCPPort(clientPort), DstPort: layers.TCPPort(port), Seq: 1, Ack: 1, Window: 1000,
		SYN: flags == "S", ACK: flags == "A", RST: flags == "R"}
	ip := ipLayer(client, vip, layers.IPProtocolTCP, tos)
	tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
	return build(t, ip, tcp, gopacket.Payload("hello"))
}

func build(t testing.TB, list ...gopacket.SerializableLayer) []byte {
	buffer := gopacket.NewSerializeBuffer()
	progtest.Check(t, gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, list...))
	return bytes.Clone(buffer.Bytes())
}

// gueWithStops is the private data of a second chance.
func gueWithStops(next byte, stops ...netip.Addr) []byte {
	size := len(stops[0].AsSlice())
	header := make([]byte, 8+max(2, len(stops))*size)
	header[0] = byte(len(header)/4 - 1)
	copy(header[4:], []byte{1, next, byte(len(stops)), 0})
	for i, stop := range stops {
		copy(header[8+i*size:], stop.AsSlice())
	}
	return header
}

func plainGUE() []byte { return make([]byte, 4) }

func TestEveryTunnelIsTakenOff(t *testing.T) {
	r := newXDPRig(t)
	for _, outer := range []struct{ from, to netip.Addr }{{netip.MustParseAddr("10.9.0.1"), own4}, {netip.MustParseAddr("fd09::1"), own6}} {
		for _, vip := range r.vips {
			for _, vlan := range []uint16{0, 5} {
				for _, gue := range [][]byte{nil, plainGUE()} {
					packet := inner(t, vip, servicePort, 1234, "A", 0)
					action, out, verdict := r.run(r.wrap(tunnel{vlan: vlan, from: outer.from, to: outer.to, gue: gue, checksum: outer.to.Is6()}, packet))
					want := append(r.header(vlan, vip), packet...)
					if action != xdpPass || verdict != "decapsulated" || !bytes.Equal(out[:len(want)], want) {
						t.Errorf("%s in %s, vlan %d, gue %v: action %d, %s\n got %x\nwant %x", vip, outer.to, vlan, gue != nil, action, verdict, out, want)
					}
				}
			}
		}
	}
}

func TestTunnelsOfOthersAreLeftAlone(t *testing.T) {
	r := newXDPRig(t)
	from := netip.MustParseAddr("10.9.0.1")
	packet := inner(t, r.vips[0], servicePort, 1234, "A", 0)
	otherMAC := r.wrap(tunnel{from: from, to: own4}, packet)
	otherMAC[5]++
	fragment := r.wrap(tunnel{from: from, to: own4}, packet)
	fragment[20] |= 0x20
	badGUE := func(change func([]byte)) []byte {
		gue := gueWithStops(0, stop4)
		change(gue)
		return r.wrap(tunnel{from: from, to: own4, gue: gue}, packet)
	}
	for name, test := range map[string]struct {
		frame   []byte
		verdict string
	}{
		"another host's MAC":  {otherMAC, "passed_foreign_tunnel"},
		"another address":     {r.wrap(tunnel{from: from, to: far4}, packet), "passed_foreign_tunnel"},
		"a port not served":   {r.wrap(tunnel{from: from, to: own4}, inner(t, r.vips[0], 81, 1234, "A", 0)), "passed_foreign_tunnel"},
		"an address of none":  {r.wrap(tunnel{from: from, to: own4}, inner(t, far4, servicePort, 1234, "A", 0)), "passed_foreign_tunnel"},
		"an outer fragment":   {fragment, "passed_not_tunnelled"},
		"a GUE version":       {badGUE(func(g []byte) { g[0] |= 0x40 }), "passed_foreign_tunnel"},
		"a GUE control frame": {badGUE(func(g []byte) { g[0] |= 0x20 }), "passed_foreign_tunnel"},
		"GUE flags":           {badGUE(func(g []byte) { g[2] = 1 }), "passed_foreign_tunnel"},
		"other private data":  {badGUE(func(g []byte) { g[4] = 2 }), "passed_foreign_tunnel"},
		"too many stops":      {badGUE(func(g []byte) { g[6] = 3 }), "passed_foreign_tunnel"},
		"a wrong length":      {badGUE(func(g []byte) { g[0] = 2 }), "passed_foreign_tunnel"},
		"no tunnel":           {append(r.header(0, own4), packet...), "passed_not_tunnelled"},
	} {
		if action, out, verdict := r.run(test.frame); action != xdpPass || verdict != test.verdict || !bytes.Equal(out[:len(test.frame)], test.frame) {
			t.Errorf("%s: action %d, %s, changed %v", name, action, verdict, !bytes.Equal(out[:len(test.frame)], test.frame))
		}
	}
}

func TestTruncatedTunnelsNeverLeaveHalfDecapsulated(t *testing.T) {
	r := newXDPRig(t)
	for _, tunnel := range []tunnel{
		{from: netip.MustParseAddr("10.9.0.1"), to: own4}, {from: netip.MustParseAddr("fd09::1"), to: own6},
		{from: netip.MustParseAddr("fd09::1"), to: own6, gue: gueWithStops(0, stop6)},
	} {
		for _, vip := range r.vips {
			frame := r.wrap(tunnel, inner(t, vip, servicePort, 1234, "A", 0))
			for length := 14; length < len(frame); length++ {
				action, out, verdict := r.run(frame[:length])
				switch {
				case action == xdpDrop && verdict == "dropped_malformed_tunnel":
				case action == xdpPass && bytes.Equal(out[:length], frame[:length]) && (verdict == "passed_not_tunnelled" || verdict == "passed_foreign_tunnel"):
				default:
					t.Errorf("%d of %d bytes: action %d, %s", length, len(frame), action, verdict)
				}
			}
		}
	}
}

func TestCongestionMarksOfThePathReachTheReceiver(t *testing.T) {
	r := newXDPRig(t)
	const notECT, ect0, ce = 0, 2, 3
	for _, vip := range r.vips {
		for _, test := range []struct{ outer, inner, want uint8 }{{ect0, ect0, ect0}, {ce, ect0, ce}, {ce, ce, ce}, {notECT, notECT, notECT}} {
			action, out, _ := r.run(r.wrap(tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4, tos: test.outer}, inner(t, vip, servicePort, 1, "A", 0x28|test.inner)))
			want := inner(t, vip, servicePort, 1, "A", 0x28|test.want)
			if action != xdpPass || !bytes.Equal(out[14:14+len(want)], want) {
				t.Errorf("%s: outer %d, inner %d: %x, want %x", vip, test.outer, test.inner, out[14:], want)
			}
		}
		action, _, verdict := r.run(r.wrap(tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4, tos: ce}, inner(t, vip, servicePort, 1, "A", 0)))
		if action != xdpDrop || verdict != "dropped_congested" {
			t.Errorf("%s: congestion that cannot be told: action %d, %s", vip, action, verdict)
		}
	}
}

func TestSecondChanceKeepsWhatIsMineAndHandsOnTheRest(t *testing.T) {
	r := newXDPRig(t)
	r.listen(false)
	ports := map[netip.Addr]uint16{}
	for _, vip := range r.vips {
		conn := r.dial(vip)
		defer conn.Close()
		progtest.Check(t, fetch(conn, 1))
		ports[vip] = netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
	}
	self, unreachable := own4, far4
	tagged, elsewhere := netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("10.9.0.6")
	for _, test := range []struct {
		name    string
		flags   string
		mine    bool
		next    byte
		stops   []netip.Addr
		action  uint32
		verdict string
		hop     netip.Addr
		used    byte
	}{
		{name: "new", flags: "S", stops: []netip.Addr{stop4}, action: xdpPass, verdict: "decapsulated_mine"},
		{name: "established", flags: "A", mine: true, stops: []netip.Addr{stop4}, action: xdpPass, verdict: "decapsulated_mine"},
		{name: "unknown", flags: "A", stops: []netip.Addr{stop4}, action: xdpTX, verdict: "handed_on", hop: stop4, used: 1},
		{name: "reset", flags: "R", stops: []netip.Addr{stop4}, action: xdpTX, verdict: "handed_on", hop: stop4, used: 1},
		{name: "IPv6", flags: "A", stops: []netip.Addr{stop6}, action: xdpTX, verdict: "handed_on", hop: stop6, used: 1},
		{name: "second stop", flags: "A", next: 1, stops: []netip.Addr{far4, stop4}, action: xdpTX, verdict: "handed_on", hop: stop4, used: 2},
		{name: "past this host", flags: "A", stops: []netip.Addr{self, stop4}, action: xdpTX, verdict: "handed_on", hop: stop4, used: 2},
		{name: "other device", flags: "A", stops: []netip.Addr{elsewhere}, action: xdpRedirect, verdict: "handed_on", hop: elsewhere, used: 1},
		{name: "last", flags: "A", next: 1, stops: []netip.Addr{stop4}, action: xdpPass, verdict: "decapsulated_last"},
		{name: "only this host", flags: "A", stops: []netip.Addr{self, self}, action: xdpPass, verdict: "decapsulated_last"},
		{name: "unreachable", flags: "A", stops: []netip.Addr{unreachable}, action: xdpDrop, verdict: "dropped_stop_unreachable"},
		{name: "past an unreachable one", flags: "A", stops: []netip.Addr{unreachable, stop4}, action: xdpTX, verdict: "handed_on", hop: stop4, used: 2},
		{name: "all unreachable", flags: "A", stops: []netip.Addr{unreachable, unreachable}, action: xdpDrop, verdict: "dropped_stop_unreachable"},
		{name: "unreachable, then this host", flags: "A", stops: []netip.Addr{unreachable, self}, action: xdpDrop, verdict: "dropped_stop_unreachable"},
		{name: "another VLAN", flags: "A", stops: []netip.Addr{tagged}, action: xdpDrop, verdict: "dropped_stop_unreachable"},
	} {
		for _, vip := range r.vips {
			for _, checksum := range []bool{true, false} {
				out := tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4, checksum: checksum, gue: gueWithStops(test.next, test.stops...)}
				if test.stops[0].Is6() {
					out.from, out.to = netip.MustParseAddr("fd09::1"), own6
				}
				port := uint16(7)
				if test.mine {
					port = ports[vip]
				}
				packet := inner(t, vip, servicePort, port, test.flags, 0)
				action, frame, verdict := r.run(r.wrap(out, packet))
				if action != test.action || verdict != test.verdict {
					t.Errorf("%s to %s: action %d, %s; want %d, %s", test.name, vip, action, verdict, test.action, test.verdict)
				}
				var want []byte
				switch {
				case test.hop.IsValid():
					out.to, out.gue[5], out.hops = test.hop, test.used, 1
					want = r.wrap(out, packet)
					copy(want, stopMAC)
					copy(want[6:], r.device.HardwareAddr)
				case action == xdpPass:
					want = append(r.header(0, vip), packet...)
				}
				if len(want) > 0 && !bytes.Equal(frame[:len(want)], want) {
					t.Errorf("%s to %s:\n got %x\nwant %x", test.name, vip, frame[:len(want)], want)
				}
			}
		}
	}
}

// A scrubber is a server of the service like any other, and gets no connections of its own: packets of all kinds come to it with their
// server as the next stop. It listens on the service's address and answers SYNs with SYN cookies: still nothing of others stays here.
func TestScrubberHandsOnWhatIsNotItsOwn(t *testing.T) {
	r := newXDPRig(t)
	progtest.Check(t, r.server.Sysctl("net/ipv4/tcp_syncookies", "2"))
	r.listen(false)
	for _, vip := range r.vips { // SYN cookies were sent a moment ago
		progtest.Check(t, fetch(r.dial(vip), 1))
	}
	for _, vip := range r.vips {
		client, header := netip.MustParseAddr("10.9.0.1"), 20
		if vip.Is6() {
			client, header = netip.MustParseAddr("fd09::1"), 40
		}
		for _, flags := range []byte{0x10, 0x18, 0x11, 0x04, 0x14, 0x12, 0x00} { // ACK, data, FIN, RST, RST+ACK, SYN+ACK, none
			for _, options := range [][]byte{nil, bytes.Join([][]byte{nop, nop, timestampOption}, nil)} {
				packet := questionWith(t, netip.AddrPortFrom(client, 7), vip, options)[14:]
				packet[header+13] = flags
				wrapped := tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4, gue: gueWithStops(0, stop4)}
				action, frame, verdict := r.run(r.wrap(wrapped, packet))
				wrapped.to, wrapped.gue[5], wrapped.hops = stop4, 1, 1
				want := r.wrap(wrapped, packet)
				copy(want, stopMAC)
				copy(want[6:], r.device.HardwareAddr)
				if action != xdpTX || verdict != "handed_on" || !bytes.Equal(frame[:len(want)], want) {
					t.Errorf("%s, flags %#x: action %d, %s\n got %x\nwant %x", vip, flags, action, verdict, frame, want)
				}
			}
		}
	}
}

// An ICMP error goes where the connection of the quoted packet is, also of one that the server translates.
//
// Promise: An error about a connection that the server translates reaches the server that has the connection,
// whose kernel translates the quote in both directions.
// Also held by TestErrorsOfThePathReachWhereTheServerHasTakenTheConnection.
func TestErrorsFromThePathFollowTheirConnection(t *testing.T) {
	for name, one := range map[string]struct{ listens, translates bool }{
		"to a listener": {true, false}, "translated": {false, true}, "translated, with a listener": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newXDPRig(t)
			if one.listens {
				r.listen(false)
			}
			if one.translates {
				r.translate(prerouting("inet", "tcp dport 80 redirect to :17011"))
				r.listenAt(r.server, ":17011")
			}
			conn := r.dial(r.vips[0])
			defer conn.Close()
			progtest.Check(t, fetch(conn, 1))
			mine := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
			for port, want := range map[uint16]string{mine: "decapsulated_mine", 7: "handed_on"} {
				quoted := build(t, ipLayer(r.vips[0], netip.MustParseAddr("10.9.0.1"), layers.IPProtocolTCP, 0),
					gopacket.Payload(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{0, servicePort}, port), 99)))
				icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeDestinationUnreachable, layers.ICMPv4CodeFragmentationNeeded)}
				packet := build(t, ipLayer(netip.MustParseAddr("10.9.0.99"), r.vips[0], layers.IPProtocolICMPv4, 0), icmp, gopacket.Payload(quoted))
				_, _, verdict := r.run(r.wrap(tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4, gue: gueWithStops(0, stop4)}, packet))
				if verdict != want {
					t.Errorf("error about port %d: %s, want %s", port, verdict, want)
				}
			}
		})
	}
}
