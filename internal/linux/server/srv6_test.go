package server_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/plan"
)

// srh is a segment routing header (RFC 8754 2) with the segments in the order in which they are visited, on the way to one of them.
func srh(position int, segments ...netip.Addr) []byte {
	header := []byte{0, byte(2 * len(segments)), 4, byte(len(segments) - 1 - position), byte(len(segments) - 1), 0, 0, 0}
	for _, segment := range slices.Backward(segments) {
		header = append(header, segment.AsSlice()...)
	}
	return header
}

func routed(header []byte) tunnel { return tunnel{from: balancers[1], to: own6, srh: header} }

// handedOn is what must leave for the next segment.
func (r *xdpRig) handedOn(t tunnel, to netip.Addr, header, packet []byte) []byte {
	t.to, t.srh, t.hops = to, header, t.hops+1
	want := r.wrap(t, packet)
	copy(want, stopMAC)
	copy(want[6:], r.device.HardwareAddr)
	return want
}

func TestPacketsFollowTheirSegments(t *testing.T) {
	for _, test := range []struct {
		name, flags, verdict string
		load                 uint32
		choices              bool
		position             int
		segments             []netip.Addr
		hop                  netip.Addr
		after                int // the position that it goes on to
	}{
		{name: "one segment", flags: "A", segments: []netip.Addr{own6}, verdict: "decapsulated_last"},
		{name: "last", flags: "A", position: 1, segments: []netip.Addr{stop6, own6}, verdict: "decapsulated_last"},
		{name: "unknown", flags: "A", segments: []netip.Addr{own6, stop6}, verdict: "handed_on", hop: stop6, after: 1},
		{name: "reset", flags: "R", segments: []netip.Addr{own6, stop6}, verdict: "handed_on", hop: stop6, after: 1},
		{name: "SYN of another policy", flags: "S", segments: []netip.Addr{own6, stop6}, verdict: "decapsulated_mine"},
		{name: "in the middle", flags: "A", position: 1, segments: []netip.Addr{far6, own6, stop6}, verdict: "handed_on", hop: stop6, after: 2},
		{name: "past this host", flags: "A", segments: []netip.Addr{own6, own6, own6, stop6}, verdict: "handed_on", hop: stop6, after: 3},
		{name: "past one that cannot be reached", flags: "A", segments: []netip.Addr{own6, far6, stop6, far6}, verdict: "handed_on", hop: stop6, after: 2},
		{name: "nobody can be reached", flags: "A", segments: []netip.Addr{own6, far6}, verdict: "dropped_stop_unreachable"},
		{name: "only this host", flags: "A", segments: []netip.Addr{own6, own6}, verdict: "decapsulated_last"},
		{name: "six servers", flags: "A", segments: []netip.Addr{own6, far6, far6, far6, far6, stop6}, verdict: "handed_on", hop: stop6, after: 5},
		{name: "choices, room", choices: true, flags: "S", load: roomy, segments: []netip.Addr{own6, stop6}, verdict: "accepted_first"},
		{name: "choices, none", choices: true, flags: "S", load: full, segments: []netip.Addr{own6, stop6}, verdict: "passed_on_first", hop: stop6, after: 1},
		{name: "choices, second", choices: true, flags: "S", load: full, position: 1, segments: []netip.Addr{far6, own6, stop6}, verdict: "passed_on_second", hop: stop6, after: 2},
		{name: "choices, second with room", choices: true, flags: "S", load: roomy, position: 1, segments: []netip.Addr{far6, own6, stop6}, verdict: "accepted_second"},
		{name: "choices, last", choices: true, flags: "S", load: full, position: 2, segments: []netip.Addr{far6, stop6, own6}, verdict: "accepted_third"},
		{name: "choices, begins at the second", choices: true, flags: "S", load: full, position: 1, segments: []netip.Addr{own6, own6, stop6}, verdict: "passed_on_second", hop: stop6, after: 2},
		{name: "choices, not a SYN", choices: true, flags: "A", load: roomy, segments: []netip.Addr{own6, stop6}, verdict: "handed_on", hop: stop6, after: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newAcceptRig(t, func(row *plan.AgentRow) {
				if !test.choices {
					row.Flags &^= plan.AgentChoices
				}
			})
			r.listen(false)
			r.load(test.load)
			for _, vip := range r.vips {
				out, packet := routed(srh(test.position, test.segments...)), inner(t, vip, servicePort, 7, test.flags, 0)
				action, frame, verdict := r.run(r.wrap(out, packet))
				want, wantAction := append(r.header(0, vip), packet...), uint32(xdpPass)
				switch {
				case test.hop.IsValid():
					want, wantAction = r.handedOn(out, test.hop, srh(test.after, test.segments...), packet), xdpTX
				case test.verdict == "dropped_stop_unreachable":
					want, wantAction = nil, xdpDrop
				}
				if action != wantAction || verdict != test.verdict || !bytes.Equal(frame[:len(want)], want) {
					t.Errorf("%s: action %d, %s; want %d, %s\n got %x\nwant %x", vip, action, verdict, wantAction, test.verdict, frame[:len(want)], want)
				}
			}
		})
	}
}

// A routing header that load balancers do not write is left to the host, as it came; and what is written here contradicts the rest is dropped.
func TestRoutingHeadersOfOthersAreLeftAlone(t *testing.T) {
	r := newAcceptRig(t, nil)
	r.listen(false)
	r.load(full)
	packet := inner(t, r.vips[1], servicePort, 7, "A", 0)
	changed := func(change func(header []byte)) []byte {
		header := srh(0, own6, stop6, stop6)
		change(header)
		return r.wrap(routed(header), packet)
	}
	tlv := append(srh(0, own6, stop6), 4, 6, 0, 0, 0, 0, 0, 0) // PadN
	tlv[1]++
	seven := slices.Repeat([]netip.Addr{stop6}, 7)
	elsewhere := routed(srh(0, own6, stop6))
	elsewhere.to = far6
	const foreign, absent = "passed_foreign_tunnel", "passed_not_tunnelled"
	for name, test := range map[string]struct {
		frame   []byte
		verdict string
	}{
		"more segments left than there are": {changed(func(h []byte) { h[3] = 3 }), foreign},
		"the most that can be left":         {changed(func(h []byte) { h[3] = 255 }), foreign},
		"a greater last entry":              {changed(func(h []byte) { h[4] = 3 }), foreign},
		"the greatest last entry":           {changed(func(h []byte) { h[4] = 255 }), foreign},
		"a smaller last entry":              {changed(func(h []byte) { h[3], h[4] = 1, 1 }), foreign},
		"a shorter header":                  {changed(func(h []byte) { h[1] -= 2 }), foreign},
		"a longer header":                   {changed(func(h []byte) { h[1] += 2 }), foreign},
		"an odd header":                     {changed(func(h []byte) { h[1]++ }), foreign},
		"no length":                         {changed(func(h []byte) { h[1] = 0 }), foreign},
		"the greatest length":               {changed(func(h []byte) { h[1] = 255 }), foreign},
		"a TLV":                             {r.wrap(routed(tlv), packet), foreign},
		"more segments than servers":        {r.wrap(routed(srh(0, seven...)), packet), foreign},
		"TCP inside":                        {changed(func(h []byte) { h[0] = 6 }), foreign},
		"another routing header inside":     {changed(func(h []byte) { h[0] = 43 }), foreign},
		"a fragment inside":                 {changed(func(h []byte) { h[0] = 44 }), foreign},
		"type 0":                            {changed(func(h []byte) { h[2] = 0 }), absent},
		"mobile IPv6":                       {changed(func(h []byte) { h[2] = 2 }), absent},
		"a SID that is not ours":            {r.wrap(elsewhere, packet), foreign},
		"a port not served":                 {r.wrap(routed(srh(0, own6, stop6)), inner(t, r.vips[1], 81, 7, "A", 0)), foreign},
	} {
		if action, out, verdict := r.run(test.frame); action != xdpPass || verdict != test.verdict || !bytes.Equal(out[:len(test.frame)], test.frame) {
			t.Errorf("%s: action %d, %s, changed %v", name, action, verdict, !bytes.Equal(out[:len(test.frame)], test.frame))
		}
	}
	// RFC 8754 2: flags and tag say nothing to this node.
	if action, _, verdict := r.run(changed(func(h []byte) { h[5], h[6], h[7] = 0xff, 1, 2 })); action != xdpTX || verdict != "handed_on" {
		t.Errorf("flags and a tag: action %d, %s", action, verdict)
	}
	for _, more := range []int{-1, 1, 100, 7000, -40} {
		frame := r.wrap(routed(srh(0, own6, stop6)), packet)
		binary.BigEndian.PutUint16(frame[18:], uint16(int(binary.BigEndian.Uint16(frame[18:]))+more))
		if action, _, verdict := r.run(frame); action != xdpDrop || verdict != "dropped_malformed_tunnel" {
			t.Errorf("length %+d: action %d, %s", more, action, verdict)
		}
	}
}

// Nobody but load balancers has a server send packets on.
func TestStrangersSegmentsAreNotFollowed(t *testing.T) {
	for _, limit := range []server.TunnelLimit{server.TunnelsOfAnybody, server.ForeignNoted, server.ForeignDropped} {
		r := newAcceptRig(t, nil)
		r.listen(false)
		r.load(full)
		progtest.Check(t, r.agent.SetTunnelSources(balancers, limit))
		for flags, kept := range map[string]string{"S": "accepted_first", "A": "decapsulated_last"} {
			out := routed(srh(0, own6, stop6))
			out.from = netip.MustParseAddr("fd09::66")
			want, wantAction := kept, uint32(xdpPass)
			if limit == server.ForeignDropped {
				want, wantAction = "dropped_foreign_source", xdpDrop
			}
			if action, _, verdict := r.run(r.wrap(out, inner(t, r.vips[0], servicePort, 7, flags, 0))); action != wantAction || verdict != want {
				t.Errorf("limit %d, %s: action %d, %s; want %s", limit, flags, action, verdict, want)
			}
		}
	}
}

// Whatever is written in the header, and however often the packet comes back, it is handed on no more often than it has segments left; and never beyond
// its hop limit.
func TestAPacketEndsWithItsSegments(t *testing.T) {
	r := newAcceptRig(t, nil)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	addresses := []netip.Addr{own6, stop6, far6, r.vips[1]}
	verdicts := map[string]int{}
	for range 4000 {
		segments := make([]netip.Addr, 1+random.IntN(6))
		for i := range segments {
			segments[i] = addresses[random.IntN(len(addresses))]
		}
		header := srh(random.IntN(len(segments)), segments...)
		for range random.IntN(3) { // half of them in the eight bytes that say what follows
			header[random.IntN(8+random.IntN(2)*(len(header)-8))] = byte(random.IntN(1 << (1 + random.IntN(8))))
		}
		out := routed(header)
		out.hops = uint8(63 - random.IntN(2<<random.IntN(6))) // often the last
		out.vlan = uint16(random.IntN(2))
		frame := r.wrap(out, inner(t, r.vips[random.IntN(2)], servicePort, 7, []string{"S", "A"}[random.IntN(2)], 0))
		left, hops := int(header[3]), 0
		action, verdict := uint32(xdpTX), ""
		for action == xdpTX {
			if action, frame, verdict = r.run(frame); action != xdpTX {
				break
			}
			at := 14 + 4*int(out.vlan)
			if hops++; hops > left || int(out.hops)+hops >= 64 || !bytes.Equal(frame[at+24:at+40], frame[at+48+16*int(frame[at+43]):][:16]) {
				t.Fatalf("%x, %d hops, %d segments: %s: %x", header, hops, left, verdict, frame)
			}
			copy(frame, r.device.HardwareAddr)
			copy(frame[at+24:at+40], own6.AsSlice())
		}
		verdicts[verdict]++
	}
	for _, verdict := range []string{"decapsulated_last", "passed_foreign_tunnel", "passed_not_tunnelled", "dropped_stop_expired", "dropped_stop_unreachable"} {
		if verdicts[verdict] == 0 {
			t.Errorf("%v: no packet was %s", verdicts, verdict)
		}
	}
}
