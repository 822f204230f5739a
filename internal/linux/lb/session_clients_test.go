package lb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// ticketHello shows a name as TLS 1.2 shows tickets (RFC 5077 3.2).
func ticketHello(name []byte) []byte {
	hello := clientHello(nil)
	last := hello[len(hello)-40:] // an extension of 36 bytes
	last[1] = 35
	copy(last[4:], name)
	return hello
}

// sessionIDHello shows a name as the session id; random bytes are what TLS 1.3 clients show there.
func sessionIDHello(name []byte) []byte {
	hello := clientHello(nil)
	copy(hello[44:], name)
	return hello
}

// resume shakes hands from an address, shows a hello, and says which server it goes to.
func (w *world) resume(client netip.AddrPort, vip netip.Addr, hello []byte) (server, fallback uint16) {
	w.Helper()
	s := &shake{world: w, name: "web", flow: flow{client, netip.AddrPortFrom(vip, 443)}, sequence: anySequence()}
	first, frame := w.handshake(s, hello)
	server = w.sent(frame)
	return server, first.fallback()
}

// handshake returns what was begun, and the frame with the hello.
func (w *world) handshake(s *shake, hello []byte) (*shake, []byte) {
	w.Helper()
	b := s.flow.tcp(syn, synOptions(), nil)
	binary.BigEndian.PutUint32(b[4:], s.sequence)
	b[16], b[17] = 0, 0
	setTransportChecksum(b, 16, s.flow.client.Addr(), s.flow.service.Addr(), 6)
	out := ebpf.RunOptions{Data: s.flow.frame(b), DataOut: make([]byte, 512)}
	if action, err := w.lb.Program().Run(&out); err != nil || action != xdpTX {
		w.Fatalf("a SYN: action %d, %v", action, err)
	}
	answer := out.DataOut[len(out.DataOut)-len(b):] // of the same length: it has the same options
	s.reply.Seq = binary.BigEndian.Uint32(answer[4:])
	at := bytes.Index(answer[20:], []byte{8, 10})
	s.value = binary.BigEndian.Uint32(answer[20+at+2:])
	return s, s.echoing(0, hello)
}

// sent is the server that a frame goes to.
func (w *world) sent(frame []byte) uint16 {
	w.Helper()
	out := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	if action, err := w.lb.Program().Run(&out); err != nil || action == xdpDrop {
		w.Fatalf("a hello: action %d, %v", action, err)
	}
	return uint16(out.DataOut[5]) // of the MAC: testPath
}

func (w *world) hellos() map[string]uint64 {
	w.Helper()
	names, err := SessionOutcomes()
	progtest.Check(w, err)
	counts, err := w.lb.Hellos(w.tables.Places()["web"])
	progtest.Check(w, err)
	out := map[string]uint64{}
	for i, n := range counts {
		if n > 0 {
			out[names[i]] = n
		}
	}
	return out
}

// randomName is one that a server has issued.
func (w *world) randomName(vip netip.Addr, id uint16) []byte {
	name := sessionid.Seal(plan.SessionIDKey(w.want.Keys.Cookie[1], vip), rand.Uint64(), id)
	return name[:]
}

func limitedTo(clients uint8) func(*model.Service) {
	return func(s *model.Service) { s.Session, s.SessionClients = model.SessionTLS, clients }
}

// numbered is the n-th address, of IPv6 the n-th network.
func numbered(vip netip.Addr, n int) netip.AddrPort {
	if vip.Is4() {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, byte(64 + n>>16), byte(n >> 8), byte(n)}), 40000)
	}
	a := client6.As16()
	binary.BigEndian.PutUint32(a[4:], uint32(n))
	return netip.AddrPortFrom(netip.AddrFrom16(a), 40000)
}

// The attack of Yuz V-B: one ticket, shown by many clients. Others do not notice.
//
// Promise: The first 16 clients that show one ticket within 9 minutes reach its server and stay; others go by the
// policy, at each load balancer (`session_clients`).
// Also held by TestLimitsOfSessionsAreThoseOfTheReference and TestTheLimitHoldsWhenCPUsRace.
// Promise: When a stolen ticket is shown from 16 addresses, the session goes on from the first address, and from
// others of the last 9 minutes; from further ones it begins again at another server.
// Also held by TestASessionsClientsButTheFirstAreForgottenAfterTheWindow.
func TestOneSessionFromManyClientsIsLimited(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, limitedTo(16)))
		stolen, attackers, honest := w.randomName(vip, 2), 10000, 0
		if testing.Short() {
			attackers = 3000
		}
		var own [][]byte // of honest clients, of servers 1, 2, 3, 1 ...; each is shown from two addresses, long after one another
		elsewhere := map[uint16]int{}
		for n := range attackers {
			server, fallback := w.resume(numbered(vip, n), vip, clientHello(stolen))
			switch {
			case n < 16 && server != 2:
				t.Fatalf("%v: client %d, one of the first, goes to server %d", vip, n, server)
			case n >= 16 && server != fallback:
				t.Fatalf("%v: client %d goes to server %d, and the policy's is %d", vip, n, server, fallback)
			case n >= 16:
				elsewhere[server]++
			}
			if n%11 != 0 { // 13 SYNs in a turn: no multiple of the servers
				continue
			}
			own = append(own, w.randomName(vip, uint16(1+len(own)%3)))
			for _, at := range []int{len(own) - 1, len(own) / 2} {
				id := uint16(1 + at%3)
				if server, _ := w.resume(numbered(vip, 100000+n+at), vip, clientHello(own[at])); server != id {
					t.Fatalf("%v: a session of server %d goes to server %d", vip, id, server)
				}
				honest++
			}
		}
		for n := range 16 { // who was there first stays
			if server, _ := w.resume(numbered(vip, n), vip, clientHello(stolen)); server != 2 {
				t.Errorf("%v: client %d goes to server %d, and went to server 2 before", vip, n, server)
			}
		}
		want := map[string]uint64{"resumed": uint64(honest + 32), "limited": uint64(attackers - 16)}
		if got := w.hellos(); !maps.Equal(got, want) {
			t.Errorf("%v: %v, not %v", vip, got, want)
		}
		for id := uint16(1); id <= 3; id++ { // rr deals evenly
			if elsewhere[id] < (attackers-16)/3-100 {
				t.Errorf("%v: of the others go to servers: %v", vip, elsewhere)
			}
		}
	}
}

// What a limited session may do, without regard to speed or memory.
//
// Promise: Each ticket of one server brings at most 16 clients to it, so that an attacker needs one connection for
// every 16 machines; after the key is rotated and dropped, old tickets name no server.
func TestLimitsOfSessionsAreThoseOfTheReference(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for _, limit := range []uint8{0, 1, 5, model.MaxSessionClients} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := newWorld(t, serviceOf("web", vip, limitedTo(limit)))
			var names [][]byte
			for range 12 {
				names = append(names, w.randomName(vip, uint16(1+r.IntN(3))))
			}
			known := map[string]map[netip.Addr]bool{}
			for range 600 {
				name, client := names[min(r.IntN(20), len(names)-1)], numbered(vip, r.IntN(60))
				network := client.Addr()
				if vip.Is6() { // any host of it
					prefix, _ := network.Prefix(64)
					host := network.As16()
					binary.BigEndian.PutUint64(host[8:], r.Uint64())
					network, client = prefix.Addr(), netip.AddrPortFrom(netip.AddrFrom16(host), 40000)
				}
				clients := known[string(name)]
				if clients == nil {
					clients = map[netip.Addr]bool{}
					known[string(name)] = clients
				}
				id, ok := sessionid.Open(plan.SessionIDKey(w.want.Keys.Cookie[1], vip), [16]byte(name))
				if !ok {
					t.Fatal("a name of ours does not open")
				}
				before := w.hellos()
				hello := [](func([]byte) []byte){clientHello, ticketHello, sessionIDHello}[r.IntN(3)](name)
				server, fallback := w.resume(client, vip, hello)
				outcome, want := "resumed", id
				if limit != 0 && !clients[network] && len(clients) >= int(limit) {
					outcome, want = "limited", fallback
				} else {
					clients[network] = true
				}
				if after := w.hellos(); server != want || after[outcome] != before[outcome]+1 {
					t.Fatalf("seed %d, limit %d, client %v of %d: to server %d, not %d; %v, then %v", seed, limit, client, len(clients), server, want, before, after)
				}
			}
		}
	}
}

// setOf is where the data path remembers a name: mix64.
func setOf(name []byte, service uint32) uint32 {
	x := binary.NativeEndian.Uint64(name) ^ uint64(service)
	for range 2 {
		x = (x ^ x>>32) * 0xd6e8feb86659fd93
	}
	return uint32(x^x>>32) % 8192
}

// An attacker with many tickets cannot make the load balancer forget how many clients have shown one.
//
// Promise: Tickets that few clients have shown are forgotten first: to displace one, an attacker needs four others
// of as many clients that share its place among 8,192.
func TestNamesThatFewClientsShowAreForgottenFirst(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, limitedTo(4)))
	number := w.tables.Places()["web"].Number
	stolen := w.randomName(vip4, 2)
	same := func() []byte { // another name in the same place
		for {
			if name := w.randomName(vip4, 1); setOf(name, number) == setOf(stolen, number) {
				return name
			}
		}
	}
	shown := 0
	show := func(name []byte, id uint16) bool {
		server, fallback := w.resume(numbered(vip4, shown), vip4, clientHello(name))
		if shown++; server != id && server != fallback {
			t.Fatalf("to server %d", server)
		}
		return server == id && fallback != id
	}
	limited := func(name []byte, id uint16) bool { // the policy's server may be the same one
		for range 6 {
			if show(name, id) {
				return false
			}
		}
		return true
	}
	for range 4 {
		show(stolen, 2)
	}
	for range 20 {
		show(same(), 1)
	}
	if !limited(stolen, 2) {
		t.Error("20 names of one client each make it forget one of four")
	}
	other := same()
	first, second := show(other, 1), show(other, 1)
	if first == second && limited(other, 1) {
		t.Error("a name that was shown twice is limited")
	}
}

// The window of a name ends, whatever was shown meanwhile; whose session it is does not have to be quicker than an attacker then.
func TestASessionsClientsButTheFirstAreForgottenAfterTheWindow(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, limitedTo(2)))
	name, number := w.randomName(vip4, 2), w.tables.Places()["web"].Number
	set := setOf(name, number)
	progtest.Check(t, w.lb.objects.SessionSets.Put(set, lbSessionSet{})) // what other tests have left behind
	goes := func(n int, want string) {
		t.Helper()
		before := w.hellos()
		w.resume(numbered(vip4, n), vip4, clientHello(name))
		if after := w.hellos(); after[want] != before[want]+1 {
			t.Errorf("client %d: %v, then %v, not %s", n, before, after, want)
		}
	}
	older := func(units uint16) {
		var clients lbSessionSet
		progtest.Check(t, w.lb.objects.SessionSets.Lookup(set, &clients))
		changed := 0
		for i, word := range clients.Names {
			if word != 0 {
				clients.Names[i] = word&^0xffff0000 | uint64(uint16(word>>16)-units)<<16
				changed++
			}
		}
		if changed != 1 {
			t.Fatalf("%d names in the set", changed)
		}
		progtest.Check(t, w.lb.objects.SessionSets.Put(set, clients))
	}
	goes(1, "resumed")
	goes(2, "resumed")
	goes(3, "limited")
	older(62)
	goes(3, "limited")
	older(2)
	goes(3, "resumed")
	goes(4, "limited")
	goes(2, "limited")
	goes(1, "resumed") // the first of all stays
	goes(3, "resumed")
}

// CPUs that see the same session at once let no more through than there are of them.
func TestTheLimitHoldsWhenCPUsRace(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, limitedTo(8)))
	name := w.randomName(vip4, 2)
	frames := make([][]byte, 400)
	for n := range frames {
		s := &shake{world: w, name: "web", flow: flow{numbered(vip4, n), netip.AddrPortFrom(vip4, 443)}, sequence: anySequence()}
		_, frames[n] = w.handshake(s, clientHello(name))
	}
	var all sync.WaitGroup
	for part := range slices.Chunk(frames, len(frames)/4) {
		all.Go(func() {
			for _, frame := range part {
				if _, err := w.lb.Program().Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got := w.hellos()
	if got["resumed"] < 8 || got["resumed"] > uint64(8+ebpf.MustPossibleCPU()) || got["resumed"]+got["limited"] != 400 {
		t.Errorf("%v", got)
	}
}

// Each hello is counted once, by what it shows, and a trace says the same.
func TestHellosAreCountedAndTracedByWhatTheyShow(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, limitedTo(1)))
	w.update(func(want *plan.Want) { service(want, "web").Down = map[uint16]bool{3: true} })
	trace := w.trace(TraceFilter{}, 1000)
	names, err := SessionOutcomes()
	progtest.Check(t, err)
	mine, foreign := w.randomName(vip4, 2), bytes.Repeat([]byte{7}, 16)
	want := map[string]uint64{}
	for n, c := range []struct {
		hello             []byte
		outcome, identity string
		name              []byte
		id                uint16
		bare              bool // without timestamps
		end               byte // FIN: nothing follows
	}{
		{hello: clientHello(mine), outcome: "resumed", identity: "psk", name: mine, id: 2},
		{hello: ticketHello(mine), outcome: "limited", identity: "ticket", name: mine, id: 2},
		{hello: sessionIDHello(w.randomName(vip4, 1)), outcome: "resumed", identity: "session id", id: 1},
		{hello: clientHello(nil), outcome: "none"},
		{hello: sessionIDHello(foreign), outcome: "none"},
		{hello: ticketHello(foreign), outcome: "unknown", identity: "ticket", name: foreign},
		{hello: clientHello(foreign), outcome: "unknown", identity: "psk", name: foreign},
		{hello: clientHello(w.randomName(vip4, 3)), outcome: "unavailable", identity: "psk", id: 3},
		{hello: clientHello(w.randomName(vip4, 9)), outcome: "unavailable", identity: "psk", id: 9},
		{hello: clientHello(mine), outcome: "untimed", bare: true},
		{hello: clientHello(nil)[:60], outcome: "incomplete", end: fin},
		{hello: []byte("GET / HTTP/1.0\r\n\r\n"), outcome: "not_tls"},
		{hello: slices.Concat([]byte{22, 3, 1, 0, 80, 1, 0, 0, 70}, bytes.Repeat([]byte{60}, 70)), outcome: "malformed"},
	} {
		options := synOptions()
		if c.bare {
			options = nil
		}
		s := w.begin("web", flow{numbered(vip4, n), netip.AddrPortFrom(vip4, 443)}, anySequence(), 0, options)
		frame := s.echoing(0, c.hello)
		if !c.bare {
			frame = s.segment(psh|ack|c.end, 0, timestamps(77, s.value), c.hello)
		}
		w.run(frame)
		w.run(frame) // again: not another one
		want[c.outcome]++
		if got := w.hellos(); !maps.Equal(got, want) {
			t.Fatalf("%d: %v, not %v", n, got, want)
		}
		for at := range 3 { // SYN, hello, the same again
			event, err := trace.Next()
			progtest.Check(t, err)
			if at == 0 && (event.Timestamp == 0) != c.bare {
				t.Errorf("%d: a SYN with timestamp %d, bare: %t", n, event.Timestamp, c.bare)
			}
			if at != 1 {
				if event.Session != nil {
					t.Errorf("%d: packet %d is a hello: %+v", n, at, event.Session)
				}
				continue
			}
			if event.Session == nil || names[event.Session.Outcome] != c.outcome || event.Session.Identity != c.identity || event.Session.Server != c.id {
				t.Errorf("%d: %+v, not %+v", n, event.Session, c)
			} else if c.name != nil && !bytes.Equal(event.Session.Name[:], c.name[:4]) {
				t.Errorf("%d: name %x, not the beginning of %x", n, event.Session.Name, c.name)
			}
		}
	}
	progtest.Check(t, w.lb.ResetVerdictTraffic(w.tables.Places()["web"].Number))
	if got := w.hellos(); len(got) != 0 {
		t.Errorf("after a reset: %v", got)
	}
}

// One and the same name is another one for each service of the VIP: each has a limit of its own.
func TestServicesOfOneVIPLimitSessionsApart(t *testing.T) {
	other := serviceOf("other", vip4, limitedTo(1))
	other.Ports = []uint16{444}
	w := newWorld(t, serviceOf("web", vip4, limitedTo(2)), other)
	name := w.randomName(vip4, 2)
	for n := range 4 {
		w.resume(numbered(vip4, n), vip4, clientHello(name))
	}
	s := w.begin("other", flow{numbered(vip4, 9), netip.AddrPortFrom(vip4, 444)}, anySequence(), 0, synOptions())
	s.goes(s.echoing(0, clientHello(name)), lbVerdictFORWARDED_BY_SESSION)
	if got := w.hellos(); got["resumed"] != 2 || got["limited"] != 2 {
		t.Errorf("%v", got)
	}
}

// BenchmarkHellos is what a hello costs that names a session, each of a new connection: ns are those of the program alone.
func BenchmarkHellos(b *testing.B) {
	for _, limit := range []uint8{0, 16} {
		for _, names := range []int{1, 1 << 20} { // 1: all 16 clients of a session take turns
			b.Run(fmt.Sprintf("limit=%d/names=%d", limit, names), func(b *testing.B) {
				w := newWorld(b, serviceOf("web", vip4, limitedTo(limit)))
				name := w.randomName(vip4, 2)
				var spent []time.Duration
				for n := range b.N {
					if names > 1 {
						name = w.randomName(vip4, 2)
					}
					s := &shake{world: w, name: "web", flow: flow{numbered(vip4, n%16), netip.AddrPortFrom(vip4, 443)}, sequence: anySequence()}
					_, frame := w.handshake(s, clientHello(name))
					_, took, err := w.lb.Program().Benchmark(frame, 1, func() {})
					if err != nil {
						b.Fatal(err)
					}
					spent = append(spent, took)
				}
				slices.Sort(spent)
				b.ReportMetric(float64(spent[len(spent)/2]), "ns-median")
			})
		}
	}
}
