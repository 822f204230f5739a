package lb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// throughService answers by way of the node, which writes its cookies of 8 bits.
func throughService(vip netip.Addr, forward model.Forward, port uint16) model.Service {
	return serviceOf("web", vip, func(s *model.Service) {
		s.Return, s.Forward, s.Ports = model.ReturnThrough, forward, []uint16{80}
		if forward == model.ForwardNAT {
			setPorts(s, port)
		}
	})
}

// throughCases are both forwards in both families, with and without a port of the servers' own.
func throughCases(t *testing.T, run func(t *testing.T, w *world, f flow)) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for name, s := range map[string]model.Service{
			"l2": throughService(vip, model.ForwardL2, 0), "nat": throughService(vip, model.ForwardNAT, 0),
			"nat to a port": throughService(vip, model.ForwardNAT, 8080),
		} {
			t.Run(fmt.Sprintf("%s/%s", vip, name), func(t *testing.T) {
				w := newWorld(t, s)
				w.restored = map[uint32]uint32{}
				run(t, w, flowTo(vip, 80, 1))
			})
		}
	}
}

// clockNow is the node's clock in ms, as the program reads it.
func clockNow() uint32 {
	var now unix.Timespec
	mustSet(unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now))
	return uint32(now.Nano() / 1_000_000)
}

// setClock makes a server's clock read value now.
func (w *world) setClock(id uint16, value uint32) {
	w.Helper()
	if err := w.lb.SetClock(w.tables.Places()["web"].Counters[id], value-clockNow()); err != nil {
		w.Fatal(err)
	}
}

// wire is what a client has seen when the server's clock read value, and so what it echoes.
func (w *world) wire(f flow, id uint16, value uint32) uint32 {
	return value<<8 | w.cookieFor("web", f, id, w.want.Keys.Current)&0xff
}

// answered is a server's segment to the client as it comes to the node.
func (w *world) answered(f flow, id uint16, options []byte) []byte {
	s := service(&w.want, "web")
	server := serverIn(s, id)
	from := f.service
	if s.Forward == model.ForwardNAT {
		from = netip.AddrPortFrom(server.Address, 80)
		if server.Port != 0 {
			from = netip.AddrPortFrom(server.Address, server.Port)
		}
	}
	frame := ethernet(0, ipPacket(from.Addr(), f.client.Addr(), 6, tcpSegment(from, f.client, psh|ack, options, []byte("200 OK"))))
	mac := w.want.Paths[server.Address].DestinationMAC
	copy(frame[6:], mac[:])
	return frame
}

func TestTheServersTimestampIsRestoredExactly(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		for _, now := range []uint32{1 << 20, 0xfffffff0, 10, 1<<24 + 5, 1 << 31} { // wraps of the clock and of its 24 bits
			w.setClock(2, now)
			for _, age := range []uint32{0, 1, 200, 1 << 16, 1<<24 - 1<<15} {
				echo := w.wire(f, 2, now-age)
				if echo == 0 {
					continue
				}
				w.restored[echo] = now - age
				w.checkVerdict(f.carrying(echo), lbVerdictFORWARDED_BY_COOKIE)
				odd := append([]byte{1}, timestamps(3, echo)...)
				w.checkVerdict(f.frame(f.tcp(ack, odd, []byte("x"))), lbVerdictFORWARDED_BY_COOKIE)
			}
		}
	})
}

// Promise: Packets of a server whose clock is not known yet are dropped (`dropped_no_clock`), and the sender
// repeats them.
// Promise: Forged answers of servers are routed and teach no clock; a contradicted clock is measured again, at
// most once a second.
// Also held by TestAnAnswerToAVIPIsNone.
func TestPacketsTeachNoClock(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		clock := func(known, doubted bool) {
			t.Helper()
			if k, d, err := w.lb.Clock(w.tables.Places()["web"].Counters[2]); err != nil || k != known || d != doubted {
				t.Fatalf("known %t, doubted %t: %v; want %t, %t", k, d, err, known, doubted)
			}
		}
		w.checkVerdict(f.carrying(w.wire(f, 2, 1000)), lbVerdictDROPPED_NO_CLOCK)
		w.run(w.answered(f, 2, timestamps(clockNow()+77, 1)))
		clock(false, false)
		w.checkVerdict(f.carrying(w.wire(f, 2, 1000)), lbVerdictDROPPED_NO_CLOCK)

		const hour = 3600 * 1000
		now := clockNow() + 77
		for _, lie := range []uint32{hour, 1 << 31, 5000, 0xffffffff - hour, 0xffffffff - 5000} {
			w.setClock(2, now)
			w.run(w.answered(f, 2, timestamps(now+lie, 1)))
			clock(true, true)
			for _, age := range []uint32{0, 1, 1 << 16, 1<<24 - 1<<15} { // this test may take a while
				echo := w.wire(f, 2, now-age)
				w.restored[echo] = now - age
				w.checkVerdict(f.carrying(echo), lbVerdictFORWARDED_BY_COOKIE)
			}
		}
		w.setClock(2, clockNow()+77)
		for _, late := range []uint32{0, 30, 1000} {
			w.run(w.answered(f, 2, timestamps(clockNow()+77-late, 1)))
			clock(true, false)
		}
	})
}

func TestAnAnswerToAVIPIsNone(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		f.client = netip.AddrPortFrom(f.service.Addr(), 9999)
		frame := w.answered(f, 2, timestamps(clockNow(), 1))
		if got := w.run(frame); got.verdict != lbVerdictPASSED_NO_SERVICE || !bytes.Equal(got.frame, frame) {
			t.Errorf("%s %x", verdictNames[got.verdict], got.frame)
		}
	})
}

func TestAnswersLeaveWithTheCookie(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		for _, keys := range []model.Keys{testKeys(1), testKeys(1, 2), testKeys(2)} {
			w.update(func(want *plan.Want) { want.Keys = keys })
			for id := uint16(1); id <= 3; id++ {
				for _, pad := range [][]byte{nil, {1}, {1, 1, 1}} {
					value := clockNow() + 1234
					got := w.run(w.answered(f, id, append(pad, timestamps(value, 55)...)))
					if got.verdict != lbVerdictRETURNED || got.service != "web" || got.action != xdpPass {
						t.Fatalf("%s of %q, action %d", verdictNames[got.verdict], got.service, got.action)
					}
					s := service(&w.want, "web")
					hash := cookie.FlowHash(cookie.ServiceKey(keys.Cookie[keys.Current], s.VIP, s.Protocol), f.client, 80)
					want := value<<8 | uint32(cookie.Encode(8, keys.Current, id, hash))
					expected := tcpSegment(f.service, f.client, psh|ack, append(pad, timestamps(want, 55)...), []byte("200 OK"))
					if !bytes.Equal(got.frame[14:], ipPacket(f.service.Addr(), f.client.Addr(), 6, expected)) {
						t.Fatalf("got  %x\nwant %x", got.frame[14:], ipPacket(f.service.Addr(), f.client.Addr(), 6, expected))
					}
					// Whatever left comes back to the same server, exactly restored.
					w.setClock(id, value)
					w.restored[want] = value
					w.checkVerdict(f.carrying(want), lbVerdictFORWARDED_BY_COOKIE)
				}
			}
		}
	})
}

func TestTSvalZeroNeverLeaves(t *testing.T) {
	w := newWorld(t, throughService(vip4, model.ForwardL2, 0))
	w.update(func(want *plan.Want) { want.Keys = testKeys(2) })
	for n := range 2000 {
		f := flowTo(vip4, 80, n)
		if w.wire(f, 1, 0) != 0 {
			continue
		}
		got := w.run(w.answered(f, 1, timestamps(0, 55)))
		if value := binary.BigEndian.Uint32(got.frame[14+20+24:]); value != 1<<8 {
			t.Fatalf("TSval %#x", value)
		}
		return
	}
	t.Fatal("no flow has cookie 0")
}

func TestAnswersWithoutTimestampAreOnlyTranslated(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		got := w.run(w.answered(f, 2, nil))
		want := ipPacket(f.service.Addr(), f.client.Addr(), 6, tcpSegment(f.service, f.client, psh|ack, nil, []byte("200 OK")))
		if got.verdict != lbVerdictRETURNED_UNMARKED || !bytes.Equal(got.frame[14:], want) {
			t.Fatalf("%s %x", verdictNames[got.verdict], got.frame)
		}
	})
}

// quotes are a client's packet as its server gets it, and as the client has sent it but for the checksum of TCP, which no error is told by.
func (w *world) quotes(f flow, id uint16) (atServer, byClient []byte) {
	s := service(&w.want, "web")
	to, server := f.service, serverIn(s, id)
	if s.Forward == model.ForwardNAT {
		to = netip.AddrPortFrom(server.Address, f.service.Port())
		if server.Port != 0 {
			to = netip.AddrPortFrom(server.Address, server.Port)
		}
	}
	segment := tcpSegment(f.client, to, ack, nil, nil)
	atServer = ipPacket(f.client.Addr(), to.Addr(), 6, slices.Clone(segment))
	binary.BigEndian.PutUint16(segment[2:], f.service.Port())
	return atServer, ipPacket(f.client.Addr(), f.service.Addr(), 6, segment)
}

// Errors about what a client has sent, by its server or by a router before it, are about the VIP when they leave.
//
// Promise: With `return: through`, ICMP errors from a server or from a router before it reach the client as errors
// about the VIP, with `forward: nat` too.
func TestErrorsAboutWhatAServerWasSentReachItsClient(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		s := service(&w.want, "web")
		from, router := f.service.Addr(), netip.MustParseAddr("10.99.0.1")
		kind, code := byte(3), byte(4)
		if from.Is6() {
			router, kind, code = netip.MustParseAddr("fd99::1"), 2, 0
		}
		hidden := from
		if s.Forward == model.ForwardNAT {
			hidden = serverIn(s, 2).Address
		}
		atServer, byClient := w.quotes(f, 2)
		mac := w.want.Paths[serverIn(s, 2).Address].DestinationMAC
		for _, sender := range [][2]netip.Addr{{hidden, from}, {router, router}} {
			frame := icmpFrame(sender[0], f.client.Addr(), kind, code, 1300, atServer)
			copy(frame[6:], mac[:])
			got, want := w.run(frame), icmpFrame(sender[1], f.client.Addr(), kind, code, 1300, byClient)
			if got.verdict != lbVerdictRETURNED_UNMARKED || !bytes.Equal(got.frame[14:], want[14:]) {
				t.Fatalf("%s\n%x\n%x", verdictNames[got.verdict], got.frame[14:], want[14:])
			}
		}
		forged := icmpFrame(hidden, netip.AddrFrom16(f.client.Addr().As16()).Unmap().Next(), kind, code, 1300, atServer) // not to whom it quotes
		copy(forged[6:], mac[:])
		w.checkVerdict(forged, lbVerdictPASSED_NO_SERVICE)
		echo := icmpFrame(hidden, f.client.Addr(), map[bool]byte{false: 8, true: 128}[from.Is6()], 0, 1, atServer)
		copy(echo[6:], mac[:])
		w.checkVerdict(echo, lbVerdictPASSED_NO_SERVICE)
	})
}

// Promise: With `tcp_timestamps=1`, load balancers may change, connections whose slot moves break, and SYNs lose
// the timestamp option.
// Also held by TestAnotherLoadBalancerTakesOverAnswers.
func TestServersThatCannotTakePartAreServedByTheTable(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		w.update(func(want *plan.Want) { service(want, "web").NoCookie = map[uint16]bool{1: true, 2: true, 3: true} })
		for _, options := range [][]byte{synOptions(), append([]byte{1}, timestamps(5, 0)...), timestamps(5, 0)[2:],
			append([]byte{1, 1, 1}, timestamps(5, 0)...)} {
			got, _ := w.checkVerdict(f.frame(f.tcp(syn, options, nil)), lbVerdictFORWARDED_STRIPPED)
			w.decode(got.frame)
		}
		w.checkVerdict(f.frame(f.tcp(ack, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
		if got := w.run(w.answered(f, 1, nil)); got.verdict != lbVerdictRETURNED_UNMARKED {
			t.Fatal(verdictNames[got.verdict])
		}
	})
}

func TestProbesOfTheNodeItselfPass(t *testing.T) {
	throughCases(t, func(t *testing.T, w *world, f flow) {
		probe := f
		probe.client = netip.AddrPortFrom(node4, 33333)
		if f.service.Addr().Is6() {
			probe.client = netip.AddrPortFrom(node6, 33333)
		}
		frame := w.answered(probe, 2, timestamps(1, 2))
		if got := w.run(frame); got.verdict != lbVerdictPASSED_PROBE || got.action != xdpPass || !bytes.Equal(got.frame, frame) {
			t.Fatalf("%s %x", verdictNames[got.verdict], got.frame)
		}
	})
}

func TestAnswersOfStrangersPass(t *testing.T) {
	w := newWorld(t, throughService(vip4, model.ForwardL2, 0))
	f := flowTo(vip4, 80, 1)
	frame := w.answered(f, 2, timestamps(1, 2))
	frame[11] ^= 0xff // another MAC
	w.check(frame)
	other := netip.AddrPortFrom(vip4, 81)
	frame = ethernet(0, ipPacket(vip4, client4, 6, tcpSegment(other, f.client, ack, nil, nil)))
	w.checkVerdict(frame, lbVerdictPASSED_NO_SERVICE)
}

func TestTCPAndUDPOnOnePortOfAServerAreTwoServices(t *testing.T) {
	other := netip.MustParseAddr("198.51.100.11")
	dns := func(name string, vip netip.Addr, protocol model.Protocol) model.Service {
		return serviceOf(name, vip, func(s *model.Service) {
			s.Protocol, s.Ports, s.Return = protocol, []uint16{53}, model.ReturnThrough
			withServers(false, 1)(s)
		})
	}
	w := newWorld(t, dns("tcp", vip4, model.ProtocolTCP), dns("udp", other, model.ProtocolUDP))
	from := netip.AddrPortFrom(serverOf(1, false).Address, 53)
	to := netip.AddrPortFrom(client4, 999)
	got := w.run(ethernet(0, ipPacket(from.Addr(), client4, 6, tcpSegment(from, to, ack, nil, nil))))
	if got.service != "tcp" || addressIn(got.frame[26:30]) != vip4 {
		t.Errorf("the TCP answer was taken for one of %q", got.service)
	}
	got = w.run(ethernet(0, ipPacket(from.Addr(), client4, 17, udpDatagram(from, to, nil))))
	if got.service != "udp" || addressIn(got.frame[26:30]) != other {
		t.Errorf("the UDP answer was taken for one of %q", got.service)
	}
}
