package replication

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/frametest"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/machine/replica"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// verdicts are what a node has counted, by name.
func (h *host) verdicts() map[string]uint64 {
	h.Helper()
	names, err := lb.VerdictNames()
	if err != nil {
		h.Fatal(err)
	}
	all := map[string]uint64{}
	places := append(slices.Collect(maps.Values(h.tables.Places())), plan.Place{})
	for _, place := range places {
		traffic, err := h.path.VerdictTraffic(place)
		if err != nil {
			h.Fatal(err)
		}
		for i, t := range traffic {
			all[names[i]] += t.Packets
		}
	}
	return all
}

// counted fails unless do makes a node count exactly one packet, with a verdict.
func (h *host) counted(what, verdict string, do func()) {
	h.Helper()
	before := h.verdicts()
	do()
	after := h.verdicts()
	for name, packets := range after {
		want := before[name]
		if name == verdict {
			want++
		}
		if packets != want {
			h.Errorf("%s: %d packets of %s, want %d", what, packets-before[name], name, want-before[name])
		}
	}
}

// newRing makes hosts 1 to n, on a ring of version 1 with chains of length nodes.
func newRing(t testing.TB, n, length int) (hosts map[uint16]*host) {
	t.Helper()
	hosts = map[uint16]*host{}
	var ids []uint16
	for id := uint16(1); id <= uint16(n); id++ {
		hosts[id] = newHost(t, id, n)
		ids = append(ids, id)
	}
	view := viewOf(1, length, ids...)
	for _, h := range hosts {
		h.Publish(view)
	}
	return hosts
}

// viewOf is a ring with even distances.
func viewOf(version uint32, length int, ids ...uint16) replica.View {
	view := replica.View{Version: version, List: ring.Even(ids, version)}
	for arc := range view.List {
		var chain []uint16
		for _, member := range (ring.Chains{Length: length}).OfArc(view.List, arc) {
			chain = append(chain, member.Node)
		}
		view.Chains, view.Since = append(view.Chains, chain), append(view.Since, version)
	}
	return view
}

// chainOf is that of a connection.
func (h *host) chainOf(c connection, view replica.View) []uint16 {
	return view.Chains[view.List.Arc(c.key(&h.want.Keys).Position())]
}

// connectionOf is one of a protocol whose chain begins with head.
func connectionOf(h *host, view replica.View, protocol model.Protocol, head uint16) connection {
	for n := 0; ; n++ {
		if c := anyConnection(n); c.protocol == protocol && h.chainOf(c, view)[0] == head {
			return c
		}
	}
}

// deliverAll runs what is sent from one node to the next until it reaches a server, or is lost.
func deliverAll(hosts map[uint16]*host, out sent) (server uint16, hops int) {
	for out.message.Kind != 0 {
		out = hosts[out.to].run(out.frame)
		hops++
	}
	return out.server, hops
}

func TestOnlyGenuineMessagesOfTheFleetAreTaken(t *testing.T) {
	hosts := newRing(t, 4, 2)
	view := viewOf(1, 2, 1, 2, 3, 4)
	c := connectionOf(hosts[1], view, model.ProtocolUDP, 2)
	out := hosts[1].run(c.frame(0))
	if out.message.Kind != peermessage.Write || out.to != 2 {
		t.Fatalf("%+v", out)
	}
	head := hosts[2]
	entries := func() int {
		table, _ := head.path.ReplicaTables()
		return table.Count()
	}
	at := 14 + 28 + peermessage.GUELength
	drops := func(what, verdict string, frame []byte) {
		t.Helper()
		head.counted(what, verdict, func() {
			if did := head.run(frame); did.frame != nil {
				t.Errorf("%s: sent %x", what, did.frame)
			}
		})
	}
	for bit := range 8 * (peermessage.Length - 1) { // the type of private data comes first: another one is nothing of ours
		forged := slices.Clone(out.frame)
		forged[at+1+bit/8] ^= 1 << (bit % 8)
		drops(fmt.Sprintf("bit %d", bit), "dropped_forged", forged)
	}
	key := c.key(&head.want.Keys)
	k0, k1 := plan.PeerKey(head.want.Keys.Cookie[3])
	with := func(k peermessage.Key, connection uint64, to uint16) []byte {
		return slices.Concat(out.frame[:14+28], out.message.Append(nil, k, connection, to, false), out.inner())
	}
	genuine := peermessage.Key{K0: k0, K1: k1, Epoch: 3}
	for what, forged := range map[string][]byte{
		"another receiver":            with(genuine, uint64(key), 3),
		"another connection":          with(genuine, uint64(key)+1, 2),
		"another key":                 with(peermessage.Key{K0: k0 + 1, K1: k1, Epoch: 3}, uint64(key), 2),
		"an epoch that nobody has":    with(peermessage.Key{K0: k0, K1: k1, Epoch: 2}, uint64(key), 2),
		"without the packet":          slices.Clone(out.frame[:at+peermessage.Length]),
		"the packet of somebody else": slices.Concat(out.frame[:at+peermessage.Length], ipv4(c.client.Addr().Next(), c.service.Addr(), 17, out.inner()[20:])),
	} {
		if what == "without the packet" { // its lengths say so, too
			binary.BigEndian.PutUint16(forged[16:], uint16(len(forged)-14))
			binary.BigEndian.PutUint16(forged[14+24:], uint16(len(forged)-14-20))
		}
		drops(what, "dropped_forged", forged)
	}
	if entries() != 0 {
		t.Fatalf("%d entries by forged messages", entries())
	}
	for length := 14 + 28 + 1; length < len(out.frame); length++ {
		if action, _ := frametest.Run(t, head.path.Program(), out.frame[:length]); action == frametest.TX {
			t.Errorf("the first %d bytes are sent on", length)
		}
	}
	if entries() != 0 {
		t.Fatalf("%d entries by truncated messages", entries())
	}
	first := head.run(out.frame)
	if again := head.run(out.frame); first.message.Kind != peermessage.Write || again.message.Owner != first.message.Owner || entries() != 1 {
		t.Errorf("repeated: %+v, then %+v; %d entries", first.message, again.message, entries())
	}
}

func TestAPingIsAnsweredToWhereItCameFrom(t *testing.T) {
	h := newRing(t, 2, 1)[1]
	h.Publish(viewOf(1<<16+2, 1, 1, 2))
	k0, k1 := plan.PeerKey(h.want.Keys.Cookie[3])
	key := peermessage.Key{K0: k0, K1: k1, Epoch: 3}
	ping := func(m peermessage.Message, to uint16) []byte {
		udp := make([]byte, 8)
		binary.BigEndian.PutUint16(udp, 40000)
		binary.BigEndian.PutUint16(udp[2:], peermessage.Port)
		udp = append(udp, m.Append(nil, key, 0, to, false)...)
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		return slices.Concat(nodeMAC[:], routerMAC[:], []byte{8, 0}, ipv4(nodeAddress(2), nodeAddress(1), 17, udp))
	}
	m := peermessage.Message{Kind: peermessage.Ping, Forwarder: 2, Chain: 77}
	action, out := frametest.Run(t, h.path.Program(), ping(m, 1))
	if action != frametest.TX {
		t.Fatal(action)
	}
	answer, ok := peermessage.Parse(out[14+28:])
	known := func(uint32) (peermessage.Key, bool) { return key, true }
	if want := (peermessage.Message{Kind: peermessage.Pong, Forwarder: 2, Last: 1, Owner: 1, Proposed: 2, Chain: 77}); !ok || answer != want || !peermessage.IsGenuine(out[14+28:], known, 0, 2) {
		t.Errorf("%+v", answer)
	}
	if got := [...]any{[6]byte(out[:6]), [6]byte(out[6:12]), netip.AddrFrom4([4]byte(out[26:30])), netip.AddrFrom4([4]byte(out[30:34])), binary.BigEndian.Uint16(out[34:]), binary.BigEndian.Uint16(out[36:])}; got !=
		[...]any{routerMAC, nodeMAC, nodeAddress(1), nodeAddress(2), uint16(peermessage.Port), uint16(40000)} {
		t.Errorf("%v", got)
	}
	h.counted("a ping for another node", "dropped_forged", func() {
		if did := h.run(ping(m, 2)); did.frame != nil {
			t.Error("it is answered")
		}
	})
}

// Who can read what load balancers send each other can send it again, later.
func TestAnOldAnswerDoesNotReplaceWhatIsKnownNow(t *testing.T) {
	hosts := newRing(t, 4, 2)
	view := viewOf(1, 2, 1, 2, 3, 4)
	for n := range 200 {
		c := anyConnection(n)
		if slices.Contains(hosts[1].chainOf(c, view), 1) {
			continue
		}
		var old []byte
		out := hosts[1].run(c.frame(syn))
		for out.message.Kind != 0 {
			if out.to == 1 {
				old = slices.Clone(out.frame)
			}
			out = hosts[out.to].run(out.frame)
		}
		is := out.server
		for range 64 { // by turns it gets another server, unless another CPU runs the program, which has turns of its own
			for _, h := range hosts { // the connection has ended, and been forgotten
				entries, answers := h.path.ReplicaTables()
				emptied(t, entries)
				emptied(t, answers)
			}
			if is, _ = deliverAll(hosts, hosts[1].run(c.frame(syn))); is != out.server {
				break
			}
		}
		hosts[1].run(old)
		if now, hops := deliverAll(hosts, hosts[1].run(c.frame(ack))); is == out.server || now != is || hops != 0 {
			t.Fatalf("server %d, then %d; after the old answer %d, by %d others", out.server, is, now, hops)
		}
		return
	}
	t.Fatal("load balancer 1 is in all chains")
}

func TestErrorsAndResetsMakeNoEntries(t *testing.T) {
	hosts := newRing(t, 4, 2)
	view := viewOf(1, 2, 1, 2, 3, 4)
	c := connectionOf(hosts[1], view, model.ProtocolTCP, 2)
	entries := func() (n int) {
		for _, h := range hosts {
			table, _ := h.path.ReplicaTables()
			n += table.Count()
		}
		return n
	}
	out := hosts[1].run(c.frame(rst))
	if out.message.Kind != peermessage.WhoOwns || out.message.Flags&peermessage.Lookup == 0 {
		t.Fatalf("a RST asks %+v", out.message)
	}
	if server, _ := deliverAll(hosts, out); server == 0 || entries() != 0 {
		t.Errorf("a RST of nobody's connection: to server %d, %d entries", server, entries())
	}
	began, hops := deliverAll(hosts, hosts[1].run(c.frame(syn)))
	if began == 0 || hops > 3 || entries() != 2 {
		t.Fatalf("its SYN went to server %d after %d hops, %d entries", began, hops, entries())
	}
	if server, _ := deliverAll(hosts, hosts[4].run(c.frame(rst))); server != began {
		t.Errorf("a RST by another load balancer went to server %d, not %d", server, began)
	}
	quote := ipv4(c.service.Addr(), c.client.Addr(), 6, append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, c.service.Port()), c.client.Port()), make([]byte, 16)...))
	unreachable := slices.Concat(nodeMAC[:], routerMAC[:], []byte{8, 0}, ipv4(netip.MustParseAddr("192.0.2.1"), c.service.Addr(), 1, append([]byte{3, 4, 0, 0, 0, 0, 5, 0x14}, quote...)))
	binary.BigEndian.PutUint16(unreachable[14+20+2:], checksum(unreachable[14+20:]))
	if server, _ := deliverAll(hosts, hosts[3].run(unreachable)); server != began {
		t.Errorf("an error of the path went to server %d, not %d", server, began)
	}
	if entries() != 2 {
		t.Errorf("%d entries", entries())
	}
}

func checksum(text []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(text); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(text[i:]))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func TestAPacketThatDoesNotFitAMessageIsAnsweredAndOneOfAKnownConnectionGoes(t *testing.T) {
	hosts := newRing(t, 4, 2)
	view := viewOf(1, 2, 1, 2, 3, 4)
	c := connectionOf(hosts[1], view, model.ProtocolUDP, 2)
	big := func(length int) []byte {
		frame := slices.Concat(c.frame(0), make([]byte, length-len(c.frame(0))+14))
		binary.BigEndian.PutUint16(frame[16:], uint16(length))
		frame[20] = 0x40 // do not fragment
		binary.BigEndian.PutUint16(frame[14+24:], uint16(length-20))
		binary.BigEndian.PutUint16(frame[24:], 0)
		binary.BigEndian.PutUint16(frame[24:], checksum(frame[14:34]))
		return frame
	}
	const room = 1500 - 20 - 8 - peermessage.GUELength - peermessage.Length
	if out := hosts[1].run(big(room)); out.message.Kind != peermessage.Write {
		t.Fatalf("what fits: %+v", out)
	}
	var answer []byte
	hosts[1].counted("what does not fit", "answered_too_big", func() { _, answer = frametest.Run(t, hosts[1].path.Program(), big(room+1)) })
	if icmp := answer[34:]; icmp[0] != 3 || icmp[1] != 4 || int(binary.BigEndian.Uint16(icmp[6:])) != room {
		t.Errorf("answered by %x", icmp[:8])
	}
	server, _ := deliverAll(hosts, hosts[1].run(c.frame(0)))
	hosts[1].Period(9) // it has to be asked again
	if out := hosts[1].run(big(room + 1)); out.server != server {
		t.Errorf("of a known connection: %+v, not to server %d", out, server)
	}
	if out := hosts[1].run(c.frame(0)); out.message.Kind != peermessage.Write || out.message.Owner != server {
		t.Errorf("the next: %+v", out)
	}
}

func TestBetweenTwoViewsOnlyAnswersCount(t *testing.T) {
	h := newHost(t, 1, 3)
	view := viewOf(1, 1, 1, 2, 3)
	own := connectionOf(h, view, model.ProtocolUDP, 1)
	if out := h.run(own.frame(0)); out.server == 0 {
		t.Fatalf("without a ring: %+v", out)
	}
	h.path.SetRing(true)
	h.counted("a ring that is not known yet", "dropped_other_view", func() {
		if out := h.run(own.frame(0)); out.frame != nil {
			t.Errorf("%+v", out)
		}
	})
	others := h.want.Replicas
	h.want.Replicas = plan.Replicas{}
	h.apply()
	h.counted("a ring that does not know this load balancer", "dropped_other_view", func() {
		if out := h.run(own.frame(0)); out.frame != nil {
			t.Errorf("%+v", out)
		}
	})
	h.want.Replicas = others
	h.apply()
	h.Publish(view)
	server := h.run(own.frame(0)).server
	asked := connectionOf(h, view, model.ProtocolUDP, 2)
	_, answers := h.path.ReplicaTables()
	if _, ok, err := answers.Insert(replicas.Entry{Key: uint64(asked.key(&h.want.Keys)), Owner: 4, Period: h.path.ReplicaPeriod(), Flags: replicas.Cacheable}); !ok || err != nil {
		t.Fatal(err)
	}
	h.Publish(replica.View{})
	if out := h.run(asked.frame(0)); out.server != 4 {
		t.Errorf("a fresh answer: %+v", out)
	}
	h.counted("an entry", "dropped_other_view", func() {
		if out := h.run(own.frame(0)); out.frame != nil {
			t.Errorf("an entry: %+v", out)
		}
	})
	h.Period(5)
	if out := h.run(asked.frame(0)); out.server != 4 {
		t.Errorf("an answer of a period before: %+v", out)
	}
	h.Publish(view)
	if again := h.run(own.frame(0)).server; again != server {
		t.Errorf("then server %d, not %d", again, server)
	}
}

// Of two packets of a new connection that two load balancers take at the same moment, both go to one server.
func TestOneConnectionOnAllLoadBalancersAtOnceHasOneServer(t *testing.T) {
	s := seed(t)
	random := rand.New(rand.NewPCG(s, 0))
	hosts := newRing(t, 3, 2)
	for round := range 300 {
		c := anyConnection(random.IntN(1 << 16))
		servers := make([]uint16, 6)
		var start, all sync.WaitGroup
		start.Add(1)
		for i := range servers {
			all.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				start.Wait()
				servers[i], _ = deliverAll(hosts, hosts[uint16(1+i%3)].run(c.frame(syn)))
			})
		}
		start.Done()
		all.Wait()
		if slices.Sort(servers); servers[0] == 0 || servers[0] != servers[5] {
			t.Fatalf("round %d: servers %v", round, servers)
		}
	}
}

// With fallback: replicated others are asked about what carries nothing, and about nothing else.
func TestOnlyWhatCarriesNothingIsAskedAboutAsAFallback(t *testing.T) {
	h := newHost(t, 1, 3)
	view := viewOf(1, 1, 1, 2, 3)
	h.Publish(view)
	tcp, udp := connectionOf(h, view, model.ProtocolTCP, 2), connectionOf(h, view, model.ProtocolUDP, 2)
	with := func(affinity model.Affinity, service int) {
		s := &h.want.Services[service]
		s.Affinity, s.Fallback, s.CookieBits = affinity, model.FallbackReplicated, 14
		if affinity == model.AffinityQUIC {
			s.QUIC = model.QUIC{Algorithm: model.QUICPlain, ServerIDLength: 2, NonceLength: 6}
		}
		if affinity == model.AffinityTable {
			s.Table = model.Table{Entries: 64, IndexBits: 6, IdleTimeout: model.Duration(60e9)}
		}
		h.apply()
	}
	asks := func(what string, frame []byte, asked bool) {
		t.Helper()
		if out := h.run(frame); (out.message.Kind != 0) != asked {
			t.Errorf("%s: %+v", what, out)
		}
	}
	timestamped := func(flags byte) []byte {
		c := tcp
		c.client = netip.AddrPortFrom(c.client.Addr(), c.client.Port()+1)
		plain := c.frame(flags)
		frame := append(plain, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0)
		binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
		frame[14+20+12] = 8 << 4
		return frame
	}
	for _, affinity := range []model.Affinity{model.AffinityCookie, model.AffinityTable} {
		with(affinity, 1)
		asks(fmt.Sprint(affinity, ": SYN without timestamps"), tcp.frame(syn), true)
		asks(fmt.Sprint(affinity, ": ACK without timestamps"), tcp.frame(ack), true)
		asks(fmt.Sprint(affinity, ": RST without timestamps"), tcp.frame(rst), true)
		asks(fmt.Sprint(affinity, ": SYN with timestamps"), timestamped(syn), false)
	}
	with(model.AffinityQUIC, 0)
	asks("no QUIC", udp.frame(0), true)
	initial := udp.frame(0)
	copy(initial[14+28:], []byte{0xc3, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6})
	asks("QUIC that cannot be read", initial, true)
}
