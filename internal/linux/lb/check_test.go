package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// runCheck is what lb_check makes of a packet of a health check.
func (w *world) runCheck(service uint32, id uint16, direct bool, packet []byte) (action uint32, frame []byte) {
	w.Helper()
	options := ebpf.RunOptions{Data: checkFrame(service, id, direct, packet), DataOut: make([]byte, len(packet)+256)}
	action, err := w.lb.objects.program("lb_check").Run(&options)
	if err != nil {
		w.Fatal(err)
	}
	return action, options.DataOut
}

func TestAPacketOfACheckLeavesAsAClientsPacketToThatServer(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6} {
		for _, family := range familiesOf(forward) {
			w := newWorld(t, serviceOf("web", family.vip, func(s *model.Service) {
				withServers(family.server, 1, 2, 3)(s)
				s.Forward = forward
			}))
			number := w.tables.Places()["web"].Number
			for _, vlan := range []uint16{0, 0x2009} {
				w.update(func(want *plan.Want) { setVLAN(want, vlan) })
				f := flowTo(family.vip, 443, 1)
				packet := ipPacket(f.client.Addr(), f.service.Addr(), 6, f.tcp(psh|ack, timestamps(5, w.cookieFor("web", f, 2, 1)), []byte("hello")))
				client, _ := w.checkVerdict(ethernet(0, packet), lbVerdictFORWARDED_BY_COOKIE)
				before := w.verdicts()
				action, frame := w.runCheck(number, 2, false, packet)
				if action != xdpRedirect || !slices.Equal(frame, client.frame) {
					t.Errorf("%s to %s, server IPv6 %v, vlan %d: action %d\n%x, a client's packet:\n%x", forward, family.vip, family.server, vlan, action, frame, client.frame)
				}
				if after := w.verdicts(); fmt.Sprint(after) != fmt.Sprint(before) {
					t.Errorf("it was counted: %v, before %v", after, before)
				}
			}
		}
	}
}

func TestADirectPacketOfACheckOnlyGetsTheServersEthernetHeader(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardNAT, model.ForwardIPIP} {
		w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
			withServers(false, 1)(s)
			if s.Forward = forward; forward == model.ForwardNAT {
				s.Return, s.Affinity, s.Dispatch = model.ReturnThrough, model.AffinityHash, model.DispatchMaglev
			}
		}))
		to := serverOf(1, false).Address
		f := flow{client: netip.MustParseAddrPort("10.9.0.1:40000"), service: netip.AddrPortFrom(to, 443)}
		packet := ipPacket(f.client.Addr(), to, 6, f.tcp(syn, synOptions(), nil))
		action, frame := w.runCheck(w.tables.Places()["web"].Number, 1, true, packet)
		path := w.want.Paths[to]
		if action != xdpRedirect || len(frame) != headerLength+len(packet) || !slices.Equal(frame[headerLength:], packet) ||
			!slices.Equal(frame[:6], path.DestinationMAC[:]) || !slices.Equal(frame[6:macsLength], path.SourceMAC[:]) || frame[macsLength] != byte(layers.EthernetTypeIPv4>>8) {
			t.Errorf("%s: action %d, %x", forward, action, frame)
		}
	}
}

func TestAPacketOfACheckToNobodyIsDropped(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withServers(false, 1)))
	f, number := flowTo(vip4, 443, 1), w.tables.Places()["web"].Number
	packet := ipPacket(f.client.Addr(), vip4, 6, f.tcp(syn, synOptions(), nil))
	for _, to := range []struct {
		service uint32
		id      uint16
		packet  []byte
	}{
		{0, 1, packet}, {number + 1, 1, packet}, {1 << 31, 1, packet}, {number, 0, packet}, {number, 3, packet}, {number, 0xffff, packet},
		{number, 1, packet[:19]}, {number, 1, make([]byte, 46)},
	} {
		if action, _ := w.runCheck(to.service, to.id, false, to.packet); action != xdpDrop {
			t.Errorf("service %d, server %d, %d bytes: action %d", to.service, to.id, len(to.packet), action)
		}
	}
}
