package lb

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// byConnectionID is a change of a service to affinity quic.
func byConnectionID(dispatch model.Dispatch, q model.QUIC) func(*model.Service) {
	return func(s *model.Service) {
		s.Protocol, s.Ports, s.Affinity, s.Dispatch, s.QUIC = model.ProtocolUDP, []uint16{443}, model.AffinityQUIC, dispatch, q
		s.Load.Source = model.LoadCPU
	}
}

// idOf is a connection id that a server makes.
func (w *world) idOf(name string, server uint64, epoch uint32, nonce byte) []byte {
	w.Helper()
	s := service(&w.want, name)
	c := quicConfig(&s.Service, epoch, testKeys(epoch).Cookie[epoch])
	number := binary.BigEndian.AppendUint64(nil, server)
	id, err := c.Encode(number[8-c.ServerIDLength:], slices.Repeat([]byte{nonce}, c.NonceLength))
	if err != nil {
		w.Fatal(err)
	}
	return id
}

func (f flow) datagram(payload []byte) []byte {
	return ethernet(0, ipPacket(f.client.Addr(), f.service.Addr(), 17, f.udp(payload)))
}

// short is a packet of a connection whose handshake is over.
func (f flow) short(id []byte) []byte {
	return f.datagram(slices.Concat([]byte{0x40}, id, make([]byte, 30)))
}

func longHeader(destination, source []byte) []byte {
	return slices.Concat([]byte{0xc0, 0, 0, 0, 1, byte(len(destination))}, destination, []byte{byte(len(source))}, source, make([]byte, 40))
}

// initial is a packet of a client who has drawn the destination's id, or has it from the server.
func (f flow) initial(destination []byte) []byte {
	return f.datagram(longHeader(destination, []byte("client")))
}

var quicForms = []model.QUIC{
	{}, {Algorithm: model.QUICSinglePass, ServerIDLength: 1}, {Algorithm: model.QUICSinglePass, ServerIDLength: 8}, {Algorithm: model.QUICPlain},
	{Algorithm: model.QUICPlain, ServerIDLength: 1, NonceLength: 4}, {Algorithm: model.QUICPlain, ServerIDLength: 8, NonceLength: 8}, {Algorithm: model.QUICFourPass, ServerIDLength: 2, NonceLength: 5},
	{Algorithm: model.QUICFourPass, ServerIDLength: 1, NonceLength: 5}, {Algorithm: model.QUICFourPass, ServerIDLength: 8, NonceLength: 11},
	{Algorithm: model.QUICFourPass, ServerIDLength: 2, NonceLength: 15}, {Algorithm: model.QUICFourPass, ServerIDLength: 3, NonceLength: 12},
}

// Wherever its client is by now, a connection's packets go to the server that its id names.
func TestConnectionIDsNameTheirServers(t *testing.T) {
	for _, form := range quicForms {
		for _, vip := range []netip.Addr{vip4, vip6} {
			t.Run(fmt.Sprintf("%s %d+%d %s", form.Algorithm, form.ServerIDLength, form.NonceLength, vip), func(t *testing.T) {
				w := newWorld(t, serviceOf("web", vip, byConnectionID(model.DispatchRR, form)))
				for n := range 30 {
					f, server := flowTo(vip, 443, n), uint16(n%3+1)
					id := w.idOf("web", uint64(server), 1, byte(n))
					for _, frame := range [][]byte{f.short(id), f.initial(id)} {
						got, want := w.checkVerdict(frame, lbVerdictFORWARDED_BY_COOKIE)
						if to := want.serverOf(got.frame); to != server {
							t.Fatalf("id %x of server %d led to %d", id, server, to)
						}
					}
				}
			})
		}
	}
}

// Promise: Connection ids of both epochs are read, and `key drop` is refused for a key that connection ids may
// carry.
// Also held by TestAKeyThatConnectionIDsMayCarryIsNotDropped.
func TestConnectionIDsOfBothEpochsAreRead(t *testing.T) {
	for _, form := range quicForms {
		w := newWorld(t, serviceOf("web", vip4, byConnectionID(model.DispatchMaglev, form)))
		w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
		f := flowTo(vip4, 443, 1)
		w.checkVerdict(f.short(w.idOf("web", 3, 1, 7)), lbVerdictFORWARDED_BY_OLDER_KEY)
		w.checkVerdict(f.short(w.idOf("web", 3, 2, 7)), lbVerdictFORWARDED_BY_COOKIE)
		w.update(func(want *plan.Want) { want.Keys = testKeys(2) })
		w.checkVerdict(f.short(w.idOf("web", 3, 1, 7)), lbVerdictFORWARDED_BAD_COOKIE)
		w.checkVerdict(f.short(w.idOf("web", 3, 2, 7)), lbVerdictFORWARDED_BY_COOKIE)
	}
}

// A client repeats its first packets, and goes on with longer hellos, before it knows an id of the server's.
//
// Promise: Repeated first packets, and hellos of several packets, reach the same server, until a client with the
// same one of 65,536 slots arrives.
func TestAConnectionThatBeginsStaysWhereItBegan(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchRR, model.DispatchWRR, model.DispatchMaglev, model.DispatchHash, model.DispatchAWFD} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, byConnectionID(dispatch, model.QUIC{})))
			for n := range 12 {
				f := flowTo(vip, 443, n)
				first := f.initial([]byte{byte(n), 1, 2, 3, 4, 5, 6, 7})
				got, want := w.checkVerdict(first, lbVerdictFORWARDED_NEW)
				server := want.serverOf(got.frame)
				for range 3 {
					if got, want = w.checkVerdict(first, lbVerdictFORWARDED_STARTING); want.serverOf(got.frame) != server {
						t.Fatalf("%s: went to server %d after %d", dispatch, want.serverOf(got.frame), server)
					}
				}
				w.checkVerdict(f.initial([]byte{byte(n), 9, 9, 9, 9, 9, 9, 9}), lbVerdictFORWARDED_NEW) // of the same port, and another connection
			}
		}
	}
}

// What nobody's id decodes goes by its addresses alone, so that servers without such ids work as with affinity hash.
//
// Promise: Forged ids, ids of no server, other configurations or lengths, and packets other than QUIC go by their
// addresses or as new connections, and are counted.
// Also held by TestRandomDatagramsGoWhereTheReferenceSays.
func TestWhatIsNoIDOfOursGoesByItsAddresses(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, byConnectionID(model.DispatchRR, model.QUIC{})))
	f := flowTo(vip4, 443, 1)
	ours := w.idOf("web", 2, 1, 3)
	config := func(number byte) []byte { return append([]byte{number<<5 | 16}, ours[1:]...) }
	for _, payload := range [][]byte{nil, {0x40}, {0xc0, 0, 0, 0, 1}, make([]byte, 12), slices.Concat([]byte{0x40}, ours[:10]),
		longHeader(nil, nil), longHeader([]byte("seven77"), nil)} {
		w.checkVerdict(f.datagram(payload), lbVerdictFORWARDED_BAD_COOKIE)
	}
	for _, id := range [][]byte{config(0), config(2), config(7), w.idOf("web", 0, 1, 3), w.idOf("web", 4, 1, 3), w.idOf("web", 300, 1, 3), w.idOf("web", 65535, 1, 3)} {
		w.checkVerdict(f.short(id), lbVerdictFORWARDED_BAD_COOKIE)
		w.checkVerdict(f.initial(id), lbVerdictFORWARDED_NEW)
		f = flowTo(vip4, 443, int(f.client.Port())%1000+1)
	}
	for _, id := range [][]byte{ours[:16], append(slices.Clone(ours), 1, 2, 3, 4), make([]byte, 20)} { // too short, too long, and of no config
		w.checkVerdict(f.initial(id), lbVerdictFORWARDED_NEW)
		f = flowTo(vip4, 443, int(f.client.Port())%1000+1)
	}
}

// Servers may append bytes to their ids (draft-ietf-quic-load-balancers-21 3.4), as Envoy does for its workers, and nginx with ballast-quic.so.
func TestBytesThatServersAppendAreNotRead(t *testing.T) {
	for _, form := range quicForms {
		w := newWorld(t, serviceOf("web", vip4, byConnectionID(model.DispatchRR, form)))
		f := flowTo(vip4, 443, 1)
		for server := range uint16(3) {
			id := w.idOf("web", uint64(server+1), 1, 9)
			for len(id) < 20 {
				id = append(id, 0xff)
				for _, frame := range [][]byte{f.short(id), f.initial(id)} {
					got, want := w.checkVerdict(frame, lbVerdictFORWARDED_BY_COOKIE)
					if to := want.serverOf(got.frame); to != server+1 {
						t.Fatalf("id %x of server %d led to %d", id, server+1, to)
					}
				}
			}
		}
	}
}

// Promise: A client with an old id of a server can choose that server, also while it drains.
func TestConnectionIDsLeadToServersThatTakeNoNewOnes(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, byConnectionID(model.DispatchRR, model.QUIC{})))
	f := flowTo(vip4, 443, 1)
	id := w.idOf("web", 2, 1, 9)
	for _, change := range []func(*plan.Service){
		func(s *plan.Service) { s.Servers[1].State = model.StateDraining },
		func(s *plan.Service) { s.Down = map[uint16]bool{2: true} },
		func(s *plan.Service) {
			s.Removed, s.Servers = []model.Server{s.Servers[1]}, append(s.Servers[:1:1], s.Servers[2])
		},
	} {
		w.update(func(want *plan.Want) { change(service(want, "web")) })
		w.checkVerdict(f.short(id), lbVerdictFORWARDED_BY_COOKIE)
	}
	w.update(func(want *plan.Want) { service(want, "web").Removed = nil })
	w.checkVerdict(f.short(id), lbVerdictFORWARDED_BAD_COOKIE)
}

// An error of the path quotes what the server has sent: of its short headers the ids are the client's.
func TestPathErrorsGoByTheServersOwnID(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, byConnectionID(model.DispatchRR, model.QUIC{})))
		f := flowTo(vip, 443, 1)
		id := w.idOf("web", 3, 1, 9)
		quote := func(payload []byte) []byte {
			router, kind := router4, byte(3)
			if vip.Is6() {
				router, kind = router6, 1
			}
			return icmpFrame(router, vip, kind, 4, 0, ipPacket(vip, f.client.Addr(), 17, udpDatagram(f.service, f.client, payload)))
		}
		w.checkVerdict(quote(longHeader([]byte("client"), id)), lbVerdictFORWARDED_ICMP_BY_COOKIE)
		w.checkVerdict(quote(longHeader(nil, id)), lbVerdictFORWARDED_ICMP_BY_COOKIE)
		w.checkVerdict(quote(longHeader(make([]byte, 21), id)), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
		w.checkVerdict(quote(longHeader(id, []byte("client"))), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
		w.checkVerdict(quote(append([]byte{0x40}, make([]byte, 60)...)), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
		w.checkVerdict(quote(nil), lbVerdictFORWARDED_ICMP_BY_FALLBACK)
	}
}

// By every way to servers, and back through this node.
func TestConnectionIDsWorkWithEveryForward(t *testing.T) {
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6, model.ForwardNAT} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, func(s *model.Service) {
				byConnectionID(model.DispatchRR, model.QUIC{})(s)
				if s.Forward = forward; forward == model.ForwardSRv6 {
					withServers(true, 1, 2, 3)(s)
				}
				if forward == model.ForwardNAT {
					s.Return = model.ReturnThrough
					setPorts(s, 8443)
				}
			}))
			f := flowTo(vip, 443, 1)
			w.checkVerdict(f.short(w.idOf("web", 2, 1, 9)), lbVerdictFORWARDED_BY_COOKIE)
			first := f.initial([]byte("eight888"))
			w.checkVerdict(first, lbVerdictFORWARDED_NEW)
			got, want := w.checkVerdict(first, lbVerdictFORWARDED_STARTING)
			if forward != model.ForwardNAT {
				continue
			}
			server := serverIn(service(&w.want, "web"), want.serverOf(got.frame))
			from := netip.AddrPortFrom(server.Address, 8443)
			answer := ethernet(0, ipPacket(from.Addr(), f.client.Addr(), 17, udpDatagram(from, f.client, longHeader([]byte("client"), w.idOf("web", uint64(server.ID), 1, 9)))))
			mac := w.want.Paths[server.Address].DestinationMAC
			copy(answer[6:], mac[:])
			w.checkVerdict(answer, lbVerdictRETURNED_UNMARKED)
		}
	}
}

func TestFragmentsOfQUICFollowTheirFirst(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, byConnectionID(model.DispatchRR, model.QUIC{})))
	f := flowTo(vip4, 443, 1)
	for id, payload := range map[uint32][]byte{
		1: slices.Concat([]byte{0x40}, w.idOf("web", 3, 1, 9), make([]byte, 100)), 2: append(longHeader([]byte("eight888"), nil), make([]byte, 100)...)} {
		datagram := f.udp(payload)
		verdict := map[uint32]lbVerdict{1: lbVerdictFORWARDED_BY_COOKIE, 2: lbVerdictFORWARDED_NEW}[id]
		w.checkVerdict(fragmentOf(f.client.Addr(), vip4, 17, id, 0, true, datagram[:64]), verdict)
		w.checkVerdict(fragmentOf(f.client.Addr(), vip4, 17, id, 64, false, datagram[64:]), lbVerdictFORWARDED_FRAGMENT)
	}
}

func TestRandomDatagramsGoWhereTheReferenceSays(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	for _, form := range quicForms {
		w := newWorld(t, serviceOf("web", vip4, byConnectionID(model.DispatchRR, form)))
		for range 500 {
			f := flowTo(vip4, 443, draw.IntN(50))
			payload := make([]byte, draw.IntN(70))
			for i := range payload {
				payload[i] = byte(draw.Uint32())
			}
			if len(payload) > 6 && draw.IntN(2) == 0 {
				payload[5] = byte(draw.IntN(22))
			}
			if draw.IntN(3) == 0 {
				payload = append([]byte{byte(draw.Uint32())}, w.idOf("web", draw.Uint64N(5), 1, byte(draw.IntN(4)))...)
				payload = append(payload, make([]byte, 16+draw.IntN(30))...) // no packet ends sooner (RFC 9001 5.4.2)
			}
			w.check(f.datagram(payload))
		}
	}
}
