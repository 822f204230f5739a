package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Promise: An RST without timestamp from a closed socket reaches its server if the FIN passed this node, and goes
// by placement otherwise.
func TestRSTsWithoutTimestampFollowTheConnectionThatIsClosing(t *testing.T) {
	for _, closing := range []byte{fin | ack, rst, rst | ack} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, nil))
			for id := range uint16(3) {
				f := flowTo(vip, 80, int(id))
				reset := f.frame(f.tcp(rst, nil, nil))
				w.checkVerdict(reset, lbVerdictFORWARDED_RESET)
				w.checkVerdict(f.frame(f.tcp(closing, timestamps(1, w.cookieFor("web", f, id+1, 1)), nil)), lbVerdictFORWARDED_BY_COOKIE)
				got, want := w.checkVerdict(reset, lbVerdictFORWARDED_BY_CLOSING)
				if want.serverOf(got.frame) != id+1 {
					t.Fatal("the reset went astray")
				}
				other := flowTo(vip, 443, int(id))
				w.checkVerdict(other.frame(other.tcp(rst, nil, nil)), lbVerdictFORWARDED_RESET)
			}
		}
	}
}

func TestOnlyClosingPacketsWithACookieAreRemembered(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	for _, frame := range [][]byte{
		f.carrying(w.cookieFor("web", f, 1, 1)),
		f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor("web", f, 9, 1)), nil)), // nobody's id
		f.frame(f.tcp(fin|ack, nil, nil)),
	} {
		w.check(frame)
		w.checkVerdict(f.frame(f.tcp(rst, nil, nil)), lbVerdictFORWARDED_RESET)
	}
}

func TestTheClosingServerIsForgottenWhenItIsGone(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	w.check(f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor("web", f, 2, 1)), nil)))
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Servers = append(s.Servers[:1:1], s.Servers[2])
	})
	w.checkVerdict(f.frame(f.tcp(rst, nil, nil)), lbVerdictFORWARDED_RESET)
}

func TestSecondChancesAreTheOwnersBefore(t *testing.T) {
	for _, family := range families {
		t.Run(fmt.Sprintf("%s/ipv6=%t", family.vip, family.server), func(t *testing.T) {
			w := newWorld(t, serviceOf("web", family.vip, withServers(family.server, 1, 2, 3, 4, 5)))
			drain := func(id uint16) {
				w.update(func(want *plan.Want) { service(want, "web").Servers[id-1].State = model.StateDraining })
			}
			for _, id := range []uint16{2, 4, 1} {
				drain(id)
			}
			withStops := map[int]int{}
			for n := range 200 {
				f := flowTo(family.vip, 80, n)
				got, want := w.checkVerdict(f.frame(f.tcp(ack, nil, []byte("x"))), lbVerdictFORWARDED_NO_TIMESTAMP)
				withStops[len(want.stops)]++
				w.decode(got.frame)
				_, want = w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
				if len(want.stops) != 0 {
					t.Fatal("a new connection has no past")
				}
			}
			if withStops[0] == 0 || withStops[1] == 0 || withStops[2] == 0 {
				t.Errorf("stops by number: %v: the test misses a case", withStops)
			}
		})
	}
}

func TestStopsOfAnotherFamilyOrWithoutAServerAreLeftOut(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
		s.Servers = []model.Server{serverOf(1, false), serverOf(2, true), serverOf(3, false)}
	}))
	w.update(func(want *plan.Want) { service(want, "web").Servers[1].State = model.StateDraining })
	w.update(func(want *plan.Want) { service(want, "web").Servers[2].State = model.StateDraining })
	for n := range 100 {
		f := flowTo(vip4, 80, n)
		w.check(f.frame(f.tcp(ack, nil, nil)))
	}
}

func TestFallbackHashGivesNoSecondChance(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.Fallback = model.FallbackHash }))
	w.update(func(want *plan.Want) { service(want, "web").Servers[0].State = model.StateDraining })
	for n := range 50 {
		f := flowTo(vip4, 80, n)
		if _, want := w.check(f.frame(f.tcp(ack, nil, nil))); len(want.stops) != 0 {
			t.Fatal("stops")
		}
	}
}

// Promise: Connections with cookies stay on a draining server, which gets no new ones.
// Also held by TestConnectionsSurviveChurn.
func TestWhenAllServersDrainOldConnectionsLiveAndNewOnesAreRefused(t *testing.T) {
	for _, dispatch := range policies {
		t.Run(dispatch.String(), func(t *testing.T) {
			w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.Dispatch = dispatch }))
			w.update(func(want *plan.Want) {
				for i := range service(want, "web").Servers {
					service(want, "web").Servers[i].State = model.StateDraining
				}
			})
			for n := range 20 {
				f := flowTo(vip4, 80, n)
				w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictDROPPED_NO_SERVER)
				w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictDROPPED_NO_SERVER)
				w.checkVerdict(f.carrying(w.cookieFor("web", f, 2, 1)), lbVerdictFORWARDED_BY_COOKIE)
				w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
			}
		})
	}
}

func TestAServiceWithoutServersDropsAndCounts(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withServers(false)), udpService("dns", vip4, withServers(false)))
	f := flowTo(vip4, 80, 1)
	w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictDROPPED_NO_SERVER)
	w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictDROPPED_NO_SERVER)
	u := flowTo(vip4, 53, 1)
	w.checkVerdict(ethernet(0, ipPacket(u.client.Addr(), vip4, 17, u.udp(nil))), lbVerdictDROPPED_NO_SERVER)
}

// Promise: `affinity: hash` breaks a connection where Maglev moves its slot.
// Also held by TestConnectionsSurviveChurn.
func TestUDPFollowsTheHash(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, dispatch := range []model.Dispatch{model.DispatchHash, model.DispatchMaglev} {
			w := newWorld(t, udpService("dns", vip, func(s *model.Service) { s.Dispatch = dispatch }))
			served := map[uint16]int{}
			for n := range 60 {
				f := flowTo(vip, 53, n)
				got, want := w.checkVerdict(ethernet(0, ipPacket(f.client.Addr(), vip, 17, f.udp([]byte("question")))), lbVerdictFORWARDED_BY_HASH)
				served[want.serverOf(got.frame)]++
			}
			if len(served) != 3 {
				t.Errorf("%s: served by %v", dispatch, served)
			}
		}
	}
}

func TestDestinationsThatAreNoServicePass(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	for name, to := range map[string]netip.AddrPort{
		"another port":    netip.AddrPortFrom(vip4, 8080),
		"another address": netip.MustParseAddrPort("198.51.100.77:80"),
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			f := flow{flowTo(vip4, 80, 1).client, to}
			w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictPASSED_NO_SERVICE)
			w.checkVerdict(ethernet(9, ipPacket(client4, to.Addr(), 17, f.udp(nil))), lbVerdictPASSED_NO_SERVICE)
		})
	}
	w.TB = t
	f := flowTo(vip4, 80, 1)
	w.checkVerdict(ethernet(0, ipPacket(client4, vip4, 17, f.udp(nil))), lbVerdictPASSED_NO_SERVICE)
}

// anyFlags are all combinations, the likely ones more often.
func anyFlags(t *rapid.T) byte {
	return rapid.OneOf(rapid.SampledFrom([]byte{syn, ack, psh | ack, fin | ack, rst, rst | ack}), rapid.Byte()).Draw(t, "flags")
}

// Promise: Connections with cookies are kept when a server is added, or when weights, the policy or the table size
// change.
// Also held by TestConnectionsSurviveChurn.
func TestAnySequenceOfPacketsGoesTheWayOfTheReference(t *testing.T) {
	behind := func(s *model.Service) { withServers(false, 21, 22)(s); s.Forward = model.ForwardL2 }
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, withServers(true, 1, 2, 3)),
		serviceOf("l2", netip.MustParseAddr("198.51.100.11"), behind), udpService("dns", vip4, withServers(true, 1, 2)),
		serviceOf("hash", netip.MustParseAddr("198.51.100.12"), func(s *model.Service) { s.Affinity, s.Forward = model.AffinityHash, model.ForwardGUE }),
		tableOf("table", tableVIP, func(s *model.Service) { s.Table.IndexBits = 1 }), tableOf("table6", tableVIP6, nil),
		serviceOf("local", localVIP, localTable(model.DispatchMaglev)),
		serviceOf("several", severalVIP, severalOf(model.PortRange{First: 1000, Last: 2000})), serviceOf("rest", plus(vip6, 41), restOf),
		serviceOf("srv6", plus(vip6, 4), segmented), serviceOf("srv64", netip.MustParseAddr("198.51.100.22"), segmented))
	w.update(func(want *plan.Want) {
		want.Keys = testKeys(1, 2)
		for i := range want.Services {
			want.Services[i].Servers[0].State = model.StateDraining
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		w.TB = quiet{t, rt}
		w.age()
		for range rapid.IntRange(1, 5).Draw(rt, "packets") {
			frame := w.anyFrame(rt)
			w.check(frame[:rapid.OneOf(rapid.Just(len(frame)), rapid.IntRange(14, len(frame))).Draw(rt, "cut")])
		}
		w.checkTable("table")
		w.checkTable("table6")
	})
}

// anyFrame is a packet to one of the services, or nearly.
func (w *world) anyFrame(rt *rapid.T) []byte {
	s := rapid.SampledFrom(w.want.Services).Draw(rt, "service")
	port := rapid.SampledFrom(append([]uint16{9, 1000, 1500, 2000, 2001}, s.Ports...)).Draw(rt, "port")
	vip := rapid.SampledFrom(s.VIPs()).Draw(rt, "vip")
	f := flowTo(vip, port, rapid.IntRange(0, 2).Draw(rt, "client"))
	payload := make([]byte, rapid.SampledFrom([]int{0, 1, 300, 1560, 1600}).Draw(rt, "payload"))
	var segment []byte
	protocol := byte(6)
	switch rapid.IntRange(0, 9).Draw(rt, "transport") {
	case 0:
		protocol, segment = 17, f.udp(payload)
	case 1:
		protocol, segment = 47, payload
	default:
		echo := w.cookieFor(s.Name, f, rapid.Uint16Range(0, 4).Draw(rt, "id"), rapid.Uint32Range(1, 2).Draw(rt, "epoch"))
		segment = f.tcp(anyFlags(rt), anyOptions(rt, echo), payload)
	}
	if rapid.IntRange(0, 5).Draw(rt, "fragment") == 0 {
		return fragmentOf(f.client.Addr(), vip, protocol, rapid.Uint32Range(1, 3).Draw(rt, "fragment id"),
			rapid.SampledFrom([]int{0, 8, 1480}).Draw(rt, "offset"), rapid.Bool().Draw(rt, "more"), segment)
	}
	ip := ipPacket(f.client.Addr(), vip, protocol, segment)
	if !vip.Is6() && rapid.Bool().Draw(rt, "may be fragmented") {
		mayFragment(ip)
	}
	return ethernet(rapid.SampledFrom([]uint16{0, 5}).Draw(rt, "vlan"), ip)
}
