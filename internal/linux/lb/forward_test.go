package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

type family struct {
	vip    netip.Addr
	server bool // IPv6
}

// families are the combinations of inner and outer addresses.
var families = []family{{vip4, false}, {vip4, true}, {vip6, false}, {vip6, true}}

// familiesOf are those that a forward can be used with.
func familiesOf(forward model.Forward) (found []family) {
	for _, one := range families {
		if forward != model.ForwardSRv6 || one.server {
			found = append(found, one)
		}
	}
	return found
}

func withServers(ipv6 bool, ids ...uint16) func(*model.Service) {
	return func(s *model.Service) {
		s.Servers = nil
		for _, id := range ids {
			s.Servers = append(s.Servers, serverOf(id, ipv6))
		}
	}
}

func TestEveryForwardDeliversTheClientsPacketUnchanged(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6} {
		for _, family := range familiesOf(forward) {
			t.Run(fmt.Sprintf("%s/%s/ipv6=%t", forward, family.vip, family.server), func(t *testing.T) {
				w := newWorld(t, serviceOf("web", family.vip, func(s *model.Service) {
					withServers(family.server, 1, 2, 3)(s)
					s.Forward = forward
				}))
				f := flowTo(family.vip, 443, 1)
				for _, vlanIn := range []uint16{0, 7} {
					for _, vlanOut := range []uint16{0, 0x2009} {
						w.update(func(want *plan.Want) { setVLAN(want, vlanOut) })
						segment := f.tcp(psh|ack, timestamps(5, w.cookieFor("web", f, 2, 1)), []byte("hello"))
						packet := ipPacket(f.client.Addr(), f.service.Addr(), 6, segment)
						got, _ := w.checkVerdict(ethernet(vlanIn, packet), lbVerdictFORWARDED_BY_COOKIE)
						if string(innermost(got.frame)) != string(packet) {
							t.Fatal("the inner packet is not what the client sent")
						}
						w.decode(got.frame)
						w.checkVerdict(ethernet(vlanIn, ipPacket(f.client.Addr(), f.service.Addr(), 6, f.tcp(syn, synOptions(), nil))), lbVerdictFORWARDED_NEW)
					}
				}
			})
		}
	}
}

func setVLAN(want *plan.Want, vlan uint16) {
	for address, path := range want.Paths {
		path.VLAN = vlan
		want.Paths[address] = path
	}
}

func TestNATWritesTheServersAddressAndItsPort(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, port := range []uint16{0, 8080} {
			t.Run(fmt.Sprintf("%s/port=%d", vip, port), func(t *testing.T) {
				tcp := serviceOf("web", vip, func(s *model.Service) {
					s.Return, s.Ports, s.Affinity, s.Dispatch = model.ReturnThrough, []uint16{80}, model.AffinityHash, model.DispatchMaglev
					setPorts(s, port)
				})
				udp := udpService("dns", vip, func(s *model.Service) {
					s.Return = model.ReturnThrough
					withServers(vip.Is6(), 11, 12)(s)
					setPorts(s, port)
				})
				w := newWorld(t, tcp, udp)
				for n := range 20 {
					f := flowTo(vip, 80, n)
					got, _ := w.checkVerdict(f.frame(f.tcp(psh|ack, timestamps(1, 2), []byte("odd"))), lbVerdictFORWARDED_BY_HASH)
					w.decode(got.frame)
					f = flowTo(vip, 53, n)
					datagram := f.udp([]byte{byte(n), 1, 2})
					frame := ethernet(3, ipPacket(f.client.Addr(), vip, 17, datagram))
					w.checkVerdict(frame, lbVerdictFORWARDED_BY_HASH)
				}
			})
		}
	}
}

func setPorts(s *model.Service, port uint16) {
	for i := range s.Servers {
		s.Servers[i].Port = port
	}
}

func TestNATNeverTurnsAUDPChecksumIntoNone(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, udpService("dns", vip, func(s *model.Service) {
			s.Return = model.ReturnThrough
			withServers(vip.Is6(), 1)(s)
		}))
		f := flowTo(vip, 53, 1)
		// Choose the payload so that the checksum towards the server would come out as 0, which means "none".
		to := netip.AddrPortFrom(serverOf(1, vip.Is6()).Address, 53)
		zero := udpDatagram(f.client, to, []byte{0, 0})
		payload := []byte{zero[6], zero[7]}
		got, _ := w.checkVerdict(ethernet(0, ipPacket(f.client.Addr(), vip, 17, f.udp(payload))), lbVerdictFORWARDED_BY_HASH)
		header := len(got.frame) - 10
		if got.frame[header+6] != 0xff || got.frame[header+7] != 0xff {
			t.Errorf("%s: checksum %x, want ffff", vip, got.frame[header+6:header+8])
		}
	}
}

func TestUDPWithoutChecksumStaysWithoutThroughNAT(t *testing.T) {
	w := newWorld(t, udpService("dns", vip4, func(s *model.Service) { s.Return = model.ReturnThrough; setPorts(s, 5353) }))
	f := flowTo(vip4, 53, 1)
	datagram := f.udp([]byte("question"))
	datagram[6], datagram[7] = 0, 0
	w.checkVerdict(ethernet(0, ipPacket(f.client.Addr(), vip4, 17, datagram)), lbVerdictFORWARDED_BY_HASH)
}

func TestFramesLeaveByTheServersInterface(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withServers(false, 1)))
	w.update(func(want *plan.Want) {
		path := testPath(serverOf(1, false).Address)
		path.Ifindex = 77
		want.Paths[serverOf(1, false).Address] = path
	})
	f := flowTo(vip4, 80, 1)
	if got, _ := w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW); got.action != xdpRedirect {
		t.Fatalf("action %d", got.action)
	}
}

func TestAServerWithoutNextHopGetsNothing(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withServers(false, 1)))
	w.update(func(want *plan.Want) { want.Paths[serverOf(1, false).Address] = plan.Path{} })
	f := flowTo(vip4, 80, 1)
	w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictDROPPED_NO_SERVER)
	w.checkVerdict(f.carrying(w.cookieFor("web", f, 1, 1)), lbVerdictDROPPED_NO_NEXT_HOP)
	if traffic := w.serverTraffic("web")[1]; traffic.Packets != 0 {
		t.Fatalf("counted %d packets that it never got", traffic.Packets)
	}
	w.update(func(want *plan.Want) { want.Paths[serverOf(1, false).Address] = testPath(serverOf(1, false).Address) })
	w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
}

func TestPaddingOfShortFramesStaysOutsideThePacket(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
		w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.Forward = forward }))
		f := flowTo(vip4, 80, 1)
		w.checkVerdict(append(f.frame(f.tcp(syn, nil, nil)), make([]byte, 6)...), lbVerdictFORWARDED_NO_TIMESTAMP)
	}
}

func TestFlowsOfOneClientTakeDifferentPathsAndEachFlowOne(t *testing.T) {
	for _, family := range families[1:] {
		w := newWorld(t, serviceOf("web", family.vip, func(s *model.Service) {
			withServers(family.server, 1)(s)
			s.Forward = model.ForwardGUE
		}))
		seen := map[uint16]bool{}
		for n := range 64 {
			f := flowTo(family.vip, 80, n)
			first, _ := w.check(f.frame(f.tcp(syn, synOptions(), nil)))
			second, _ := w.check(f.frame(f.tcp(ack, nil, nil)))
			if entropyOf(first.frame) != entropyOf(second.frame) {
				t.Fatal("two packets of a flow take two paths")
			}
			seen[entropyOf(first.frame)] = true
		}
		if len(seen) < 32 {
			t.Errorf("64 flows took %d paths", len(seen))
		}
	}
}

func TestCountersOfServersCountPacketsBytesAndNewConnections(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withServers(false, 5)))
	f := flowTo(vip4, 80, 1)
	packets := [][]byte{f.frame(f.tcp(syn, synOptions(), nil)), f.carrying(w.cookieFor("web", f, 5, 1)), f.frame(f.tcp(ack, nil, nil))}
	bytes := 0
	for _, frame := range packets {
		w.check(frame)
		bytes += len(frame) - 14
	}
	want := ServerTraffic{Traffic: verdict.Traffic{Packets: 3, Bytes: uint64(bytes)}, Connections: 1}
	if got := w.serverTraffic("web")[5]; got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
}
