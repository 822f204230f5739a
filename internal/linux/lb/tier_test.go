package lb

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// tiered makes room for nodes in a service's cookies.
func tiered(ipv6 bool) func(*model.Service) {
	return func(s *model.Service) {
		withServers(ipv6, 1, 2, 3)(s)
		s.Table.NodeBits, s.CookieBits = 3, 16
	}
}

// secondTier are nodes of ids 1, 2, ...
func secondTier(ipv6 bool, count uint16) (nodes []model.Node) {
	for id := range count {
		address := netip.AddrFrom4([4]byte{10, 2, 0, byte(id + 1)})
		if ipv6 {
			address = netip.AddrFrom16([16]byte{0xfd, 0, 0, 2, 15: byte(id + 1)})
		}
		nodes = append(nodes, model.Node{Name: fmt.Sprint("n", id+1), Tier: model.TierSecond, Address: address, ID: id + 1})
	}
	return nodes
}

// firstTier is a node before three of the second tier.
func firstTier(t testing.TB, vip netip.Addr, nodesIPv6 bool) *world {
	w := newWorld(t)
	w.update(func(want *plan.Want) {
		want.Services = []plan.Service{{Service: tableOf("web", vip, tiered(false))}, {Service: udpService("dns", vip, nil)}}
		want.Tier = plan.Tier{Tier: model.TierFirst, Second: secondTier(nodesIPv6, 3)}
	})
	return w
}

func TestTheFirstTierSendsToTheNodeThatTheCookieNames(t *testing.T) {
	for _, family := range families {
		w := firstTier(t, family.vip, family.server)
		layout := layoutOf(service(&w.want, "web"))
		for node := range uint16(3) {
			for _, index := range []uint16{0, 1, 63} {
				c := w.talkTo(flowTo(family.vip, 443, int(node)), 1)
				c.echo = w.cookieFor("web", c.flow, layout.Join(node+1, index, 5), 1) // of what the index and the id are, it knows nothing
				for _, flags := range []byte{ack, fin | ack, rst} {
					before := c.echo
					got, want := c.send(flags, lbVerdictFORWARDED_BY_COOKIE)
					if want.serverOf(got.frame) != node+1 || c.echo != before {
						t.Fatalf("went to node %d with echo %08x", want.serverOf(got.frame), c.echo)
					}
				}
				w.checkVerdict(c.frame(c.tcp(rst, nil, nil)), lbVerdictFORWARDED_BY_CLOSING)
				w.checkVerdict(pathError(c.flow, map[bool]byte{false: 3, true: 1}[family.vip.Is6()], 1, 1400, c.answer(c.echo), 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
			}
		}
	}
}

// Promise: Connections and their entries are kept when a second-tier node is added or drained.
// Also held by TestConnectionsSurviveTheLossOfATableInTheSecondTier.
func TestTheFirstTierPlacesWhatHasNoNode(t *testing.T) {
	w := firstTier(t, vip4, false)
	served := map[uint16]int{}
	for n := range 60 {
		c := w.talkTo(flowTo(vip4, 443, n), 2)
		got, want := w.checkVerdict(c.frame(c.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
		node := want.serverOf(got.frame)
		served[node]++
		got, want = c.send(ack, lbVerdictFORWARDED_NO_NODE) // the server's cookie names no node yet
		if want.serverOf(got.frame) != node || len(want.stops) > 0 {
			t.Fatal("to another node than the SYN")
		}
		got, want = w.checkVerdict(c.frame(c.tcp(ack, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
		if want.serverOf(got.frame) != node {
			t.Fatal("to another node without a timestamp")
		}
		c.echo = 0
		c.send(ack, lbVerdictFORWARDED_NO_ECHO)
		c.echo = w.cookieFor("web", c.flow, 7<<12|1, 1) // a node that nobody is
		c.send(ack, lbVerdictFORWARDED_BAD_COOKIE)
	}
	if len(served) != 3 {
		t.Errorf("nodes served %v", served)
	}
}

// Promise: When a second-tier node dies, or a check is wrong, the other nodes keep its connections; its entries
// are lost, and packets until `fall` checks have failed.
// Also held by TestAVerdictComesWithinFallOrRiseIntervals and
// TestConnectionsSurviveTheLossOfATableInTheSecondTier.
func TestConnectionsOfADeadNodeGoToTheOthers(t *testing.T) {
	gone := map[string]func(*plan.Tier){
		"down":     func(tier *plan.Tier) { tier.Down = map[uint16]bool{2: true} },
		"off":      func(tier *plan.Tier) { tier.Second[1].State = model.StateOff },
		"removed":  func(tier *plan.Tier) { tier.Second = slices.Delete(tier.Second, 1, 2) },
		"draining": func(tier *plan.Tier) { tier.Second[1].State = model.StateDraining },
	}
	for name, change := range gone {
		t.Run(name, func(t *testing.T) {
			w := firstTier(t, vip4, false)
			w.update(func(want *plan.Want) { change(&want.Tier) })
			layout := layoutOf(service(&w.want, "web"))
			for n := range 40 {
				c := w.talkTo(flowTo(vip4, 443, n), 1)
				got, want := w.checkVerdict(c.frame(c.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW)
				if want.serverOf(got.frame) == 2 {
					t.Fatal("a new connection")
				}
				c.echo = w.cookieFor("web", c.flow, layout.Join(2, 9, 1), 1)
				if name == "draining" {
					c.send(ack, lbVerdictFORWARDED_BY_COOKIE)
				} else if got, want := c.send(ack, lbVerdictFORWARDED_BAD_COOKIE); want.serverOf(got.frame) == 2 {
					t.Fatal("went to the dead node")
				}
				c.echo = w.cookieFor("web", c.flow, layout.Join(3, 9, 1), 1)
				c.send(ack, lbVerdictFORWARDED_BY_COOKIE) // those of others stay
			}
		})
	}
}

func TestTheFirstTierTellsClientsHowLargeTheirPacketsMayBe(t *testing.T) {
	for _, family := range families {
		w := firstTier(t, family.vip, family.server)
		answered := 0
		for size := 1400; size < 1560; size += 4 {
			c := w.talkTo(flowTo(family.vip, 443, size), 1)
			c.echo = w.cookieFor("web", c.flow, layoutOf(service(&w.want, "web")).Join(2, 9, 1), 1)
			got, _ := w.check(c.frame(c.tcp(ack, timestamps(5, c.echo), make([]byte, size))))
			if got.verdict == lbVerdictANSWERED_TOO_BIG {
				answered++
			}
		}
		if answered == 0 || answered == 40 {
			t.Errorf("%d of 40 sizes are too big: the test misses a case", answered)
		}
	}
}

// What the second tier has to say to a client goes there by its own route: the first tier would not know what to do with it.
func TestAnswersOfTheSecondTierAreRoutedToTheClient(t *testing.T) {
	space := routerSpace(t)
	for i, vip := range []netip.Addr{vip4, vip6} {
		w := secondNode(t, vip, nodeAddresses[i])
		c := w.talkTo(flowTo(vip, 443, 1), 1)
		packet := ipPacket(c.client.Addr(), vip, 6, c.tcp(ack, timestamps(5, c.echo), make([]byte, 1600)))
		for _, way := range []struct {
			frame  []byte
			action uint32
		}{{ethernet(0, packet), xdpTX}, {ethernet(0, tunnelled(nodeAddresses[i], false, 0, packet)), xdpRedirect}} {
			var got result
			mustSet(space.Do(func() error {
				got = w.run(way.frame)
				return nil
			}))
			if got.action != way.action || got.verdict != lbVerdictANSWERED_TOO_BIG {
				t.Fatalf("%s: action %d, %s", vip, got.action, verdictNames[got.verdict])
			}
			if err := verifyFrame(got.frame); err != nil {
				t.Error(err)
			}
			if mac := net.HardwareAddr(got.frame[:6]); way.action == xdpRedirect && mac.String() != clientMAC.String() {
				t.Errorf("%s: to %s", vip, mac)
			}
		}
	}
}

func TestTheFirstTierServesOtherServicesItself(t *testing.T) {
	w := firstTier(t, vip4, false)
	f := flowTo(vip4, 53, 1)
	got, _ := w.checkVerdict(ethernet(0, ipPacket(f.client.Addr(), vip4, 17, f.udp([]byte("question")))), lbVerdictFORWARDED_BY_HASH)
	if to := netip.AddrFrom4([4]byte(got.frame[30:34])); to.As4()[1] != 1 {
		t.Errorf("went to %s, not to a server", to)
	}
}

// secondNode is node 2 of the second tier.
func secondNode(t testing.TB, vip netip.Addr, address netip.Addr) *world {
	w := newWorld(t)
	w.update(func(want *plan.Want) {
		want.Services = []plan.Service{{Service: tableOf("web", vip, tiered(false))}}
		want.Tier = plan.Tier{Tier: model.TierSecond, ID: 2}
	})
	w.acceptTunnels(address)
	return w
}

// tunnelled puts a packet into IP in IP, or GUE with as many words of private data, from a node of the first tier.
func tunnelled(to netip.Addr, gue bool, tos byte, inner []byte, private ...byte) []byte {
	protocol := layers.IPProtocolIPv4
	if inner[0]>>4 == 6 {
		protocol = layers.IPProtocolIPv6
	}
	if gue {
		header := slices.Concat([]byte{0xc0, 0, 0x17, 0xc0, 0, 0, 0, 0, byte(len(private) / 4), byte(protocol), 0, 0}, private)
		binary.BigEndian.PutUint16(header[4:], uint16(len(header)+len(inner)))
		inner, protocol = append(header, inner...), layers.IPProtocolUDP
	}
	if to.Is6() {
		return serialize(&layers.IPv6{Version: 6, TrafficClass: tos, HopLimit: 64, NextHeader: protocol, SrcIP: nodeAddresses[1].Prev().AsSlice(), DstIP: to.AsSlice()}, gopacket.Payload(inner))
	}
	return serialize(&layers.IPv4{Version: 4, TOS: tos, TTL: 64, Protocol: protocol, SrcIP: nodeAddresses[0].Prev().AsSlice(), DstIP: to.AsSlice()}, gopacket.Payload(inner))
}

var nodeAddresses = []netip.Addr{netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd00:0:0:2::2")}

func TestTheSecondTierSteersWhatTheFirstHasSent(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, address := range nodeAddresses {
			w := secondNode(t, vip, address)
			stops := make([]byte, stopsLength(1, address.Is6()))
			stops[0], stops[2] = 1, 1
			for i, private := range [][]byte{nil, nil, stops} {
				for _, vlan := range []uint16{0, 7} {
					c := w.talkTo(flowTo(vip, 443, 3*i+int(vlan)), 3)
					send := func(flags byte, verdict lbVerdict) {
						inner := ipPacket(c.client.Addr(), vip, 6, c.tcp(flags, timestamps(5, c.echo), []byte("data")))
						got, want := w.checkVerdict(ethernet(vlan, tunnelled(address, i > 0, 0, inner, private...)), verdict)
						if want.serverOf(got.frame) != 3 {
							t.Fatal("went astray")
						}
						w.decode(got.frame)
						c.echo = echoIn(got.frame)
					}
					send(ack, lbVerdictFORWARDED_ADDED)
					if node, index, id := c.plainIn(c.echo); node != 2 || index == 0 || id != 3 {
						t.Fatalf("the cookie says node %d, index %d, server %d", node, index, id)
					}
					send(ack, lbVerdictFORWARDED_BY_TABLE)
					send(fin|ack, lbVerdictFORWARDED_BY_TABLE)
				}
			}
			c := w.talkTo(flowTo(vip, 443, 99), 1)
			w.checkVerdict(ethernet(0, tunnelled(address, false, 0, ipPacket(c.client.Addr(), vip, 6, c.tcp(syn, synOptions(), nil)))), lbVerdictFORWARDED_NEW)
			c.send(ack, lbVerdictFORWARDED_ADDED) // and what comes to it straight
			w.checkTable("web")
		}
	}
}

func TestAConnectionOfADeadNodeGetsAnEntryOfAnother(t *testing.T) {
	w := secondNode(t, vip4, nodeAddresses[0])
	layout := layoutOf(service(&w.want, "web"))
	for index := range uint16(5) { // also one that stands for an entry of this node's
		c := w.talkTo(flowTo(vip4, 443, int(index)), 1)
		c.echo = w.cookieFor("web", c.flow, layout.Join(3, index, 1), 1)
		got, want := c.send(ack, lbVerdictFORWARDED_ADDED)
		if node, given, _ := c.plainIn(c.echo); want.serverOf(got.frame) != 1 || node != 2 || given == 0 {
			t.Fatalf("server %d, told node %d and index %d", want.serverOf(got.frame), node, given)
		}
		c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		_, given, _ := c.plainIn(c.echo)
		c.echo = w.cookieFor("web", c.flow, layout.Join(1, given, 1), 1) // its own index, as another node's
		c.send(ack, lbVerdictFORWARDED_BY_TABLE)
		if node, _, _ := c.plainIn(c.echo); node != 2 {
			t.Fatalf("told node %d", node)
		}
	}
	w.checkTable("web")
}

func TestTheSecondTierTellsOnOfCongestion(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, address := range nodeAddresses {
			w := secondNode(t, vip, address)
			for outer := range byte(4) {
				for inner := range byte(4) {
					c := w.talkTo(flowTo(vip, 443, int(4*outer+inner)), 1)
					packet := ipPacket(c.client.Addr(), vip, 6, c.tcp(ack, timestamps(5, c.echo), nil))
					setECN(packet, inner)
					got, _ := w.check(ethernet(0, tunnelled(address, false, 0x20|outer, packet)))
					if (outer == 3 && inner == 0) != (got.verdict == lbVerdictDROPPED_CONGESTED) {
						t.Errorf("ECN %d in %d: %s", inner, outer, verdictNames[got.verdict])
					}
				}
			}
		}
	}
}

func setECN(ip []byte, ecn byte) {
	if ip[0]>>4 == 6 {
		ip[1] = ip[1]&^0x30 | ecn<<4
		return
	}
	ip[1] = ip[1]&^3 | ecn
	setIPv4Checksum(ip)
}

// Promise: A second-tier node steers foreign tunnels to a VIP as direct packets, and passes others.
// Also held by TestOnlyTheSecondTierTakesTunnels.
func TestTunnelsThatAreNotForTheNodePass(t *testing.T) {
	w := secondNode(t, vip4, nodeAddresses[0])
	c := w.talkTo(flowTo(vip4, 443, 1), 1)
	packet := ipPacket(c.client.Addr(), vip4, 6, c.tcp(ack, timestamps(5, c.echo), nil))
	foreign := ipPacket(c.client.Addr(), netip.MustParseAddr("198.51.100.77"), 6, c.tcp(ack, nil, nil))
	for name, frame := range map[string][]byte{
		"to another address":          ethernet(0, tunnelled(netip.MustParseAddr("10.2.0.3"), false, 0, packet)),
		"to another address, IPv6":    ethernet(0, tunnelled(nodeAddresses[1], true, 0, packet)),
		"not to a VIP":                ethernet(0, tunnelled(nodeAddresses[0], false, 0, foreign)),
		"not to a VIP, in GUE":        ethernet(5, tunnelled(nodeAddresses[0], true, 3, foreign)),
		"UDP to another port":         ethernet(0, ipPacket(node4, nodeAddresses[0], 17, udpDatagram(netip.AddrPortFrom(node4, 9), netip.AddrPortFrom(nodeAddresses[0], 9), packet))),
		"cut within the inner packet": ethernet(0, tunnelled(nodeAddresses[0], false, 0, packet[:19])),
	} {
		t.Run(name, func(t *testing.T) {
			w.TB = t
			if got, _ := w.check(frame); got.action != xdpPass || !slices.Equal(got.frame, frame) {
				t.Errorf("%s: %x", verdictNames[got.verdict], got.frame)
			}
		})
	}
}

func TestTunnelsThatCannotBeReadAreDroppedAndCounted(t *testing.T) {
	for _, address := range nodeAddresses {
		w := secondNode(t, vip4, address)
		c := w.talkTo(flowTo(vip4, 443, 1), 1)
		packet := ipPacket(c.client.Addr(), vip4, 6, c.tcp(ack, timestamps(5, c.echo), nil))
		udp := 14 + 20
		if address.Is6() {
			udp = 14 + 40
		}
		for name, spoil := range map[string]func([]byte) []byte{
			"another version":      func(b []byte) []byte { b[udp+8] |= 0x40; return b },
			"a control message":    func(b []byte) []byte { b[udp+8] |= 0x20; return b },
			"flags":                func(b []byte) []byte { b[udp+11] = 1; return b },
			"another protocol":     func(b []byte) []byte { b[udp+9] = 6; return b },
			"unknown private data": func(b []byte) []byte { b[udp+8] |= 2; return b },
			"cut in its header":    func(b []byte) []byte { return b[:udp+11] },
			"an inner packet cut":  func(b []byte) []byte { return b[:udp+12+30] },
			"an inner header of another version": func(b []byte) []byte {
				b[udp+12] = 0x65
				return b
			},
		} {
			t.Run(name, func(t *testing.T) {
				w.TB = t
				w.checkVerdict(spoil(ethernet(0, tunnelled(address, true, 0, packet))), lbVerdictDROPPED_MALFORMED)
			})
		}
		w.TB = t
		frame := ethernet(0, tunnelled(address, true, 0, packet))
		for length := 14; length < len(frame); length++ {
			w.check(frame[:length])
		}
	}
}

func TestOnlyTheSecondTierTakesTunnels(t *testing.T) {
	w := newWorld(t, tableOf("web", vip4, nil))
	c := w.talkTo(flowTo(vip4, 443, 1), 1)
	frame := ethernet(0, tunnelled(nodeAddresses[0], false, 0, ipPacket(c.client.Addr(), vip4, 6, c.tcp(ack, timestamps(5, c.echo), nil))))
	if got, _ := w.check(frame); got.action != xdpPass {
		t.Error(verdictNames[got.verdict])
	}
}
