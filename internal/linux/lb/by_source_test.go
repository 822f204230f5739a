package lb

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// bySource makes a service place clients by their addresses; its servers have ids in another order than their addresses.
func bySource(dispatch model.Dispatch, ids ...uint16) func(*model.Service) {
	return func(s *model.Service) {
		s.Dispatch, s.Placement.Over, s.Servers = dispatch, model.PlaceSource, nil
		for i, id := range ids {
			server := serverOf(id, false)
			server.Address = netip.AddrFrom4([4]byte{10, 1, 1, byte(i + 1)})
			s.Servers = append(s.Servers, server)
		}
	}
}

// clientAt is one of many clients of a VIP; those of one network share 64 bits with IPv6.
func clientAt(vip netip.Addr, network, host byte) netip.Addr {
	if vip.Is6() {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 7: network, 15: host})
	}
	return netip.AddrFrom4([4]byte{203, 0, 113 + host, network})
}

// sendFrom returns the address of the server that a frame goes to.
func (w *world) sendFrom(client netip.Addr, port uint16, to netip.AddrPort, frame func(f flow) []byte) netip.Addr {
	w.Helper()
	got, want := w.check(frame(flow{netip.AddrPortFrom(client, port), to}))
	id := want.serverOf(got.frame)
	if s := service(&w.want, got.service); s != nil && serverIn(s, id) != nil {
		return serverIn(s, id).Address
	}
	w.Fatalf("a packet for %s went to server %d, verdict %s", to, id, verdictNames[got.verdict])
	return netip.Addr{}
}

func synOf(f flow) []byte { return f.frame(f.tcp(syn, synOptions(), nil)) }

func bareSYN(f flow) []byte { return f.frame(f.tcp(syn, nil, nil)) }

func bareData(f flow) []byte { return f.frame(f.tcp(psh|ack, nil, []byte("data"))) }

func datagram(f flow) []byte {
	return ethernet(0, ipPacket(f.client.Addr(), f.service.Addr(), 17, f.udp([]byte("query"))))
}

// Promise: By source all packets of a client that carry no cookie, of all its connections to services of a VIP with the same servers, go to one
// server, over IPv4 and IPv6, on the fast path and the slow one.
// Public: kubernetes/kubernetes#55429 (connections of a client reach several endpoints in spite of sessionAffinity).
func TestAllConnectionsOfAClientGoToOneServer(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, dispatch := range []model.Dispatch{model.DispatchMaglev, model.DispatchHash, model.DispatchWCMP} {
			t.Run(fmt.Sprint(dispatch, vip.Is6()), func(t *testing.T) {
				w := newWorld(t, serviceOf("web", vip, bySource(dispatch, 1, 2, 3, 4, 5)), udpService("dns", vip, bySource(dispatch, 9, 3, 7, 1, 5)),
					serviceOf("stateless", vip, func(s *model.Service) {
						bySource(dispatch, 5, 4, 3, 2, 1)(s)
						s.Affinity, s.Ports = model.AffinityHash, []uint16{8080}
					}),
					serviceOf("local", vip, func(s *model.Service) {
						bySource(dispatch, 6, 8, 10, 12, 14)(s)
						localTable(dispatch)(s)
						s.Placement.Over, s.Ports = model.PlaceSource, []uint16{8443}
					}),
					tableOf("table", vip, func(s *model.Service) {
						bySource(dispatch, 1, 3, 5, 2, 4)(s)
						s.Ports = []uint16{9443}
					}),
					udpService("quic", vip, func(s *model.Service) {
						bySource(dispatch, 10, 20, 30, 40, 50)(s)
						s.Affinity, s.Ports = model.AffinityQUIC, []uint16{443}
					}))
				used := map[netip.Addr]bool{}
				for network := range byte(20) {
					client := clientAt(vip, network, 0)
					at := w.sendFrom(client, 2000, netip.AddrPortFrom(vip, 80), synOf)
					used[at] = true
					for port := range uint16(5) {
						for to, frames := range map[uint16][]func(flow) []byte{80: {synOf, bareSYN, bareData}, 443: {synOf, bareData}, 53: {datagram}, 8080: {synOf, bareData}, 8443: {synOf}, 9443: {synOf, bareData}} {
							for _, frame := range frames {
								if have := w.sendFrom(client, 3000+7*port, netip.AddrPortFrom(vip, to), frame); have != at {
									t.Fatalf("%s is at %s, and to port %d at %s", client, at, to, have)
								}
							}
						}
						quic := func(f flow) []byte { return f.initial([]byte{network, byte(port), byte(dispatch), 4, 5, 6, 7, 8}) }
						if have := w.sendFrom(client, 3000+7*port, netip.AddrPortFrom(vip, 443), quic); have != at {
							t.Fatalf("%s is at %s, and by QUIC at %s", client, at, have)
						}
					}
				}
				if len(used) < 3 {
					t.Errorf("20 clients use %d servers of 5", len(used))
				}
			})
		}
	}
}

// The prefix counts, and nothing behind it.
func TestClientsOfOnePrefixHaveOneServer(t *testing.T) {
	servers := func(vip netip.Addr, ipv4, ipv6 uint8) (used map[netip.Addr]bool) {
		w := newWorld(t, serviceOf("web", vip, func(s *model.Service) {
			bySource(model.DispatchMaglev, 1, 2, 3, 4, 5)(s)
			s.Placement.IPv4Prefix, s.Placement.IPv6Prefix = ipv4, ipv6
		}))
		used = map[netip.Addr]bool{}
		for host := range byte(30) {
			client := clientAt(vip, 7, host)
			if vip.Is4() {
				client = clientAt(vip, host, 0)
			}
			used[w.sendFrom(client, 2000, netip.AddrPortFrom(vip, 80), synOf)] = true
		}
		return used
	}
	for _, c := range []struct {
		vip        netip.Addr
		ipv4, ipv6 uint8
		one        bool
	}{{vip4, 24, 128, true}, {vip4, 32, 64, false}, {vip6, 32, 64, true}, {vip6, 32, 128, false}, {vip6, 1, 120, true}, {vip4, 24, 1, true}} {
		if used := servers(c.vip, c.ipv4, c.ipv6); (len(used) == 1) != c.one {
			t.Errorf("%s, of %d and %d bits: %d servers", c.vip, c.ipv4, c.ipv6, len(used))
		}
	}
}

// Promise: Connections that carry a cookie stay with their server when a service comes to place by source and back, and when servers come.
func TestCookiesAreStrongerThanTheSource(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, bySource(model.DispatchMaglev, 1, 2, 3)))
		f := flow{netip.AddrPortFrom(clientAt(vip, 7, 0), 2000), netip.AddrPortFrom(vip, 80)}
		expect := func(when string) {
			t.Helper()
			for id := range uint16(3) {
				got, want := w.checkVerdict(f.carrying(w.cookieFor("web", f, id+1, 1)), lbVerdictFORWARDED_BY_COOKIE)
				if have := want.serverOf(got.frame); have != id+1 {
					t.Errorf("%s: the cookie of %d leads to %d", when, id+1, have)
				}
			}
		}
		expect("by source")
		w.update(func(want *plan.Want) { service(want, "web").Placement.Over = model.PlaceConnection })
		expect("by connection")
		w.update(func(want *plan.Want) {
			s := service(want, "web")
			s.Placement.Over = model.PlaceSource
			s.Servers = append(s.Servers, serverOf(40, false))
		})
		expect("with another server")
		at := w.sendFrom(f.client.Addr(), 1, f.service, synOf)
		for port := range uint16(20) {
			if have := w.sendFrom(f.client.Addr(), port+2, f.service, bareData); have != at {
				t.Errorf("without a cookie it goes to %s, and new ones to %s", have, at)
			}
		}
	}
}
