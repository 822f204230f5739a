package lb

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func setMTU(w *world, mtu uint16) {
	w.update(func(want *plan.Want) {
		for address, path := range want.Paths {
			path.MTU = mtu
			want.Paths[address] = path
		}
	})
}

func TestPacketsThatDoNotFitAreAnsweredWithTheMTUThatWould(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6} {
		for _, family := range familiesOf(forward) {
			t.Run(fmt.Sprintf("%s/%s/ipv6=%t", forward, family.vip, family.server), func(t *testing.T) {
				w := newWorld(t, serviceOf("web", family.vip, func(s *model.Service) {
					withServers(family.server, 1)(s)
					s.Forward = forward
				}))
				setMTU(w, 1400)
				s := service(&w.want, "web")
				fits := 1400 - outerLength(s, &s.Servers[0], nil)
				f := flowTo(family.vip, 80, 1)
				for _, vlan := range []uint16{0, 6} {
					header := len(f.carrying(1)) - 14 - len("GET / HTTP/1.1\r\n")
					segment := f.tcp(ack, timestamps(1, w.cookieFor("web", f, 1, 1)), make([]byte, fits-header+1))
					got, _ := w.checkVerdict(ethernet(vlan, ipPacket(f.client.Addr(), family.vip, 6, segment)), lbVerdictANSWERED_TOO_BIG)
					w.checkMTU(got.frame, fits)
					segment = f.tcp(ack, timestamps(1, w.cookieFor("web", f, 1, 1)), make([]byte, fits-header))
					w.checkVerdict(ethernet(vlan, ipPacket(f.client.Addr(), family.vip, 6, segment)), lbVerdictFORWARDED_BY_COOKIE)
				}
			})
		}
	}
}

func TestASYNThatIsTooBigTakesOneTurn(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { withServers(false, 1, 2, 3)(s); s.Dispatch = model.DispatchRR }))
	onOneCPU(t)
	var servers []uint16
	for n := range 6 {
		f := flowTo(vip4, 80, n)
		if n == 3 {
			w.checkVerdict(f.frame(f.tcp(syn, synOptions(), make([]byte, 1600))), lbVerdictANSWERED_TOO_BIG)
			continue
		}
		got, want := w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
		servers = append(servers, want.serverOf(got.frame))
	}
	if !slices.Equal(servers[3:], servers[1:3]) {
		t.Errorf("%d: the fourth SYN, which was too big, did not take one turn", servers)
	}
}

func TestNoIPv6ClientIsToldLessThanItCanUse(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		w := newWorld(t, serviceOf("web", vip6, withServers(ipv6, 1)))
		f := flowTo(vip6, 80, 1)
		frame := func(length int) []byte {
			options := timestamps(1, w.cookieFor("web", f, 1, 1))
			return f.frame(f.tcp(ack, options, make([]byte, length-40-20-len(options))))
		}
		for _, mtu := range []uint16{100, 1280, 1299, 1320} {
			setMTU(w, mtu)
			w.checkVerdict(frame(1280), lbVerdictFORWARDED_BY_COOKIE)
			if outer := outerLength(service(&w.want, "web"), &service(&w.want, "web").Servers[0], nil); int(mtu) < 1281+outer {
				got, _ := w.checkVerdict(frame(1281), lbVerdictANSWERED_TOO_BIG)
				w.checkMTU(got.frame, 1280)
			}
		}
	}
}

func TestWhatTunnelsCarryAgainstForgedErrorsDiffersByServerAndKey(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		seen := map[string]bool{}
		for _, placement := range []byte{1, 2} {
			w := newWorld(t, serviceOf("web", vip4, withServers(ipv6, 1, 2, 3)))
			w.update(func(want *plan.Want) { want.Keys.Placement[5] = placement })
			f := flowTo(vip4, 80, 1)
			for id := uint16(1); id <= 3; id++ {
				got, _ := w.checkVerdict(f.carrying(w.cookieFor("web", f, id, 1)), lbVerdictFORWARDED_BY_COOKIE)
				ip := got.frame[14:]
				if ipv6 {
					seen[string(ip[1:4])] = true
				} else {
					seen[string(ip[4:6])] = true
				}
			}
		}
		if len(seen) != 6 {
			t.Errorf("6 servers under 2 keys have %d values", len(seen))
		}
	}
}

// checkMTU reads a "too big" by gopacket.
func (w *world) checkMTU(frame []byte, mtu int) {
	w.Helper()
	packet := w.decode(frame)
	if icmp, ok := packet.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok {
		if icmp.TypeCode != layers.CreateICMPv4TypeCode(3, 4) || int(icmp.Seq) != mtu {
			w.Fatalf("%s with MTU %d, want %d", icmp.TypeCode, icmp.Seq, mtu)
		}
		return
	}
	icmp := packet.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6)
	if icmp.TypeCode != layers.CreateICMPv6TypeCode(2, 0) || int(binary.BigEndian.Uint32(icmp.Payload)) != mtu {
		w.Fatalf("%s with MTU %x, want %d", icmp.TypeCode, icmp.Payload[:4], mtu)
	}
}

func TestNobodyIsToldAboutErrorsAndFragmentsThatDoNotFit(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, nil), udpService("dns", vip, nil))
		setMTU(w, 1400)
		f, u := flowTo(vip, 80, 1), flowTo(vip, 53, 1)
		big := tcpSegment(f.service, f.client, ack, timestamps(w.cookieFor("web", f, 1, 1), 1), make([]byte, 1500))
		kind := map[bool]byte{false: 3, true: 1}[vip.Is6()]
		w.checkVerdict(pathError(f, kind, 1, 0, big, 1448), lbVerdictDROPPED_TOO_BIG_QUIETLY)
		if vip.Is6() {
			datagram := u.udp(make([]byte, 2992))
			w.checkVerdict(fragmentOf(client6, vip, 17, 1, 0, true, datagram[:200]), lbVerdictFORWARDED_BY_HASH)
			w.checkVerdict(fragmentOf(client6, vip, 17, 1, 200, false, datagram[200:1600]), lbVerdictDROPPED_TOO_BIG_QUIETLY)
			w.checkVerdict(fragmentOf(client6, vip, 17, 2, 0, true, datagram[:1600]), lbVerdictANSWERED_TOO_BIG)
			continue
		}
		setMTU(w, 100)
		w.checkVerdict(f.frame(f.tcp(ack, nil, make([]byte, 70))), lbVerdictDROPPED_TOO_BIG_QUIETLY) // shorter than a quote
	}
}

func TestTooBigCutsPaddingOff(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, nil))
		setMTU(w, 1300)
		f := flowTo(vip, 80, 1)
		w.checkVerdict(append(f.frame(f.tcp(ack, nil, make([]byte, 1300))), 1, 2, 3), lbVerdictANSWERED_TOO_BIG)
	}
}

func TestFramesOfSeveralBuffersAreForwardedAndAnswered(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, nil))
		setMTU(w, 9100)
		f := flowTo(vip, 80, 1)
		frame := f.frame(f.tcp(ack, timestamps(1, w.cookieFor("web", f, 1, 1)), make([]byte, 8000)))
		w.checkVerdict(frame, lbVerdictFORWARDED_BY_COOKIE)
		setMTU(w, 1500)
		w.checkVerdict(frame, lbVerdictANSWERED_TOO_BIG)
	}
}

func TestSecondChancesCountTheirAddressesToTheMTU(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip6, withServers(true, 1, 2, 3)))
	w.update(func(want *plan.Want) { service(want, "web").Servers[1].State = model.StateDraining })
	setMTU(w, 1500)
	answered := map[lbVerdict]int{}
	for n := range 40 {
		f := flowTo(vip6, 80, n)
		got, _ := w.check(f.frame(f.tcp(ack, nil, make([]byte, 1500-40-60-10))))
		answered[got.verdict]++
	}
	if answered[lbVerdictANSWERED_TOO_BIG] == 0 || answered[lbVerdictFORWARDED_NO_TIMESTAMP] == 0 {
		t.Errorf("verdicts %v", answered)
	}
}
