package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// tunnelMax is what a tunnel adds to a packet, at most: IPv6, UDP and GUE.
const tunnelMax = 40 + 8 + 4

// withSource is an untagged frame of IPv4 that seems to come from somewhere else.
func withSource(frame []byte, source netip.Addr) []byte {
	frame = slices.Clone(frame)
	if frame[12] != 8 || !source.Is4() {
		return frame
	}
	copy(frame[14+12:], source.AsSlice())
	frame[24], frame[25] = 0, 0
	binary.BigEndian.PutUint16(frame[24:], ^foldSum(frame[14:34]))
	return frame
}

// Promise: Nobody makes more of a packet by a predecessor, wherever it seems to come from: one goes on for each that comes, no longer than by its
// tunnel.
func TestAForgedPacketIsNotAmplifiedByAPredecessor(t *testing.T) {
	w := movingWorld(t)
	sources := []netip.Addr{client4, oldBalancer, node4, fastVIP(10), fastVIP(15), netip.MustParseAddr("10.1.1.1"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("255.255.255.255")}
	rapid.Check(t, func(rt *rapid.T) {
		w.TB = quiet{t, rt}
		frame := withSource(w.anyFrame(rt), rapid.SampledFrom(sources).Draw(rt, "source"))
		for range rapid.IntRange(1, 3).Draw(rt, "times") {
			got := w.run(frame) // which counts one verdict
			if got.action != xdpTX && got.action != xdpRedirect {
				continue
			}
			if more := len(got.frame) - len(frame); more > tunnelMax {
				rt.Fatalf("%s: %d bytes became %d", verdictNames[got.verdict], len(frame), len(got.frame))
			}
			if got.verdict == lbVerdictFORWARDED_TO_PREDECESSOR {
				w.hasFewHops(rt, got, frame)
			}
		}
	})
}

// hasFewHops holds that what goes on to a predecessor in a frame can do so eight times more, at most.
func (w *world) hasFewHops(rt *rapid.T, got result, frame []byte) {
	inner := got.frame[len(got.frame)-(len(frame)-linkLength(frame)):]
	hops := inner[8]
	if inner[0]>>4 == 6 {
		hops = inner[7]
	}
	if hops > predecessorHops {
		rt.Fatalf("%s: it leaves with %d hops", got.service, hops)
	}
}

// Promise: Where load balancers name each other as predecessors, also more than two, what nobody knows is dropped after eight of them.
func TestACircleOfPredecessorsEnds(t *testing.T) {
	w := movingWorld(t)
	for _, name := range []string{"plain", "local", "six-l2"} { // by layer 2, where the frame goes on as it is
		vip := service(&w.want, name).VIP
		to, echo := flowTo(vip, 443, 1), uint32(0)
		if name != "local" {
			echo = w.cookieFor(name, to, 0, 1) // nobody's
		}
		frame := to.frame(to.tcp(ack, timestamps(1, echo), []byte("x")))
		for round := 0; ; round++ {
			got, _ := w.check(frame)
			if got.verdict == lbVerdictDROPPED_PREDECESSOR_LOOP {
				if round != predecessorHops {
					t.Errorf("%s: dropped after %d rounds", vip, round)
				}
				break
			}
			if got.verdict != lbVerdictFORWARDED_TO_PREDECESSOR || round > predecessorHops {
				t.Fatalf("%s, round %d: %s", vip, round, verdictNames[got.verdict])
			}
			frame = got.frame // as the next one gets it: from this load balancer
		}
	}
}

// Promise: Connections that are known stay where they are while share flaps, also by packets that are repeated, late or in fragments.
func TestAShareThatFlapsMovesNoConnection(t *testing.T) {
	w := movingWorld(t, tableOf("table", fastVIP(17), following(model.ForwardIPIP, 500, nil, oldBalancer)))
	share := func(permille uint16) {
		w.update(func(want *plan.Want) {
			for i := range want.Services {
				want.Services[i].Predecessor.Share = model.ShareOf(permille)
			}
		})
	}
	// packets of a flow, and whether it is the predecessor's
	type known struct {
		frames [][]byte
		there  bool
	}
	var flows []known
	for n, begins := range []uint16{0, model.ShareAll} {
		share(begins)
		for _, name := range []string{"plain", "gue", "over6", "local", "table"} {
			s := service(&w.want, name)
			to := flowTo(s.VIP, 443, 100+n)
			opening := to.frame(to.tcp(syn, synOptions(), nil))
			got, _ := w.check(opening)
			echo, there := uint32(0), begins == 0
			if there != (got.verdict == lbVerdictFORWARDED_TO_PREDECESSOR) {
				t.Fatalf("%s, share %d: %s", name, begins, verdictNames[got.verdict])
			}
			if s.Affinity.Cookies() {
				id := uint16(1)
				if there {
					id = 0 // nobody's
				}
				if name == "table" && !there {
					continue // its servers write what the table gave them: TestTablesRememberTheSideOfAConnection
				}
				echo = w.cookieFor(name, to, id, 1)
			}
			data := to.tcp(ack, timestamps(1, echo), make([]byte, 64))
			late := to.tcp(ack|psh, timestamps(0, echo), []byte("late"))
			flow := known{[][]byte{to.frame(data), to.frame(data), to.frame(late),
				fragmentOf(to.client.Addr(), s.VIP, 6, uint32(n), 0, true, data[:64]), fragmentOf(to.client.Addr(), s.VIP, 6, uint32(n), 64, false, data[64:])}, there}
			if s.Affinity == model.AffinityLocal {
				flow.frames = append(flow.frames, opening) // sent again
			}
			flows = append(flows, flow)
		}
		udp := flowTo(fastVIP(15), 443, 100+n)
		datagram := ethernet(0, ipPacket(udp.client.Addr(), fastVIP(15), 17, udp.udp([]byte("x"))))
		w.check(datagram)
		flows = append(flows, known{[][]byte{datagram, datagram}, begins == 0})
	}
	for _, permille := range []uint16{0, 1000, 1, 999, 0, 500, 1000, 0, 1000} {
		share(permille)
		for i, flow := range flows {
			for k, frame := range flow.frames {
				got, _ := w.check(frame)
				if k == 4 && got.verdict == lbVerdictFORWARDED_FRAGMENT {
					continue // as the one before it
				}
				if (got.verdict == lbVerdictFORWARDED_TO_PREDECESSOR) != flow.there {
					t.Fatalf("share %d, flow %d, packet %d: %s", permille, i, k, verdictNames[got.verdict])
				}
			}
		}
	}
}
