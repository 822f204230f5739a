package lb

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestLaterFragmentsFollowTheFirst(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, nil), udpService("dns", vip, withServers(false, 1, 2, 3)))
		for n := range 10 {
			id := uint32(100 + n)
			f := flowTo(vip, 80, n)
			segment := f.tcp(ack, timestamps(1, w.cookieFor("web", f, uint16(1+n%3), 1)), make([]byte, 96))
			first := fragmentOf(f.client.Addr(), vip, 6, id, 0, true, segment[:64])
			later := fragmentOf(f.client.Addr(), vip, 6, id, 64, false, segment[64:])
			w.checkVerdict(later, lbVerdictDROPPED_UNKNOWN_FRAGMENT)
			w.checkVerdict(first, lbVerdictFORWARDED_BY_COOKIE)
			got, want := w.checkVerdict(later, lbVerdictFORWARDED_FRAGMENT)
			if want.serverOf(got.frame) != uint16(1+n%3) {
				t.Fatal("the fragment went astray")
			}
			w.checkVerdict(fragmentOf(f.client.Addr(), vip, 17, id, 64, false, segment[64:]), lbVerdictDROPPED_UNKNOWN_FRAGMENT)
			w.checkVerdict(fragmentOf(f.client.Addr(), vip, 6, id+1000, 64, false, segment[64:]), lbVerdictDROPPED_UNKNOWN_FRAGMENT)

			u := flowTo(vip, 53, n)
			datagram := u.udp(make([]byte, 88))
			w.checkVerdict(fragmentOf(u.client.Addr(), vip, 17, id, 0, true, datagram[:48]), lbVerdictFORWARDED_BY_HASH)
			w.checkVerdict(fragmentOf(u.client.Addr(), vip, 17, id, 48, true, datagram[48:72]), lbVerdictFORWARDED_FRAGMENT)
			w.checkVerdict(fragmentOf(u.client.Addr(), vip, 17, id, 72, false, datagram[72:]), lbVerdictFORWARDED_FRAGMENT)
		}
	}
}

func TestFragmentsOfASynGoWhereItsDispatchWent(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	for n := range 9 {
		f := flowTo(vip4, 80, n)
		segment := f.tcp(syn, synOptions(), make([]byte, 40))
		w.checkVerdict(fragmentOf(client4, vip4, 6, uint32(n), 0, true, segment[:48]), lbVerdictFORWARDED_NEW)
		w.checkVerdict(fragmentOf(client4, vip4, 6, uint32(n), 48, false, segment[48:]), lbVerdictFORWARDED_FRAGMENT)
	}
}

func TestNATTranslatesFragments(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, udpService("dns", vip, func(s *model.Service) {
			s.Return = model.ReturnThrough
			setPorts(s, 5353)
		}))
		u := flowTo(vip, 53, 1)
		datagram := u.udp(make([]byte, 88))
		w.checkVerdict(fragmentOf(u.client.Addr(), vip, 17, 7, 0, true, datagram[:48]), lbVerdictFORWARDED_BY_HASH)
		w.checkVerdict(fragmentOf(u.client.Addr(), vip, 17, 7, 48, false, datagram[48:]), lbVerdictFORWARDED_FRAGMENT)
	}
}

func TestFragmentsOfAnswersAreTranslatedToo(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, udpService("dns", vip, func(s *model.Service) {
			s.Return = model.ReturnThrough
			setPorts(s, 5353)
		}))
		u := flowTo(vip, 53, 1)
		answer := make([]byte, 88)
		server := netip.AddrPortFrom(serverOf(2, vip.Is6()).Address, 5353)
		from := udpDatagram(server, u.client, answer)
		later := fragmentOf(server.Addr(), u.client.Addr(), 17, 9, 48, false, from[48:])
		w.checkVerdict(later, lbVerdictPASSED_NO_SERVICE)
		first := w.run(fragmentOf(server.Addr(), u.client.Addr(), 17, 9, 0, true, from[:48]))
		second := w.run(later)
		want := udpDatagram(u.service, u.client, answer)
		for i, got := range []result{first, second} {
			expected := fragmentOf(vip, u.client.Addr(), 17, 9, 48*i, i == 0, [][]byte{want[:48], want[48:]}[i])
			if got.verdict != lbVerdictRETURNED_UNMARKED || !bytes.Equal(got.frame[14:], expected[14:]) {
				t.Errorf("fragment %d: %s\ngot  %x\nwant %x", i, verdictNames[got.verdict], got.frame[14:], expected[14:])
			}
		}
	}
}

func TestFragmentsOfRemovedServersAreDropped(t *testing.T) {
	w := newWorld(t, udpService("dns", vip4, func(s *model.Service) { withServers(false, 1)(s) }))
	u := flowTo(vip4, 53, 1)
	datagram := u.udp(make([]byte, 88))
	w.check(fragmentOf(client4, vip4, 17, 7, 0, true, datagram[:48]))
	w.update(func(want *plan.Want) { service(want, "dns").Servers[0] = serverOf(2, false) })
	w.checkVerdict(fragmentOf(client4, vip4, 17, 7, 48, false, datagram[48:]), lbVerdictDROPPED_NO_SERVER)
}

func TestFragmentsToNobodyPass(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	other := netip.MustParseAddr("198.51.100.99")
	w.checkVerdict(fragmentOf(client4, other, 17, 7, 48, false, make([]byte, 40)), lbVerdictPASSED_NO_SERVICE)
	w.checkVerdict(fragmentOf(client6, vip6, 6, 7, 48, false, make([]byte, 40)), lbVerdictPASSED_NO_SERVICE)
}
