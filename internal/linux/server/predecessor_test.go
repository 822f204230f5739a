package server_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// leftHops is an inner packet with few hops left, as it goes on.
func leftHops(packet []byte) []byte {
	packet = bytes.Clone(packet)
	if packet[0]>>4 == 6 {
		packet[7] = 8
		return packet
	}
	packet[8] = 8
	sumHeader(packet)
	return packet
}

// sumHeader writes the checksum of an IPv4 header.
func sumHeader(header []byte) {
	header[10], header[11] = 0, 0
	sum := uint32(0)
	for at := 0; at < 20; at += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[at:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum))
}

// Promise: A server hands what load balancers took for its own, and is not, to the predecessor: by layer 2, IP in IP or GUE.
func TestServersHandOverWhatIsOfThePredecessor(t *testing.T) {
	r := newXDPRig(t)
	r.listen(false)
	for _, vip := range r.vips {
		conn := r.dial(vip)
		defer conn.Close()
		progtest.Check(t, fetch(conn, 1))
		port := netip.MustParseAddrPort(conn.LocalAddr().String()).Port()
		for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
			for _, to := range []netip.Addr{stop4, stop6} {
				for i := range r.fleet.Services {
					r.fleet.Services[i].Predecessor = model.Predecessor{Addresses: []netip.Addr{to}, Forward: forward}
				}
				wanted, err := plan.NewAgent(r.fleet, func(*model.Server) bool { return true })
				progtest.Check(t, err)
				_, err = r.agent.Serve(wanted.Served)
				progtest.Check(t, err)
				out := tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4}
				if to.Is6() {
					out.from, out.to = netip.MustParseAddr("fd09::1"), own6
				}
				for _, kept := range []struct {
					port  uint16
					flags string
				}{{7, "S"}, {port, "A"}, {port, "R"}} {
					if action, _, verdict := r.run(r.wrap(out, inner(t, vip, servicePort, kept.port, kept.flags, 0))); action != xdpPass || verdict != "decapsulated" {
						t.Errorf("%s, %+v: action %d, %s", vip, kept, action, verdict)
					}
				}
				stops := out
				stops.gue = gueWithStops(1, to)
				for _, arriving := range []tunnel{out, stops} {
					for _, flags := range []string{"A", "R", "SA"} {
						packet := inner(t, vip, servicePort, 7, flags, 0)
						action, frame, verdict := r.run(r.wrap(arriving, packet))
						if action != xdpTX || verdict != "handed_to_predecessor" {
							t.Fatalf("%s by %s, %s: action %d, %s", vip, forward, flags, action, verdict)
						}
						want := append(r.header(0, vip), leftHops(packet)...)
						if forward != model.ForwardL2 {
							leaves := out
							if leaves.to = to; forward == model.ForwardGUE {
								leaves.gue = plainGUE()
							}
							want = r.wrap(leaves, leftHops(packet))
						}
						copy(want, stopMAC)
						copy(want[6:], r.device.HardwareAddr)
						ignoreEntropy(frame, want, forward, to)
						if !bytes.Equal(frame, want) {
							t.Fatalf("%s by %s:\n got %x\nwant %x", vip, forward, frame, want)
						}
					}
				}
				expired := inner(t, vip, servicePort, 7, "A", 0)
				expired[map[bool]int{true: 7, false: 8}[vip.Is6()]] = 1
				if action, _, verdict := r.run(r.wrap(out, expired)); action != xdpDrop || verdict != "dropped_stop_expired" {
					t.Errorf("without hops: action %d, %s", action, verdict)
				}
			}
		}
	}
	for i := range r.fleet.Services {
		r.fleet.Services[i].Predecessor = model.Predecessor{}
	}
	wanted, err := plan.NewAgent(r.fleet, func(*model.Server) bool { return true })
	progtest.Check(t, err)
	_, err = r.agent.Serve(wanted.Served)
	progtest.Check(t, err)
	frame := r.wrap(tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4}, inner(t, r.vips[0], servicePort, 7, "A", 0))
	if action, _, verdict := r.run(frame); action != xdpPass || verdict != "decapsulated" {
		t.Errorf("without a predecessor: action %d, %s", action, verdict)
	}
}

// ignoreEntropy makes of the wanted frame what spreads flows in the other.
func ignoreEntropy(frame, want []byte, forward model.Forward, to netip.Addr) {
	if forward == model.ForwardL2 || len(frame) != len(want) {
		return
	}
	udp := 14 + 20
	if to.Is6() {
		udp = 14 + 40
		copy(want[14+1:14+4], frame[14+1:14+4])
	} else {
		want[14+6] |= 0x40 // Don't Fragment
		sumHeader(want[14:])
	}
	if forward == model.ForwardGUE {
		copy(want[udp:udp+2], frame[udp:udp+2])
	}
}
