package server_test

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/ballast-lb/ballast/internal/algo/acceptance"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
)

const roomy, full uint32 = 0, 100 // loads, with a threshold of 100

var far6 = netip.MustParseAddr("fd09::4") // no next hop is known

var balancers = []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd09::1")}

// newAcceptRig is one whose services are of dispatch choices: with static acceptance of a load that the tests say, unless change says else.
func newAcceptRig(t *testing.T, change func(*plan.AgentRow)) *xdpRig {
	r := newXDPRig(t)
	progtest.Check(t, r.agent.SetTunnelSources(balancers, server.ForeignDropped))
	r.choose(change)
	return r
}

func (r *xdpRig) choose(change func(*plan.AgentRow)) {
	r.t.Helper()
	wanted, err := plan.NewAgent(r.fleet, func(*model.Server) bool { return true })
	progtest.Check(r.t, err)
	for key, row := range wanted.Served {
		if row.Flags == 0 {
			continue
		}
		row.Flags |= plan.AgentChoices
		row.Acceptance, row.Threshold, row.Policy, row.Load = r.acceptance(key.VIP()), full, uint8(model.AcceptStatic), uint8(model.AcceptByEndpoint)
		if change != nil {
			change(&row)
		}
		wanted.Served[key] = row
	}
	_, err = r.agent.Serve(wanted.Served)
	progtest.Check(r.t, err)
}

func (r *xdpRig) acceptance(vip netip.Addr) uint16 {
	if vip.Is6() {
		return 2
	}
	return 1
}

func (r *xdpRig) load(load uint32) {
	r.t.Helper()
	for _, vip := range r.vips {
		progtest.Check(r.t, r.agent.SetLoad(r.acceptance(vip), load))
	}
}

// syn is the inner packet of a connection's first SYN, or of one that comes again.
func syn(t testing.TB, vip netip.Addr, clientPort uint16, sequence uint32) []byte {
	if vip.Is6() {
		return synFrom(t, balancers[1], vip, clientPort, sequence)
	}
	return synFrom(t, balancers[0], vip, clientPort, sequence)
}

func synFrom(t testing.TB, client, vip netip.Addr, port uint16, sequence uint32) []byte {
	tcp := &layers.TCP{SrcPort: layers.TCPPort(port), DstPort: servicePort, Seq: sequence, Window: 1000, SYN: true}
	ip := ipLayer(client, vip, layers.IPProtocolTCP, 0)
	tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer))
	return build(t, ip, tcp)
}

// inject has the client send a frame.
func (r *xdpRig) inject(frame []byte) {
	r.t.Helper()
	progtest.Check(r.t, r.client.Do(func() error {
		socket, err := frames.Open("eth0")
		if err != nil {
			return err
		}
		defer socket.Close()
		return socket.Send(frame)
	}))
}

// Promise: When all candidates are overloaded, the last one accepts.
// Promise: A draining server, or one without a listener, accepts only as the last candidate.
// Promise: A candidate without route or neighbour is skipped; without any other candidate the server itself
// accepts.
func TestASYNIsAcceptedOrPassedOn(t *testing.T) {
	self := own4
	for _, test := range []struct {
		name    string
		load    uint32
		change  func(*plan.AgentRow)
		deaf    bool // nobody listens
		next    byte
		stops   []netip.Addr
		hops    uint8 // that the frame has made
		verdict string
		hop     netip.Addr
		used    byte
	}{
		{name: "room", load: roomy, stops: []netip.Addr{stop4}, verdict: "accepted_first"},
		{name: "just room", load: full - 1, stops: []netip.Addr{stop4}, verdict: "accepted_first"},
		{name: "none", load: full, stops: []netip.Addr{stop4}, verdict: "passed_on_first", hop: stop4, used: 1},
		{name: "none, IPv6", load: full, stops: []netip.Addr{stop6}, verdict: "passed_on_first", hop: stop6, used: 1},
		{name: "second with room", load: roomy, next: 1, stops: []netip.Addr{far4, stop4}, verdict: "accepted_second"},
		{name: "second without", load: full, next: 1, stops: []netip.Addr{far4, stop4}, verdict: "passed_on_second", hop: stop4, used: 2},
		{name: "last", load: full, next: 2, stops: []netip.Addr{far4, stop4}, verdict: "accepted_third"},
		{name: "third without", load: full, next: 2, stops: []netip.Addr{far4, far4, stop4}, verdict: "passed_on_third", hop: stop4, used: 3},
		{name: "fourth", load: full, next: 3, stops: []netip.Addr{far4, stop4, far4}, verdict: "accepted_fourth"},
		{name: "third without, of six, IPv6", load: full, next: 2, stops: []netip.Addr{stop6, stop6, stop6, far6, far6}, verdict: "passed_on_third", hop: stop6, used: 3},
		{name: "fifth without, of six, IPv6", load: full, next: 4, stops: []netip.Addr{far6, far6, far6, far6, stop6}, verdict: "passed_on_third", hop: stop6, used: 5},
		{name: "the next is this host", load: full, stops: []netip.Addr{self, stop4}, verdict: "passed_on_first", hop: stop4, used: 2},
		{name: "nobody but this host", load: full, stops: []netip.Addr{self, self}, verdict: "accepted_first"},
		{name: "the next cannot be reached", load: full, stops: []netip.Addr{far4, stop4}, verdict: "passed_on_first", hop: stop4, used: 2},
		{name: "nobody can be reached", load: full, stops: []netip.Addr{far4, far4}, verdict: "accepted_first"},
		{name: "too many hops", load: full, stops: []netip.Addr{stop4}, hops: 63, verdict: "accepted_first"},
		{name: "nobody listens", load: roomy, deaf: true, stops: []netip.Addr{stop4}, verdict: "passed_on_first", hop: stop4, used: 1},
		{name: "nobody listens, last", load: roomy, deaf: true, next: 1, stops: []netip.Addr{stop4}, verdict: "accepted_second"},
		{name: "draining", load: roomy, change: func(row *plan.AgentRow) { row.Flags |= plan.AgentNoNew }, stops: []netip.Addr{stop4}, verdict: "passed_on_first", hop: stop4, used: 1},
		{name: "draining, last", load: full, change: func(row *plan.AgentRow) { row.Flags |= plan.AgentNoNew }, next: 1, stops: []netip.Addr{stop4}, verdict: "accepted_second"},
		{name: "a forged position", load: full, next: 200, stops: []netip.Addr{stop4}, verdict: "accepted_fourth"},
		{name: "not of choices", load: full, change: func(row *plan.AgentRow) { row.Flags &^= plan.AgentChoices }, stops: []netip.Addr{stop4}, verdict: "decapsulated_mine"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newAcceptRig(t, test.change)
			if !test.deaf {
				r.listen(false)
			}
			r.load(test.load)
			for _, vip := range r.vips {
				out := tunnel{from: balancers[0], to: own4, hops: test.hops, gue: gueWithStops(test.next, test.stops...)}
				if test.stops[0].Is6() {
					out.from, out.to = balancers[1], own6
				}
				packet := syn(t, vip, 7, 1)
				action, frame, verdict := r.run(r.wrap(out, packet))
				want := append(r.header(0, vip), packet...)
				wantAction := uint32(xdpPass)
				if test.hop.IsValid() {
					wantAction = xdpTX
					out.to, out.gue[5], out.hops = test.hop, test.used, out.hops+1
					want = r.wrap(out, packet)
					copy(want, stopMAC)
					copy(want[6:], r.device.HardwareAddr)
				}
				if action != wantAction || verdict != test.verdict || !bytes.Equal(frame[:len(want)], want) {
					t.Errorf("%s: action %d, %s; want %d, %s\n got %x\nwant %x", vip, action, verdict, wantAction, test.verdict, frame[:len(want)], want)
				}
			}
		})
	}
}

// offered runs a SYN with one stop that is left; tells whether this server takes it.
func (r *xdpRig) offered(vip netip.Addr, port uint16, sequence uint32) bool {
	r.t.Helper()
	_, _, verdict := r.run(r.wrap(tunnel{from: balancers[0], to: own4, gue: gueWithStops(0, stop4)}, syn(r.t, vip, port, sequence)))
	if verdict != "accepted_first" && verdict != "passed_on_first" {
		r.t.Fatalf("a SYN from port %d: %s", port, verdict)
	}
	return verdict == "accepted_first"
}

// Whoever has answered a SYN gets it again, full or not: two would answer otherwise.
//
// Promise: A repeated SYN goes to the server that has its request or connection, full or not; a server that passed
// it on passes it on again, and takes it the next time.
// Promise: Until the health check of a dead candidate fails, the server that passed a SYN to it takes the SYN when
// it arrives for the third time, after 3 s; the same where its agent is dead or its accept queue is full.
func TestASYNThatComesAgainGoesWhereTheFirstWent(t *testing.T) {
	dir := progtest.Pins(t)
	r := &xdpRig{rig: newRig(t, rigOptions{plain: true})}
	r.attach(dir)
	r.prepare()
	progtest.Check(t, r.agent.SetTunnelSources(balancers, server.ForeignDropped))
	r.choose(nil)
	r.listen(false)
	r.load(roomy)
	for i, vip := range r.vips {
		client := netip.MustParseAddr([]string{"10.9.0.77", "fd09::77"}[i]) // who does not answer
		packet := synFrom(t, client, vip, 7, 1)
		r.inject(append(r.header(0, vip), packet...))
		out := tunnel{from: balancers[0], to: own4, gue: gueWithStops(0, stop4)}
		r.load(full)
		r.await("a request", func() bool {
			_, _, verdict := r.run(r.wrap(out, packet))
			return verdict == "accepted_first"
		})
		conn := r.dial(vip)
		progtest.Check(t, fetch(conn, 1))
		if !r.offered(vip, netip.MustParseAddrPort(conn.LocalAddr().String()).Port(), 1) {
			t.Errorf("%s: a SYN for a connection that lives here was passed on", vip)
		}
		conn.Close()

		if r.offered(vip, 9, 1) {
			t.Errorf("%s: a full server took a SYN", vip)
		}
		r.load(roomy)
		if r.offered(vip, 9, 1) {
			t.Errorf("%s: a SYN that was passed on before was taken when it came again", vip)
		}
		if !r.offered(vip, 9, 2) {
			t.Errorf("%s: another connection by the same port was passed on", vip)
		}
	}
	places, err := ebpf.LoadPinnedMap(dir+"/"+server.Layout+"/passed_on", nil)
	progtest.Check(t, err)
	defer places.Close()
	age := func(by time.Duration) {
		t.Helper()
		var index uint32
		var word uint64
		aged := 0
		for entries := places.Iterate(); entries.Next(&index, &word); {
			if word != 0 {
				word = word&^0xffffffff | uint64(uint32(word)-uint32(by/time.Millisecond))
				progtest.Check(t, places.Put(index, word))
				aged++
			}
		}
		if aged != len(r.vips) {
			t.Fatalf("%d SYNs are remembered", aged)
		}
	}
	r.load(full)
	age(time.Second) // it comes for the first time again
	for _, vip := range r.vips {
		if r.offered(vip, 9, 1) {
			t.Errorf("%s: a SYN was taken that another server may have answered", vip)
		}
	}
	age(2 * time.Second) // for the second time
	for _, vip := range r.vips {
		if !r.offered(vip, 9, 1) {
			t.Errorf("%s: a SYN that nobody answers was passed on for the third time", vip)
		}
	}
	age(time.Minute) // by the same ports and number: something else
	for _, vip := range r.vips {
		if r.offered(vip, 9, 1) {
			t.Errorf("%s: a full server took a SYN that is forgotten", vip)
		}
	}
}

// The reference is package acceptance.
func TestTheDynamicLimitIsThatOfTheReference(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for range 4 {
		window, margin, start := uint16(1+random.IntN(60)), uint8(random.IntN(50)), random.Uint32N(4)
		low, high := acceptance.Bounds(window, margin)
		r := newAcceptRig(t, func(row *plan.AgentRow) {
			row.Policy, row.Threshold, row.Window, row.Low, row.High = uint8(model.AcceptDynamic), start, window, low, high
		})
		r.listen(false)
		reference := map[netip.Addr]*acceptance.Dynamic{}
		for _, vip := range r.vips {
			reference[vip] = &acceptance.Dynamic{Window: window, Low: low, High: high, Limit: start}
		}
		for i := range 600 {
			vip, load := r.vips[random.IntN(2)], random.Uint32N(6)<<random.IntN(30)
			r.load(load)
			want := reference[vip].Accept(load)
			if have := r.offered(vip, uint16(i), random.Uint32()); have != want {
				t.Fatalf("attempt %d, load %d, window %d, margin %d: accepted %v, want %v", i, load, window, margin, have, want)
			}
			if have := r.agent.LimitWord(r.acceptance(vip)); have != reference[vip].Word() {
				t.Fatalf("attempt %d, window %d, margin %d: the state is %#x, want %#x", i, window, margin, have, reference[vip].Word())
			}
		}
	}
}

// The last candidate has no choice: it says nothing about how many a server should accept, and neither do SYNs that come again.
func TestOnlyDecisionsMoveTheLimit(t *testing.T) {
	r := newAcceptRig(t, func(row *plan.AgentRow) {
		row.Policy, row.Threshold, row.Window = uint8(model.AcceptDynamic), 1, 1000
	})
	r.listen(false)
	r.load(full)
	last := tunnel{from: balancers[0], to: own4, gue: gueWithStops(1, stop4)}
	for i := range uint16(10) {
		r.run(r.wrap(last, syn(t, r.vips[0], i, 1)))
		r.offered(r.vips[0], 7, 1)
	}
	if have := r.agent.LimitWord(1); have != 1<<32|1<<16 {
		t.Errorf("the state after one decision is %#x", have)
	}
}

func TestLoadIsTakenWhereItWasAskedFor(t *testing.T) {
	for name, test := range map[string]struct {
		source    model.AcceptLoad
		queue     int // connections that wait to be accepted
		live      int // connections
		word      uint32
		threshold uint32
		want      bool
	}{
		"cpu below":                {source: model.AcceptByCPU, word: 9, threshold: 10, want: true},
		"cpu above":                {source: model.AcceptByCPU, word: 10, threshold: 10},
		"connections below":        {source: model.AcceptByConnections, live: 2, threshold: 3, want: true},
		"connections above":        {source: model.AcceptByConnections, live: 3, threshold: 3},
		"connections, corrected":   {source: model.AcceptByConnections, live: 1, word: 2, threshold: 3},
		"connections, fewer":       {source: model.AcceptByConnections, live: 3, word: 0xffffffff, threshold: 3, want: true},
		"connections, less than 0": {source: model.AcceptByConnections, word: 0xffffff00, threshold: 1, want: true},
		"backlog below":            {source: model.AcceptByBacklog, queue: 2, threshold: 3, word: 1000, want: true},
		"backlog above":            {source: model.AcceptByBacklog, queue: 3, threshold: 3},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAcceptRig(t, func(row *plan.AgentRow) { row.Load, row.Threshold = uint8(test.source), test.threshold })
			r.countLive()
			r.load(test.word)
			for _, vip := range r.vips {
				listener := r.listener(vip, net.ListenConfig{KeepAlive: -1})
				if test.queue == 0 {
					r.serve(listener)
				}
				for range test.queue + test.live {
					conn := r.dial(vip)
					defer conn.Close()
					if test.queue == 0 {
						progtest.Check(t, fetch(conn, 1))
					}
				}
				counted := r.awaitLive(r.acceptance(vip), int64(test.queue+test.live)) // the last ACK of a handshake may be under way
				r.load(test.word + uint32(int64(test.queue+test.live)-counted))        // as an agent corrects what the kernel did not count
				if have := r.offered(vip, 7, 1); have != test.want {
					t.Errorf("%s: accepted %v", vip, have)
				}
			}
		})
	}
}

// Stops are for load balancers of the fleet: nobody else has a server send packets on, whatever is done about the tunnels of others.
//
// Promise: A server does not follow stops from an address of no load balancer, and keeps the packet.
func TestStrangersStopsAreNotFollowed(t *testing.T) {
	for _, limit := range []server.TunnelLimit{server.TunnelsOfAnybody, server.ForeignNoted, server.ForeignDropped} {
		r := newAcceptRig(t, nil)
		r.listen(false)
		r.load(full)
		progtest.Check(t, r.agent.SetTunnelSources(balancers, limit))
		for _, vip := range r.vips {
			for i, from := range []string{"10.9.0.1", "10.9.0.66", "fd09::1", "fd09::66", "::"} {
				out := tunnel{from: netip.MustParseAddr(from), to: own4, gue: gueWithStops(0, stop4)}
				if out.from.Is6() {
					out.to, out.gue = own6, gueWithStops(0, stop6)
				}
				for flags, kept := range map[string]string{"S": "accepted_first", "A": "decapsulated_last"} {
					want, wantAction := kept, uint32(xdpPass)
					if i%2 == 0 && i < 4 {
						want, wantAction = map[string]string{"S": "passed_on_first", "A": "handed_on"}[flags], xdpTX
					} else if limit == server.ForeignDropped {
						want, wantAction = "dropped_foreign_source", xdpDrop
					}
					if action, _, verdict := r.run(r.wrap(out, inner(t, vip, servicePort, 7, flags, 0))); action != wantAction || verdict != want {
						t.Errorf("limit %d, %s from %s: action %d, %s; want %s", limit, flags, from, action, verdict, want)
					}
				}
			}
		}
	}
}

// However a load balancer's stops are, each hop takes one of them: a packet is sent on no more often than it has stops.
//
// Promise: Stops forged from a load balancer's address send a packet to known servers alone, and to each once.
func TestAPacketEndsWithItsStops(t *testing.T) {
	const most = 5 // STOPS_MAX
	r := newAcceptRig(t, nil)
	r.listen(false)
	r.load(full)
	for _, next := range []int{0, 1, 4, 5, 6, 255} {
		for count := range 256 {
			gue := gueWithStops(byte(next), slices.Repeat([]netip.Addr{stop4}, min(max(count, 1), most))...)
			gue[6] = byte(count)
			frame := r.wrap(tunnel{from: balancers[0], to: own4, gue: gue}, syn(t, r.vips[0], 7, 1))
			action, hops := uint32(xdpTX), 0
			for action == xdpTX {
				var verdict string
				if action, frame, verdict = r.run(frame); action == xdpTX {
					hops++ // and back: in a circle, as if the next one were this server
					copy(frame, r.device.HardwareAddr)
					copy(frame[30:34], own4.AsSlice())
				}
				if hops > max(0, min(count, most)-next) {
					t.Fatalf("next %d, count %d: it goes in a circle: %s", next, count, verdict)
				}
			}
		}
	}
}

// Promise: In a SYN flood no map of `choices` grows, and the dynamic limit stays within the load, in which SYNs do
// not count.
func TestASYNFloodMovesTheLimitNoFurtherThanTheLoad(t *testing.T) {
	const window, windows = 50, 20
	r := newAcceptRig(t, func(row *plan.AgentRow) {
		row.Policy, row.Threshold, row.Window = uint8(model.AcceptDynamic), 1, window
		row.Low, row.High = acceptance.Bounds(window, 10)
	})
	r.listen(false)
	r.load(full)
	for i := range uint32(window * windows) {
		r.offered(r.vips[0], uint16(i), i)
	}
	if limit, err := r.agent.Limit(1); err != nil || limit < full-10 || limit > full+1 {
		t.Errorf("the limit is %d with a load of %d, %v", limit, full, err)
	}
	for _, name := range r.agent.MapsOfAcceptance() {
		if name.Type() != ebpf.Array {
			t.Errorf("%s can grow", name)
		}
	}
}

// The kernel has one socket for all QUIC connections of a server, so an agent cannot know whether one of them is here: it keeps every datagram.
// That is why dispatch choices is refused for affinity quic.
func TestADatagramIsNeverHandedOn(t *testing.T) {
	r := newAcceptRig(t, nil)
	wanted, err := plan.NewAgent(r.fleet, func(*model.Server) bool { return true })
	progtest.Check(t, err)
	for key, row := range maps.Clone(wanted.Served) {
		key.Protocol = uint8(layers.IPProtocolUDP)
		row.Flags |= plan.AgentChoices
		wanted.Served[key] = row
	}
	_, err = r.agent.Serve(wanted.Served)
	progtest.Check(t, err)
	for _, vip := range r.vips {
		client := balancers[0]
		if vip.Is6() {
			client = balancers[1]
		}
		ip, udp := ipLayer(client, vip, layers.IPProtocolUDP, 0), &layers.UDP{SrcPort: 7, DstPort: servicePort}
		progtest.Check(t, udp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)))
		frame := r.wrap(tunnel{from: balancers[0], to: own4, gue: gueWithStops(0, stop4)}, build(t, ip, udp, gopacket.Payload("\xc0\x00\x00\x00\x01")))
		if action, _, verdict := r.run(frame); action != xdpPass || verdict != "decapsulated_mine" {
			t.Errorf("%s: action %d, %s", vip, action, verdict)
		}
	}
}
