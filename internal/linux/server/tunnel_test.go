package server_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
)

// Whose headers contradict one another is dropped, by whatever tunnel it comes and whether or not it would be handed on.
func TestTunnelsThatContradictThemselvesAreDropped(t *testing.T) {
	r := newXDPRig(t)
	for _, outer := range []struct{ from, to, stop netip.Addr }{
		{netip.MustParseAddr("10.9.0.1"), own4, stop4}, {netip.MustParseAddr("fd09::1"), own6, stop6},
	} {
		header, length := 20, 14+2
		if outer.to.Is6() {
			header, length = 40, 14+4
		}
		for _, vip := range r.vips {
			for _, gue := range [][]byte{nil, plainGUE(), gueWithStops(0, outer.stop)} {
				good := r.wrap(tunnel{from: outer.from, to: outer.to, gue: gue, checksum: true}, inner(t, vip, servicePort, 7, "A", 0))
				if _, _, verdict := r.run(good); verdict != "decapsulated" && verdict != "handed_on" {
					t.Fatalf("%s in %s: %s", vip, outer.to, verdict)
				}
				fields := map[string]int{"outer length": length}
				if gue != nil {
					fields["UDP length"] = 14 + header + 4
				}
				for field, at := range fields {
					for _, more := range []int{-1, 1, 100, 7000, -40} {
						frame := append([]byte{}, good...)
						binary.BigEndian.PutUint16(frame[at:], uint16(int(binary.BigEndian.Uint16(frame[at:]))+more))
						if action, _, verdict := r.run(frame); action != xdpDrop || verdict != "dropped_malformed_tunnel" {
							t.Errorf("%s in %s, GUE %x, %s %+d: action %d, %s", vip, outer.to, gue, field, more, action, verdict)
						}
					}
				}
			}
		}
	}
}

// Frames are padded to 60 bytes, which is no contradiction.
func TestPaddingOfFramesIsNoPartOfTheTunnel(t *testing.T) {
	r := newXDPRig(t)
	frame := append(r.wrap(tunnel{from: netip.MustParseAddr("10.9.0.1"), to: own4}, inner(t, r.vips[0], servicePort, 7, "A", 0)), make([]byte, 9)...)
	if _, _, verdict := r.run(frame); verdict != "decapsulated" {
		t.Error(verdict)
	}
}

// Promise: Tunnels that loop end when the outer TTL does (`dropped_stop_expired`).
func TestTunnelsThatGoInCirclesEnd(t *testing.T) {
	r := newXDPRig(t)
	for _, outer := range []struct{ from, to, stop netip.Addr }{
		{netip.MustParseAddr("10.9.0.1"), own4, stop4}, {netip.MustParseAddr("fd09::1"), own6, stop6},
	} {
		for hops, want := range map[uint8]string{62: "handed_on", 63: "dropped_stop_expired", 64: "dropped_stop_expired"} {
			frame := r.wrap(tunnel{from: outer.from, to: outer.to, gue: gueWithStops(0, outer.stop), hops: hops}, inner(t, r.vips[0], servicePort, 7, "A", 0))
			action, _, verdict := r.run(frame)
			if verdict != want || (action == xdpDrop) != (want != "handed_on") {
				t.Errorf("%s, after %d hops: action %d, %s; want %s", outer.to, hops, action, verdict, want)
			}
		}
	}
}

// Promise: An agent takes tunnels of known load balancers alone, and knows all that a controller knows.
// Also held by TestNoLoadBalancerThatAControllerKnowsIsKeptOut.
func TestOnlyKnownSourcesOpenTunnels(t *testing.T) {
	r := newXDPRig(t)
	known, stranger := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("203.0.113.250")
	known6, stranger6 := netip.MustParseAddr("fd09::1"), netip.MustParseAddr("2001:db8::bad")
	verdictOf := func(from netip.Addr, gue []byte, port uint16) string {
		to := own4
		if from.Is6() {
			to = own6
		}
		_, _, verdict := r.run(r.wrap(tunnel{from: from, to: to, gue: gue}, inner(t, r.vips[0], port, 7, "A", 0)))
		return verdict
	}
	if verdict := verdictOf(stranger, nil, servicePort); verdict != "decapsulated" {
		t.Errorf("nobody is named, and a tunnel is %s", verdict)
	}
	for range 2 { // the second time nothing changes
		progtest.Check(t, r.agent.SetTunnelSources([]netip.Addr{known, known6}, server.ForeignDropped))
		for from, want := range map[netip.Addr]string{
			known: "decapsulated", known6: "decapsulated", stranger: "dropped_foreign_source", stranger6: "dropped_foreign_source",
			netip.MustParseAddr("0.0.0.0"): "dropped_foreign_source", netip.IPv6Unspecified(): "dropped_foreign_source",
		} {
			if verdict := verdictOf(from, nil, servicePort); verdict != want {
				t.Errorf("from %s: %s, want %s", from, verdict, want)
			}
			if verdict := verdictOf(from, plainGUE(), servicePort); verdict != want {
				t.Errorf("by GUE from %s: %s, want %s", from, verdict, want)
			}
		}
		if verdict := verdictOf(stranger, nil, 81); verdict != "passed_foreign_tunnel" {
			t.Errorf("a tunnel of the host's own: %s", verdict)
		}
	}
	progtest.Check(t, r.agent.SetTunnelSources([]netip.Addr{stranger}, server.ForeignDropped))
	if verdict := verdictOf(known, nil, servicePort); verdict != "dropped_foreign_source" {
		t.Errorf("from one that is named no longer: %s", verdict)
	}
	progtest.Check(t, r.agent.SetTunnelSources(nil, server.TunnelsOfAnybody))
	if verdict := verdictOf(known, nil, servicePort); verdict != "decapsulated" {
		t.Errorf("nobody is named any more: %s", verdict)
	}
}

// Whoever lacks an address in the list learns it from the last tunnel, also before any is dropped.
func TestStrangersThatOpenTunnelsAreNamed(t *testing.T) {
	r := newXDPRig(t)
	known := []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd09::1")}
	strangers := []netip.Addr{netip.MustParseAddr("203.0.113.250"), netip.MustParseAddr("2001:db8::bad")}
	run := func(from netip.Addr) string {
		to := own4
		if from.Is6() {
			to = own6
		}
		_, _, verdict := r.run(r.wrap(tunnel{from: from, to: to}, inner(t, r.vips[0], servicePort, 7, "A", 0)))
		return verdict
	}
	before, err := r.agent.TunnelNotes()
	progtest.Check(t, err)
	if before.Last.IsValid() {
		t.Fatalf("before there was any: %+v", before)
	}
	for limit, want := range map[server.TunnelLimit]string{
		server.TunnelsOfAnybody: "decapsulated", server.ForeignNoted: "decapsulated", server.ForeignDropped: "dropped_foreign_source",
	} {
		progtest.Check(t, r.agent.SetTunnelSources(known, limit))
		for i, from := range strangers {
			before, err := r.agent.TunnelNotes()
			progtest.Check(t, err)
			if verdict := run(known[i]); verdict != "decapsulated" {
				t.Errorf("limit %d: from %s: %s", limit, known[i], verdict)
			}
			if verdict := run(from); verdict != want {
				t.Errorf("limit %d: from %s: %s, want %s", limit, from, verdict, want)
			}
			after, err := r.agent.TunnelNotes()
			progtest.Check(t, err)
			if noted := after.Foreign - before.Foreign; limit == server.TunnelsOfAnybody && noted != 0 || limit != server.TunnelsOfAnybody && (noted == 0 || after.Last != from) {
				t.Errorf("limit %d: after a tunnel from %s: %+v, before it %+v", limit, from, after, before)
			}
			if (after.Known > before.Known) != (limit == server.ForeignNoted) {
				t.Errorf("limit %d: after a tunnel from %s: %+v, before it %+v", limit, known[i], after, before)
			}
		}
	}
}

// More sources than have places of their own.
func TestManySourcesAreKnown(t *testing.T) {
	r := newXDPRig(t)
	var known []netip.Addr
	for i := range 3000 {
		known = append(known, netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)}))
	}
	progtest.Check(t, r.agent.SetTunnelSources(known, server.ForeignDropped))
	for i := 0; i < len(known); i += 7 {
		for from, want := range map[netip.Addr]string{known[i]: "decapsulated", netip.AddrFrom4([4]byte{10, 78, byte(i >> 8), byte(i)}): "dropped_foreign_source"} {
			if _, _, verdict := r.run(r.wrap(tunnel{from: from, to: own4}, inner(t, r.vips[0], servicePort, 7, "A", 0))); verdict != want {
				t.Fatalf("from %s: %s, want %s", from, verdict, want)
			}
		}
	}
}

// An IPv4 address lies in maps as the first bytes of an IPv6 one would.
func TestAnIPv4SourceIsNoIPv6Source(t *testing.T) {
	r := newXDPRig(t)
	known := netip.MustParseAddr("10.77.0.11")
	progtest.Check(t, r.agent.SetTunnelSources([]netip.Addr{known}, server.ForeignDropped))
	for from, want := range map[netip.Addr]string{
		known:                                    "decapsulated",
		netip.MustParseAddr("a4d:b::"):           "dropped_foreign_source",
		netip.MustParseAddr("::10.77.0.11"):      "dropped_foreign_source",
		netip.MustParseAddr("::ffff:10.77.0.11"): "passed_foreign_tunnel", // to the stack, which drops it
	} {
		to := own4
		if from.Is6() {
			to = own6
		}
		for name, gue := range map[string][]byte{"IP in IP": nil, "GUE": plainGUE()} {
			if _, _, verdict := r.run(r.wrap(tunnel{from: from, to: to, gue: gue}, inner(t, r.vips[0], servicePort, 7, "A", 0))); verdict != want {
				t.Errorf("%s from %s: %s, want %s", name, from, verdict, want)
			}
		}
	}
}
