package lb

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// typicalFrames are one of each kind of frame that the load balancer handles.
func (w *world) typicalFrames() [][]byte {
	var frames [][]byte
	for _, name := range []string{"web", "web6"} {
		s := service(&w.want, name)
		f := flowTo(s.VIP, 80, 1)
		echo := w.cookieFor(name, f, 2, 1)
		frames = append(frames, f.frame(f.tcp(syn, synOptions(), nil)), f.carrying(echo), f.frame(f.tcp(ack, nil, make([]byte, 20))),
			f.frame(f.tcp(ack, append([]byte{1}, timestamps(1, echo)...), make([]byte, 5))),
			ethernet(4, f.carrying(echo)[14:]),
			fragmentOf(f.client.Addr(), s.VIP, 6, 3, 0, true, f.tcp(ack, timestamps(1, echo), make([]byte, 64))),
			fragmentOf(f.client.Addr(), s.VIP, 6, 3, 64, false, make([]byte, 64)),
			ethernet(0, ipPacket(f.client.Addr(), s.VIP, 17, f.udp(make([]byte, 30)))))
		kind, ping := byte(3), byte(8)
		if s.VIP.Is6() {
			kind, ping = 1, 128
		}
		frames = append(frames, pathError(f, kind, 1, 0, f.answer(echo), 128), icmpFrame(f.client.Addr(), s.VIP, ping, 0, 1, make([]byte, 10)))
	}
	return frames
}

// Promise: Truncated, contradictory and malformed packets are passed to the host, or dropped and counted, and
// never misread.
// Also held by TestHeadersThatContradictThemselvesAreDropped, TestTunnelsThatContradictThemselvesAreDropped and
// FuzzLB.
func TestFramesCutAnywhereAreNeverForwarded(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	for _, frame := range w.typicalFrames() {
		for length := 14; length < len(frame); length++ {
			got, _ := w.check(frame[:length])
			if got.action != xdpPass && got.action != xdpDrop {
				t.Fatalf("%d of %d bytes: action %d, %s", length, len(frame), got.action, verdictNames[got.verdict])
			}
		}
		w.check(frame)
	}
}

// Here the lengths in the headers are those of what is left, as if somebody had sent just that.
func TestPacketsShorterThanTheirHeadersAreNeverForwarded(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	for _, frame := range w.typicalFrames() {
		for length := linkLength(frame) + 1; length < len(frame); length++ {
			cut := slices.Clone(frame[:length])
			ip := cut[linkLength(cut):]
			if ip[0]>>4 == 4 && len(ip) >= 20 {
				binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
				setIPv4Checksum(ip)
			} else if ip[0]>>4 == 6 && len(ip) >= 40 {
				binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
			}
			w.check(cut)
		}
	}
}

func TestHeadersThatContradictThemselvesAreDropped(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	for name, change := range map[string]func(ip []byte){
		"version":                        func(ip []byte) { ip[0] ^= 0x20 },
		"length beyond the frame":        func(ip []byte) { ip[lengthAt(ip)]++ },
		"length shorter than the header": func(ip []byte) { ip[lengthAt(ip)], ip[lengthAt(ip)+1] = 0, 9 },
		"tcp offset below 5":             func(ip []byte) { ip[tcpAt(ip)+12] = 0x40 },
		"tcp offset beyond the packet":   func(ip []byte) { ip[tcpAt(ip)+12] = 0xf0 },
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			for _, f := range []flow{flowTo(vip4, 80, 1), flowTo(vip6, 80, 1)} {
				frame := f.frame(f.tcp(syn, nil, nil))
				change(frame[14:])
				w.checkVerdict(frame, lbVerdictDROPPED_MALFORMED)
			}
		})
	}
}

func lengthAt(ip []byte) int {
	if ip[0]>>4 == 6 {
		return 4
	}
	return 2
}

func tcpAt(ip []byte) int {
	if ip[0]>>4 == 6 {
		return 40
	}
	return 20
}

// Promise: IP options, extension headers and other protocols are passed to the host (`passed_unsupported`).
func TestIPOptionsAndExtensionHeadersPass(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	f := flowTo(vip4, 80, 1)
	packet := ipPacket(client4, vip4, 6, f.tcp(syn, synOptions(), nil))
	withOptions := slices.Concat(packet[:20], []byte{7, 3, 4, 0}, packet[20:])
	withOptions[0] = 0x46
	binary.BigEndian.PutUint16(withOptions[2:], uint16(len(withOptions)))
	w.checkVerdict(ethernet(0, withOptions), lbVerdictPASSED_UNSUPPORTED)

	f = flowTo(vip6, 80, 1)
	segment := f.tcp(syn, synOptions(), nil)
	for _, header := range []byte{0, 43, 60, 51, 135} {
		packet := ipPacket(client6, vip6, header, slices.Concat([]byte{6, 0, 1, 4, 0, 0, 0, 0}, segment))
		w.checkVerdict(ethernet(0, packet), lbVerdictPASSED_UNSUPPORTED)
	}
	for _, protocol := range []byte{1, 2, 47, 50, 132} { // ICMP for IPv4 in IPv6 among them
		w.check(ethernet(0, ipPacket(client6, vip6, protocol, segment)))
	}
	for _, protocol := range []byte{2, 4, 41, 47, 50, 58, 132} {
		w.check(ethernet(0, ipPacket(client4, vip4, protocol, segment)))
	}
}

func TestWhatIsNotIPPasses(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 80, 1)
	arp := append(ethernet(0, f.frame(f.tcp(syn, nil, nil))[14:])[:12], 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	w.checkVerdict(arp, lbVerdictPASSED_NOT_IP)
	w.checkVerdict(arp[:14], lbVerdictPASSED_NOT_IP)
	twice := slices.Concat(ethernet(0, f.carrying(1)[14:])[:12], []byte{0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0}, f.carrying(1)[14:])
	w.checkVerdict(twice, lbVerdictPASSED_NOT_IP)
	service := slices.Clone(ethernet(6, f.frame(f.tcp(syn, synOptions(), nil))[14:]))
	service[12], service[13] = 0x88, 0xa8
	w.checkVerdict(service, lbVerdictFORWARDED_NEW)
}

// Promise: Frames that a switch floods and tunnels for other hosts are left alone.
// Also held by TestTunnelsOfOthersAreLeftAlone.
func TestFramesToAnotherMACPass(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	if err := w.lb.know(lbInterface{Ifindex: testIfindex, Mac: nodeMAC}); err != nil {
		t.Fatal(err)
	}
	defer func() { mustSet(w.lb.objects.Interfaces.Set([64]lbInterface{})) }()
	f := flowTo(vip4, 80, 1)
	frame := f.frame(f.tcp(syn, synOptions(), nil))
	w.checkVerdict(frame, lbVerdictFORWARDED_NEW)
	for _, mac := range []net.HardwareAddr{{2, 0, 0, 0, 0, 9}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {3, 0, 0, 0, 0, 1}} {
		copy(frame, mac)
		if got := w.run(frame); got.verdict != lbVerdictPASSED_NOT_IP || got.action != xdpPass {
			t.Errorf("a frame to %s got %s", mac, verdictNames[got.verdict])
		}
	}
}

func TestEveryDropAndPassLeavesServersUncounted(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { withServers(false, 1)(s) }))
	w.update(func(want *plan.Want) { setVLAN(want, 0) })
	setMTU(w, 200)
	f := flowTo(vip4, 80, 1)
	w.checkVerdict(f.frame(f.tcp(ack, nil, make([]byte, 300))), lbVerdictANSWERED_TOO_BIG)
	if got := w.serverTraffic("web")[1]; got.Packets != 0 {
		t.Errorf("counted %d packets", got.Packets)
	}
}
