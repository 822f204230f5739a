package lb

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

var router4, router6 = netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("2001:db8:ff::1")

// pathError is an ICMP error of a router about something that the service sent to the client.
func pathError(f flow, kind, code byte, rest uint32, sent []byte, quoted int) []byte {
	packet := ipPacket(f.service.Addr(), f.client.Addr(), 6, sent)
	router := router4
	if f.service.Addr().Is6() {
		router = router6
	}
	return icmpFrame(router, f.service.Addr(), kind, code, rest, packet[:min(quoted, len(packet))])
}

// answer is a segment from the service, which carries its cookie in TSval.
func (f flow) answer(value uint32) []byte {
	return tcpSegment(f.service, f.client, psh|ack, timestamps(value, 99), make([]byte, 200))
}

func TestPingsToAVIPAreAnswered(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	for _, size := range []int{0, 1, 56, 1400} {
		body := make([]byte, size)
		for i := range body {
			body[i] = byte(i)
		}
		got, _ := w.checkVerdict(icmpFrame(client4, vip4, 8, 0, 0x12345678, body), lbVerdictANSWERED_ECHO)
		if kind := w.decode(got.frame).Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); kind.TypeCode.Type() != 0 {
			t.Fatalf("answered with %s", kind.TypeCode)
		}
		got, _ = w.checkVerdict(icmpFrame(client6, vip6, 128, 0, 0x12345678, body), lbVerdictANSWERED_ECHO)
		w.decode(got.frame)
	}
	tagged := icmpFrame(client4, vip4, 8, 0, 1, nil)
	w.checkVerdict(ethernet(5, tagged[14:]), lbVerdictANSWERED_ECHO)
}

// onlySessions is a TLS service beside another one of the VIP.
func onlySessions(s *model.Service) { s.Session, s.Ports = model.SessionTLS, []uint16{8443} }

func TestNobodyIsAnsweredWhoseAddressIsNotThatOfOneHost(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil), serviceOf("own", tableVIP, nil),
		serviceOf("tls", vip4, onlySessions), serviceOf("tls6", vip6, onlySessions))
	setMTU(w, 1400)
	for source, impossible := range map[string]bool{
		"224.0.0.1": true, "239.255.255.250": true, "255.255.255.255": true, "240.0.0.1": true, "127.0.0.1": true, "0.0.0.0": true, "0.1.2.3": true,
		vip4.String(): true, tableVIP.String(): true, "::": true, "::1": true, "ff02::1": true, "ff0e::1": true, "::ffff:192.0.2.1": true,
		vip6.String(): true, "223.255.255.254": false, "128.0.0.1": false, "126.1.1.1": false, "fe80::1": false, "64:ff9b::c000:201": false,
	} {
		from := netip.MustParseAddr(source)
		vip, kind := vip4, byte(8)
		if from.Is6() {
			vip, kind = vip6, 128
		}
		echo, tooBig, syn := lbVerdictANSWERED_ECHO, lbVerdictANSWERED_TOO_BIG, lbVerdictANSWERED_SYN
		if impossible {
			echo, tooBig, syn = lbVerdictDROPPED_IMPOSSIBLE_SOURCE, lbVerdictDROPPED_IMPOSSIBLE_SOURCE, lbVerdictDROPPED_IMPOSSIBLE_SOURCE
		}
		w.checkVerdict(icmpFrame(from, vip, kind, 0, 1, make([]byte, 56)), echo)
		f := flow{netip.AddrPortFrom(from, 999), netip.AddrPortFrom(vip, 80)}
		w.checkVerdict(f.frame(f.tcp(ack, nil, make([]byte, 1400))), tooBig)
		f.service = netip.AddrPortFrom(vip, 8443)
		if got := w.run(f.frame(f.synSegment(anySequence(), 0, synOptions()))); got.verdict != syn || impossible != (got.action == xdpDrop) {
			t.Errorf("a SYN from %s: %s, action %d", source, verdictNames[got.verdict], got.action)
		}
	}
}

// Promise: Each CPU answers at most 1000 echo requests and too-big packets a second, and never an impossible
// address.
// Also held by TestNobodyIsAnsweredWhoseAddressIsNotThatOfOneHost.
func TestAnswersOfTheNodeItselfAreLimited(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	w.update(func(want *plan.Want) { want.Rejects = true })
	setMTU(w, 1400)
	f, other := flowTo(vip4, 80, 1), flowTo(vip4, 9999, 1)
	for name, c := range map[string]struct {
		frame    []byte
		service  string
		answered lbVerdict
	}{
		"echo":     {icmpFrame(client4, vip4, 8, 0, 1, nil), "", lbVerdictANSWERED_ECHO},
		"too big":  {f.frame(f.tcp(ack, nil, make([]byte, 1400))), "web", lbVerdictANSWERED_TOO_BIG},
		"unserved": {other.frame(other.tcp(syn, nil, nil)), "", lbVerdictANSWERED_UNSERVED},
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			onOneCPU(t)
			before := w.verdicts()
			count := func(verdict lbVerdict) uint64 {
				key := verdictKey{c.service, verdict}
				return w.verdicts()[key] - before[key]
			}
			w.payAnswers()
			began := time.Now()
			for deadline := began.Add(20 * time.Second); count(lbVerdictDROPPED_ANSWER_LIMIT) == 0; {
				if time.Now().After(deadline) {
					t.Fatal("there is no limit")
				}
				for range 500 {
					w.runOnly(c.frame)
				}
			}
			answered, most := count(c.answered), 250+uint64(time.Since(began)/time.Millisecond)+20 // a tick of the coarse clock
			if answered < 250 || answered > most {
				t.Errorf("%d answers, want at least 250 and at most %d", answered, most)
			}
			w.checkVerdict(c.frame, c.answered) // which pays first
		})
	}
}

// onOneCPU keeps the test where counters and limits are those of one CPU.
func onOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	mustSet(unix.SchedGetaffinity(0, &before))
	for cpu := range len(before) * 64 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	mustSet(unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() {
		mustSet(unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
}

func TestOtherICMPPasses(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	w.checkVerdict(icmpFrame(client4, router4, 8, 0, 1, nil), lbVerdictPASSED_NO_SERVICE)
	w.checkVerdict(icmpFrame(client6, router6, 128, 0, 1, nil), lbVerdictPASSED_NO_SERVICE)
	for _, kind := range []byte{0, 4, 5, 13, 17} {
		w.checkVerdict(icmpFrame(client4, vip4, kind, 0, 1, make([]byte, 40)), lbVerdictPASSED_UNSUPPORTED)
	}
	for _, kind := range []byte{129, 133, 134, 135, 136, 137} { // neighbour discovery among them
		w.checkVerdict(icmpFrame(client6, vip6, kind, 0, 1, make([]byte, 40)), lbVerdictPASSED_UNSUPPORTED)
	}
	ping := ipPacket(client4, vip4, 1, make([]byte, 8))
	ping[20] = 8
	ping[6] = 0x20 // first fragment
	setIPv4Checksum(ping)
	w.checkVerdict(ethernet(0, ping), lbVerdictPASSED_UNSUPPORTED)
}

// Promise: When a server's packet is too big for the path to its client, the error reaches the server by the
// quoted cookie, or by placement.
// Also held by TestPathErrorsThatQuoteEightBytesFollowTheTable and TestTransfersCompleteAcrossSmallerMTU.
func TestPathErrorsReachTheServerByTheCookieTheyQuote(t *testing.T) {
	for _, family := range families {
		w := newWorld(t, serviceOf("web", family.vip, func(s *model.Service) { withServers(family.server, 1, 2, 3)(s) }))
		kinds := []byte{3, 11, 12}
		if family.vip.Is6() {
			kinds = []byte{1, 2, 3, 4}
		}
		for _, kind := range kinds {
			for id := range uint16(3) {
				f := flowTo(family.vip, 443, int(id))
				sent := f.answer(w.cookieFor("web", f, id+1, 1))
				got, want := w.checkVerdict(pathError(f, kind, 1, 1400, sent, 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
				if want.serverOf(got.frame) != id+1 {
					t.Fatal("the error went astray")
				}
			}
		}
	}
}

func TestPathErrorsThatQuoteEightBytesFollowTheTable(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, nil))
		kind, header := byte(3), 20
		if vip.Is6() {
			kind, header = 1, 40
		}
		for n := range 20 {
			f := flowTo(vip, 443, n)
			sent := f.answer(w.cookieFor("web", f, 2, 1))
			w.checkVerdict(pathError(f, kind, 0, 0, sent, header+8), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
			for quoted := range header + 8 {
				w.check(pathError(f, kind, 0, 0, sent, quoted))
			}
			for quoted := header + 8; quoted < header+40; quoted++ {
				w.check(pathError(f, kind, 0, 0, sent, quoted))
			}
		}
	}
}

func TestPathErrorsWithStopsTakeTheSecondChance(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	w.update(func(want *plan.Want) { service(want, "web").Servers[1].State = model.StateDraining })
	stops := 0
	for n := range 40 {
		f := flowTo(vip4, 80, n)
		_, want := w.checkVerdict(pathError(f, 3, 4, 1400, f.answer(0xffff), 28), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
		stops += len(want.stops)
	}
	if stops == 0 {
		t.Error("no error had a second stop")
	}
}

func TestPathErrorsAboutUDPFollowTheHash(t *testing.T) {
	w := newWorld(t, udpService("dns", vip4, nil))
	f := flowTo(vip4, 53, 1)
	packet := ipPacket(vip4, f.client.Addr(), 17, udpDatagram(f.service, f.client, make([]byte, 30)))
	w.checkVerdict(icmpFrame(router4, vip4, 3, 4, 1400, packet), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
}

func TestPathErrorsAboutNothingOfOursPass(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	unknown := flowTo(vip4, 9999, 1)
	w.checkVerdict(pathError(unknown, 3, 1, 0, unknown.answer(1), 128), lbVerdictPASSED_NO_SERVICE)
	f := flowTo(vip4, 80, 1)
	for name, spoil := range map[string]func(quote []byte){
		"options in the quote": func(q []byte) { q[0] = 0x46 },
		"another version":      func(q []byte) { q[0] = 0x65 },
		"a later fragment":     func(q []byte) { q[7] = 9 },
		"another protocol":     func(q []byte) { q[9] = 47 },
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			quote := ipPacket(vip4, f.client.Addr(), 6, f.answer(1))
			spoil(quote)
			w.checkVerdict(icmpFrame(router4, vip4, 3, 1, 0, quote), lbVerdictPASSED_UNSUPPORTED)
		})
	}
}

func TestNATTranslatesWhatAPathErrorQuotes(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, port := range []uint16{0, 8080} {
			w := newWorld(t, serviceOf("web", vip, func(s *model.Service) {
				s.Return, s.Ports = model.ReturnThrough, []uint16{80}
				setPorts(s, port)
			}))
			kind, code := byte(3), byte(4)
			if vip.Is6() {
				kind, code = 2, 0
			}
			f := flowTo(vip, 80, 1)
			got, want := w.checkVerdict(pathError(f, kind, code, 1400, f.answer(w.cookieFor("web", f, 3, 1)), 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
			server := serverIn(service(&w.want, "web"), 3)
			if want.serverOf(got.frame) != 3 {
				t.Fatal("the error went astray")
			}
			ip := got.frame[14:]
			at := 20
			if vip.Is6() {
				at = 40
			}
			if mtu := binary.BigEndian.Uint32(ip[at+4:]); mtu != 1400 {
				t.Errorf("MTU %d", mtu)
			}
			if quoted := parseQuote(&refPacket{source: f.client.Addr()}, ip[at+8:]); quoted.destination != server.Address || port != 0 && quoted.dport != port {
				t.Errorf("quotes %s port %d", quoted.destination, quoted.dport)
			}
		}
	}
}
