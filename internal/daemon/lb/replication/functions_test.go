package replication

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/linux/frametest"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Network functions 1 to 3 are on the link; what comes from outside to one address is for them, and all that clients send outside.
var (
	publicAddress = netip.MustParseAddr("203.0.113.1")
	insideClient  = netip.MustParseAddr("10.9.0.7")
	outside       = netip.MustParseAddr("192.0.2.80")
)

func functionAddress(id uint16) netip.Addr { return netip.AddrFrom4([4]byte{10, 3, 0, byte(id)}) }
func functionMAC(id uint16) [6]byte        { return [6]byte{2, 0, 0, 3, 0, byte(id)} }

// newGateways makes hosts 1 to n on a ring, whose services are of network functions.
func newGateways(t testing.TB, n, length int) map[uint16]*host {
	t.Helper()
	hosts := newRing(t, n, length)
	for _, h := range hosts {
		h.want.Services = nil
		for name, destinations := range map[string]string{"inside": "0.0.0.0/0", "public": publicAddress.String() + "/32"} {
			s := model.NewService()
			s.Name, s.Protocol, s.Destinations, s.Dispatch, s.TableSlots = name, model.ProtocolAny, model.Prefix{Prefix: netip.MustParsePrefix(destinations)}, model.DispatchRR, 1021
			for id := uint16(1); id <= 3; id++ {
				s.Servers = append(s.Servers, model.Server{Name: fmt.Sprint("f", id), ID: id, Weight: 1, Address: functionAddress(id)})
				h.want.Paths[functionAddress(id)] = plan.Path{Ifindex: testIfindex, Source: nodeAddress(h.id), SourceMAC: nodeMAC, DestinationMAC: functionMAC(id), MTU: 1500}
			}
			s.ApplyDefaults()
			h.want.Services = append(h.want.Services, plan.Service{Service: s})
		}
		slices.SortFunc(h.want.Services, func(a, b plan.Service) int { return -slices.Compare([]byte(a.Name), []byte(b.Name)) })
		fleet := model.Fleet{Keys: h.want.Keys}
		for _, s := range h.want.Services {
			fleet.Services = append(fleet.Services, s.Service)
		}
		if err := fleet.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := h.path.SetHostAddresses([]netip.Addr{nodeAddress(h.id)}); err != nil {
			t.Fatal(err)
		}
		h.apply()
	}
	return hosts
}

// passage is what became of a packet to or from functions.
type passage struct {
	function uint16 // that got it
	routed   bool   // it goes on to where it is for; else it was dropped
	hops     int
}

// travel has a frame come to a load balancer, and delivers what that sends to others.
func travel(hosts map[uint16]*host, at uint16, frame []byte) (p passage) {
	for {
		h := hosts[at]
		h.Helper()
		action, out := frametest.Run(h, h.path.Program(), frame)
		switch {
		case action == frametest.Drop:
			return p
		case action == frametest.Pass: // there is no route here: the host's stack is to find one
			p.routed = true
			return p
		case out[14+9] == 17 && binary.BigEndian.Uint16(out[14+22:]) == peermessage.Port && out[14+16] == 10 && out[14+17] == 1:
			at, frame = uint16(out[14+19]), out
			copy(frame[:12], append(nodeMAC[:], routerMAC[:]...))
			p.hops++
			continue
		}
		for id := uint16(1); id <= 3; id++ {
			if mac := functionMAC(id); [6]byte(out[:6]) == mac {
				p.function = id
			}
		}
		if p.function == 0 {
			h.Fatalf("sent to nobody: %x", out)
		}
		return p
	}
}

// packetOf is one of a protocol, from a MAC.
func packetOf(protocol model.Protocol, mac [6]byte, from, to netip.AddrPort, flags byte) []byte {
	l4 := make([]byte, 20)
	switch protocol {
	case model.ProtocolUDP:
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	case model.ProtocolTCP:
		l4[12], l4[13] = 5<<4, flags
	}
	binary.BigEndian.PutUint16(l4, from.Port())
	binary.BigEndian.PutUint16(l4[2:], to.Port())
	if protocol == 1 { // echo: the port is its identifier, and flags say what it is
		copy(l4, []byte{flags, 0, 0, 0})
		binary.BigEndian.PutUint16(l4[4:], from.Port())
	}
	return slices.Concat(nodeMAC[:], mac[:], []byte{8, 0}, ipv4(from.Addr(), to.Addr(), byte(protocol), l4))
}

// A client's packets visit one function, what that sends goes on, and the answers find the same function, whatever load balancers they meet.
func TestAnswersFindTheFunctionThatHasAskedByEveryLoadBalancer(t *testing.T) {
	hosts := newGateways(t, 4, 2)
	const echo, echoReply = 8, 0
	for n := range 120 {
		protocol, request, answer := model.ProtocolUDP, byte(0), byte(0)
		switch n % 3 {
		case 1:
			protocol, request, answer = model.ProtocolTCP, syn, syn|ack
		case 2:
			protocol, request, answer = 1, echo, echoReply
		}
		at := func(i int) uint16 { return uint16(1 + (n+i)%4) }
		client, server := netip.AddrPortFrom(insideClient, uint16(2000+n)), netip.AddrPortFrom(outside, 443)
		translated := netip.AddrPortFrom(publicAddress, uint16(30000+n))
		if protocol == 1 {
			server = netip.AddrPortFrom(outside, client.Port())
		}
		out := travel(hosts, at(0), packetOf(protocol, routerMAC, client, server, request))
		if out.function == 0 || out.hops > 3 {
			t.Fatalf("%d: the first packet: %+v", n, out)
		}
		mac := functionMAC(out.function)
		back := server
		if protocol == 1 {
			back = netip.AddrPortFrom(outside, translated.Port())
		}
		if went := travel(hosts, at(1), packetOf(protocol, mac, translated, back, request)); !went.routed {
			t.Fatalf("%d: what function %d sends: %+v", n, out.function, went)
		}
		for i := range 4 {
			if came := travel(hosts, at(i), packetOf(protocol, routerMAC, back, translated, answer)); came.function != out.function {
				t.Fatalf("%d: the answer by load balancer %d goes to function %d, not %d", n, at(i), came.function, out.function)
			}
			if went := travel(hosts, at(i), packetOf(protocol, mac, server, client, answer)); !went.routed {
				t.Fatalf("%d: the answer from the function: %+v", n, went)
			}
			if again := travel(hosts, at(i), packetOf(protocol, routerMAC, client, server, request)); again.function != out.function {
				t.Fatalf("%d: by load balancer %d function %d, not %d", n, at(i), again.function, out.function)
			}
		}
		other := functionMAC(1 + out.function%3)
		if stolen := travel(hosts, at(2), packetOf(protocol, other, translated, back, request)); stolen.routed || stolen.function != 0 {
			t.Errorf("%d: another function sends a packet of the same connection: %+v", n, stolen)
		}
	}
	for id, h := range hosts {
		counts := h.verdicts()
		if counts["dropped_other_function"] == 0 || counts["returned"] == 0 || counts["dropped_forged"] != 0 {
			t.Errorf("load balancer %d: %v", id, counts)
		}
	}
}

func TestWhatIsForThisHostOrNobodyIsForNoFunction(t *testing.T) {
	hosts := newGateways(t, 3, 1)
	h := hosts[1]
	from := netip.AddrPortFrom(outside, 443)
	passes := func(what string, frame []byte) {
		t.Helper()
		before := h.verdicts()["returned"]
		if action, _ := frametest.Run(t, h.path.Program(), frame); action != frametest.Pass || h.verdicts()["returned"] != before {
			t.Errorf("%s: action %d", what, action)
		}
	}
	for _, to := range []string{nodeAddress(1).String(), "224.0.0.5", "255.255.255.255", "127.0.0.1", "169.254.1.1", "0.0.0.1"} {
		passes("to "+to, packetOf(model.ProtocolUDP, routerMAC, from, netip.AddrPortFrom(netip.MustParseAddr(to), 53), 0))
	}
	passes("a function's answer to a check", packetOf(model.ProtocolTCP, functionMAC(1), netip.AddrPortFrom(functionAddress(1), 9000), netip.AddrPortFrom(nodeAddress(1), 40000), syn|ack))
	passes("another protocol", slices.Concat(nodeMAC[:], routerMAC[:], []byte{8, 0}, ipv4(outside, insideClient, 47, make([]byte, 20))))
	if p := travel(hosts, 1, packetOf(model.ProtocolUDP, routerMAC, from, netip.AddrPortFrom(netip.MustParseAddr("8.8.8.8"), 53), 0)); p.function == 0 {
		t.Error("what is for anybody else goes to no function")
	}
	udp := plan.Service{Service: testService("udp", udpVIP, model.ProtocolUDP)}
	h.want.Services = append(h.want.Services, udp)
	h.apply()
	c := connectionOf(h, viewOf(1, 1, 1, 2, 3), model.ProtocolUDP, 1)
	if out := h.run(c.frame(0)); out.server == 0 {
		t.Errorf("a VIP of another service: %+v", out)
	}
	h.want.Services = h.want.Services[2:]
	h.apply()
	passes("without functions", packetOf(model.ProtocolUDP, routerMAC, from, netip.AddrPortFrom(netip.MustParseAddr("8.8.8.8"), 53), 0))
	passes("from what was a function", packetOf(model.ProtocolUDP, functionMAC(1), from, netip.AddrPortFrom(netip.MustParseAddr("8.8.8.8"), 53), 0))
}

// A service whose functions take no new connections gets none from outside, and those that functions have opened.
func TestFunctionsOfWeight0GetTheAnswersToWhatTheyHaveSentAlone(t *testing.T) {
	hosts := newGateways(t, 3, 2)
	for _, h := range hosts {
		for i := range h.want.Services {
			s := &h.want.Services[i]
			if s.Name == "public" {
				s.Servers = slices.Clone(s.Servers)
				for j := range s.Servers {
					s.Servers[j].Weight = 0
				}
			}
		}
		h.apply()
	}
	from, to := netip.AddrPortFrom(outside, 53), netip.AddrPortFrom(publicAddress, 30000)
	entries := func() (n int) {
		for _, h := range hosts {
			table, _ := h.path.ReplicaTables()
			n += table.Count()
		}
		return n
	}
	for lb := range uint16(3) {
		if p := travel(hosts, 1+lb, packetOf(model.ProtocolUDP, routerMAC, from, to, 0)); p.function != 0 || p.routed {
			t.Errorf("a stranger's packet: %+v", p)
		}
	}
	if entries() != 0 {
		t.Errorf("%d entries by strangers", entries())
	}
	if p := travel(hosts, 1, packetOf(model.ProtocolUDP, functionMAC(2), to, from, 0)); !p.routed {
		t.Fatalf("what a function sends: %+v", p)
	}
	for lb := range uint16(3) {
		if p := travel(hosts, 1+lb, packetOf(model.ProtocolUDP, routerMAC, from, to, 0)); p.function != 2 {
			t.Errorf("the answer by load balancer %d: %+v", 1+lb, p)
		}
	}
}

func TestAFunctionResetsItsOwnConnectionsAlone(t *testing.T) {
	hosts := newGateways(t, 1, 1)
	from, to := netip.AddrPortFrom(publicAddress, 30000), netip.AddrPortFrom(outside, 443)
	const rst = 4
	if p := travel(hosts, 1, packetOf(model.ProtocolTCP, functionMAC(1), from, to, syn)); !p.routed {
		t.Fatalf("%+v", p)
	}
	hosts[1].counted("another one's", "dropped_other_function", func() {
		if p := travel(hosts, 1, packetOf(model.ProtocolTCP, functionMAC(2), from, to, rst)); p.routed {
			t.Error("it goes on")
		}
	})
	if p := travel(hosts, 1, packetOf(model.ProtocolTCP, functionMAC(1), from, to, rst)); !p.routed {
		t.Errorf("its own: %+v", p)
	}
}

func TestAFullTableStopsNewConnectionsOfFunctionsAlone(t *testing.T) {
	hosts := newGateways(t, 1, 1)
	h := hosts[1]
	from, to := netip.AddrPortFrom(publicAddress, 30000), netip.AddrPortFrom(outside, 53)
	if p := travel(hosts, 1, packetOf(model.ProtocolUDP, functionMAC(1), from, to, 0)); !p.routed {
		t.Fatalf("%+v", p)
	}
	entries, _ := h.path.ReplicaTables()
	for key, refused := uint64(2), 0; refused < 20000; key += 0x9e3779b97f4a7c15 {
		_, ok, err := entries.Insert(replicas.Entry{Key: key | 2, Owner: 1})
		if refused++; err != nil {
			t.Fatal(err)
		} else if ok {
			refused = 0
		}
	}
	if p := travel(hosts, 1, packetOf(model.ProtocolUDP, functionMAC(1), from, to, 0)); !p.routed {
		t.Errorf("one that is known: %+v", p)
	}
	h.counted("a new one", "dropped_table_full", func() {
		if p := travel(hosts, 1, packetOf(model.ProtocolUDP, functionMAC(1), netip.AddrPortFrom(publicAddress, 30001), to, 0)); p.routed {
			t.Error("it goes on without an entry")
		}
	})
}

// The entry for the way back would be missing.
func TestWhatFunctionsSendWaitsUntilTheRingKnowsTheirLoadBalancer(t *testing.T) {
	hosts := newGateways(t, 1, 1)
	h := hosts[1]
	packet := packetOf(model.ProtocolUDP, functionMAC(1), netip.AddrPortFrom(publicAddress, 30000), netip.AddrPortFrom(outside, 53), 0)
	others := h.want.Replicas
	h.want.Replicas = plan.Replicas{}
	h.apply()
	h.counted("a packet that opens a connection", "dropped_other_view", func() {
		if p := travel(hosts, 1, packet); p.routed {
			t.Error("it goes on without an entry")
		}
	})
	h.want.Replicas = others
	h.apply()
	if p := travel(hosts, 1, packet); !p.routed {
		t.Errorf("then: %+v", p)
	}
}

// Two functions behind one router have one MAC: nobody could tell whose a packet is.
func TestFunctionsThatShareAMACAreNotRecognised(t *testing.T) {
	hosts := newGateways(t, 1, 1)
	h := hosts[1]
	path := h.want.Paths[functionAddress(2)]
	path.DestinationMAC = functionMAC(1)
	h.want.Paths[functionAddress(2)] = path
	h.apply()
	before := h.verdicts()["returned"]
	for id := uint16(1); id <= 3; id++ {
		travel(hosts, 1, packetOf(model.ProtocolUDP, functionMAC(id), netip.AddrPortFrom(publicAddress, 3000+id), netip.AddrPortFrom(outside, 53), 0))
	}
	if after := h.verdicts()["returned"]; after != before+1 {
		t.Errorf("%d packets of functions", after-before)
	}
}

// What is too big for the way to a function, and may be cut, becomes an order for the program at tc: the device would take no such frame.
func TestPacketsThatAreTooBigGoToFunctionsInFragments(t *testing.T) {
	const ordered = 0x88b5 // ORDER_SEVERAL
	h := newGateways(t, 1, 1)[1]
	datagram := make([]byte, 2008)
	binary.BigEndian.PutUint16(datagram, 4242)
	binary.BigEndian.PutUint16(datagram[2:], 53)
	binary.BigEndian.PutUint16(datagram[4:], uint16(len(datagram)))
	frame := slices.Concat(nodeMAC[:], routerMAC[:], []byte{8, 0}, ipv4(insideClient, outside, 17, datagram))
	if action, out := frametest.Run(h, h.path.Program(), frame); action != frametest.Pass || binary.BigEndian.Uint16(out[12:]) != ordered || out[5] == 0 || out[5] > 3 {
		t.Errorf("action %d, frame %x", action, out[:34])
	}
}
