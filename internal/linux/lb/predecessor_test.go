package lb

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

var (
	oldBalancer  = netip.MustParseAddr("192.0.2.200")
	oldBalancer6 = netip.MustParseAddr("2001:db8:1::200")
)

// following has a predecessor, which keeps what share leaves.
func following(forward model.Forward, share uint16, change func(*model.Service), addresses ...netip.Addr) func(*model.Service) {
	return func(s *model.Service) {
		s.Dispatch = model.DispatchMaglev
		s.Predecessor = model.Predecessor{Addresses: addresses, Forward: forward, Share: model.ShareOf(share)}
		if change != nil {
			change(s)
		}
	}
}

// movingWorld has services of every kind that moves in.
func movingWorld(t *testing.T, more ...model.Service) *world {
	ipv6 := withServers(true, 1, 2)
	local := func(s *model.Service) { s.Affinity = model.AffinityLocal }
	return newWorld(t, append(more, serviceOf("plain", fastVIP(10), following(model.ForwardL2, 500, nil, oldBalancer)),
		serviceOf("ipip", fastVIP(11), following(model.ForwardIPIP, 1000, nil, oldBalancer)),
		serviceOf("gue", fastVIP(12), following(model.ForwardGUE, 0, func(s *model.Service) { s.Forward = model.ForwardGUE }, oldBalancer, oldBalancer.Next(), oldBalancer.Next().Next())),
		serviceOf("six", vip6, following(model.ForwardIPIP, 500, ipv6, oldBalancer6)),
		serviceOf("six-l2", plus(vip6, 1), following(model.ForwardL2, 500, ipv6, oldBalancer6, oldBalancer)),
		serviceOf("over6", fastVIP(13), following(model.ForwardIPIP, 300, ipv6, oldBalancer6)),
		serviceOf("local", fastVIP(14), following(model.ForwardL2, 500, local, oldBalancer)),
		serviceOf("udp", fastVIP(15), following(model.ForwardIPIP, 500, func(s *model.Service) { local(s); s.Protocol = model.ProtocolUDP }, oldBalancer)),
		serviceOf("allow", fastVIP(16), following(model.ForwardL2, 500, func(s *model.Service) { s.Allow = prefixes("203.0.113.0/25") }, oldBalancer)))...)
}

// Promise: With a predecessor what did not begin here goes there, by layer 2 or a tunnel, whole or in fragments, and ICMP errors of it; new connections
// by their share.
func TestWhatDidNotBeginHereGoesToThePredecessor(t *testing.T) {
	w := movingWorld(t, tableOf("table", fastVIP(17), following(model.ForwardIPIP, 500, nil, oldBalancer)))
	rapid.Check(t, func(rt *rapid.T) {
		w.TB = quiet{t, rt}
		w.age()
		for range rapid.IntRange(1, 5).Draw(rt, "packets") {
			frame := w.anyFrame(rt)
			if rapid.IntRange(0, 9).Draw(rt, "from there") == 0 {
				destination := w.want.Paths[oldBalancer].DestinationMAC
				copy(frame[6:], destination[:])
			}
			w.check(frame[:rapid.OneOf(rapid.Just(len(frame)), rapid.IntRange(14, len(frame))).Draw(rt, "cut")])
		}
	})
}

// The same frames, through the fast path.
func TestTheFastPathLeavesToThePredecessorWhatTheSlowPathDoes(t *testing.T) {
	comparePaths(t, movingWorld(t), fastKinds{cookies: []string{"plain", "ipip", "gue", "six", "over6", "allow"}})
}

// Promise: What comes from the predecessor does not go back there, and what goes there has 8 hops left at most, so that nothing goes around for ever.
func TestNothingGoesAroundByThePredecessor(t *testing.T) {
	w := movingWorld(t)
	for _, vip := range []netip.Addr{fastVIP(10), fastVIP(11), vip6, plus(vip6, 1)} {
		to := flowTo(vip, 443, 1)
		foreign := to.frame(to.tcp(ack, timestamps(1, 0), []byte("x")))
		name, hops := "", 8+14
		if vip.Is6() {
			hops = 7 + 14
		}
		for i := range w.want.Services {
			if w.want.Services[i].VIP == vip {
				name = w.want.Services[i].Name
			}
		}
		echo := w.cookieFor(name, to, 0, 1) + 1<<14 // id 0: nobody
		binary.BigEndian.PutUint32(foreign[len(foreign)-1-4:], echo)
		foreign = to.frame(to.tcp(ack, timestamps(1, echo), []byte("x")))
		w.checkVerdict(foreign, lbVerdictFORWARDED_TO_PREDECESSOR)
		for ttl, want := range map[byte]lbVerdict{0: lbVerdictDROPPED_PREDECESSOR_LOOP, 1: lbVerdictDROPPED_PREDECESSOR_LOOP, 2: lbVerdictFORWARDED_TO_PREDECESSOR,
			8: lbVerdictFORWARDED_TO_PREDECESSOR, 255: lbVerdictFORWARDED_TO_PREDECESSOR} {
			frame := slices.Clone(foreign)
			if frame[hops] = ttl; !vip.Is6() {
				frame[24], frame[25] = 0, 0
				binary.BigEndian.PutUint16(frame[24:], ^foldSum(frame[14:34]))
			}
			w.checkVerdict(frame, want)
		}
		back := slices.Clone(foreign)
		mac := w.want.Paths[service(&w.want, name).Predecessor.Addresses[0]].DestinationMAC
		copy(back[6:], mac[:])
		if name != "six-l2" {
			w.checkVerdict(back, lbVerdictDROPPED_PREDECESSOR_LOOP)
		}
	}
}

// Promise: Where a table remembers connections, one stays at the predecessor, or here, however share changes.
func TestTablesRememberTheSideOfAConnection(t *testing.T) {
	w := movingWorld(t)
	share := func(permille uint16) {
		w.update(func(want *plan.Want) {
			for i := range want.Services {
				want.Services[i].Predecessor.Share = model.ShareOf(permille)
			}
		})
	}
	for _, begins := range []uint16{0, 1000} {
		share(begins)
		first, later := lbVerdict(lbVerdictFORWARDED_TO_PREDECESSOR), lbVerdict(lbVerdictFORWARDED_TO_PREDECESSOR)
		if begins == 1000 {
			first, later = lbVerdictFORWARDED_NEW, lbVerdictFORWARDED_BY_LOCAL_TABLE
		}
		tcp, udp := flowTo(fastVIP(14), 443, int(begins)), flowTo(fastVIP(15), 443, int(begins))
		w.checkVerdict(tcp.frame(tcp.tcp(syn, synOptions(), nil)), first)
		w.checkVerdict(ethernet(0, ipPacket(udp.client.Addr(), fastVIP(15), 17, udp.udp([]byte("x")))), first)
		share(1000 - begins)
		w.checkVerdict(tcp.frame(tcp.tcp(syn, synOptions(), nil)), later)
		w.checkVerdict(tcp.frame(tcp.tcp(ack, nil, []byte("x"))), later)
		w.checkVerdict(ethernet(0, ipPacket(udp.client.Addr(), fastVIP(15), 17, udp.udp([]byte("y")))), later)
	}
}

// Promise: A port that a client uses again after its FIN begins where share says, and no SYN moves a connection before.
func TestPortsThatAreUsedAgainFollowTheShare(t *testing.T) {
	w := movingWorld(t)
	for n, begins := range []uint16{0, 1000} {
		verdicts := map[uint16][2]lbVerdict{0: {lbVerdictFORWARDED_TO_PREDECESSOR, lbVerdictFORWARDED_TO_PREDECESSOR},
			1000: {lbVerdictFORWARDED_NEW, lbVerdictFORWARDED_BY_LOCAL_TABLE}}
		share := func(permille uint16) {
			w.update(func(want *plan.Want) { service(want, "local").Predecessor.Share = model.ShareOf(permille) })
		}
		to := flowTo(fastVIP(14), 443, 50+n)
		first := to.frame(to.tcp(syn, synOptions(), nil))
		share(begins)
		w.checkVerdict(first, verdicts[begins][0])
		w.checkVerdict(to.frame(to.tcp(ack, nil, []byte("x"))), verdicts[begins][1])
		share(1000 - begins)
		w.checkVerdict(first, verdicts[begins][1])
		w.checkVerdict(to.frame(to.tcp(fin|ack, nil, nil)), verdicts[begins][1])
		w.checkVerdict(to.frame(to.tcp(ack, nil, nil)), verdicts[begins][1])
		w.checkVerdict(first, verdicts[1000-begins][0])
		w.checkVerdict(first, verdicts[1000-begins][1])
		w.checkVerdict(to.frame(to.tcp(ack, nil, []byte("x"))), verdicts[1000-begins][1])
	}
}

// silence lets all entries of local tables be so much older.
func (w *world) silence(by time.Duration) {
	w.Helper()
	var key lbConnectionKey
	var entry lbLocalConnection
	aged := map[lbConnectionKey]lbLocalConnection{}
	for entries := w.lb.objects.LocalConnections.Iterate(); entries.Next(&key, &entry); {
		entry.Last -= uint32(by >> 20)
		aged[key] = entry
	}
	for key, entry := range aged {
		mustSet(w.lb.objects.LocalConnections.Put(key, entry))
	}
}

// Promise: A flow of UDP that is silent for two minutes begins where share says, and not before: ports that clients use again do not stay where they were.
func TestSilentFlowsOfUDPFollowTheShare(t *testing.T) {
	w := movingWorld(t)
	for n, begins := range []uint16{0, 1000} {
		share := func(permille uint16) {
			w.update(func(want *plan.Want) { service(want, "udp").Predecessor.Share = model.ShareOf(permille) })
		}
		udp := flowTo(fastVIP(15), 443, 70+n)
		datagram := ethernet(0, ipPacket(udp.client.Addr(), fastVIP(15), 17, udp.udp([]byte("x"))))
		there, here := lbVerdict(lbVerdictFORWARDED_TO_PREDECESSOR), lbVerdict(lbVerdictFORWARDED_NEW)
		first, known, anew := there, there, here
		if begins == 1000 {
			first, known, anew = here, lbVerdictFORWARDED_BY_LOCAL_TABLE, there
		}
		share(begins)
		w.checkVerdict(datagram, first)
		share(1000 - begins)
		for range 3 { // each of which ends a silence
			w.silence(119 * time.Second)
			w.checkVerdict(datagram, known)
			w.silence(-time.Second) // as if another CPU had a packet at this moment
			w.checkVerdict(datagram, known)
		}
		share(begins)
		w.silence(121 * time.Second)
		w.checkVerdict(datagram, known) // it is where it belongs
		share(1000 - begins)
		w.silence(121 * time.Second)
		clear(w.local)
		w.checkVerdict(datagram, anew)
	}
}

// Promise: The share is that part of new connections, and of SYNs without timestamps all or none.
func TestShareIsThatPartOfNewConnections(t *testing.T) {
	w := movingWorld(t)
	const connections = 2000
	for _, share := range []uint16{0, 10, 300, 999, 1000} {
		w.update(func(want *plan.Want) { service(want, "plain").Predecessor.Share = model.ShareOf(share) })
		here := 0
		for n := range connections {
			to := flowTo(fastVIP(10), 443, n)
			if got, _ := w.check(to.frame(to.tcp(syn, synOptions(), nil))); got.verdict == lbVerdictFORWARDED_NEW {
				here++
			}
			want := lbVerdict(lbVerdictFORWARDED_TO_PREDECESSOR)
			if share == 1000 {
				want = lbVerdictFORWARDED_NO_TIMESTAMP
			}
			if n%50 == 0 {
				w.checkVerdict(to.frame(to.tcp(syn, nil, nil)), want)
			}
		}
		if want := connections * int(share) / 1000; here < want-60 || here > want+60 || share%1000 == 0 && here != want {
			t.Errorf("share %d: %d of %d begin here", share, here, connections)
		}
	}
}

// Predecessors come, change, and leave in the tables, and a new process finds them.
func TestPredecessorsChangeInTheTables(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	to := flowTo(vip4, 443, 1)
	foreign := to.frame(to.tcp(ack, timestamps(1, w.cookieFor("web", to, 0, 1)+1<<14), []byte("x")))
	w.checkVerdict(foreign, lbVerdictFORWARDED_BAD_COOKIE)
	for _, addresses := range [][]netip.Addr{{oldBalancer}, {oldBalancer.Next(), oldBalancer}, {oldBalancer.Next()}} {
		for _, forward := range []model.Forward{model.ForwardIPIP, model.ForwardL2} {
			w.update(func(want *plan.Want) {
				service(want, "web").Predecessor = model.Predecessor{Addresses: addresses, Forward: forward}
			})
			w.checkVerdict(foreign, lbVerdictFORWARDED_TO_PREDECESSOR)
			w.reopen()
			w.checkVerdict(foreign, lbVerdictFORWARDED_TO_PREDECESSOR)
		}
	}
	w.update(func(want *plan.Want) { service(want, "web").Predecessor = model.Predecessor{} })
	w.checkVerdict(foreign, lbVerdictFORWARDED_BAD_COOKIE)
}

// Promise: The count of a predecessor's connections is that of flows that came within a minute, and 0 when none do.
func TestConnectionsOfAPredecessorAreCounted(t *testing.T) {
	w := movingWorld(t)
	w.update(func(want *plan.Want) { service(want, "plain").Predecessor.Share = model.ShareOf(0) })
	mustSet(w.emptyPredecessorFlows())
	expect := func(want int) {
		t.Helper()
		counts, err := w.lb.countPredecessors()
		if count := counts[w.tables.Places()["plain"].Number]; err != nil || count != want {
			t.Fatalf("%d connections, %v; want %d", count, err, want)
		}
	}
	expect(0)
	for range 3 {
		for n := range 5 {
			to := flowTo(fastVIP(10), 443, n)
			w.checkVerdict(to.frame(to.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_TO_PREDECESSOR)
		}
	}
	expect(5)
	for index := range w.lb.objects.PredecessorFlows.MaxEntries() {
		var flow uint64
		mustSet(w.lb.objects.PredecessorFlows.Lookup(index, &flow))
		if flow != 0 {
			mustSet(w.lb.objects.PredecessorFlows.Put(index, flow-62<<32))
		}
	}
	expect(0)
}

// Whoever asks for the predecessor of each of many services, several times a second, has all places looked at once a second.
func TestPredecessorsAreCountedOnceASecond(t *testing.T) {
	lb := &LB{tables: lbTables{predecessorFlows: make([]uint64, 1<<16)}}
	var now unix.Timespec
	mustSet(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	ask := func(want int) {
		t.Helper()
		if counts, err := lb.PredecessorConnections(); err != nil || counts[7] != want {
			t.Fatalf("%d connections, %v; want %d", counts[7], err, want)
		}
	}
	lb.tables.predecessorFlows[1] = uint64(now.Sec)<<32 | 7
	ask(1)
	lb.tables.predecessorFlows[2] = lb.tables.predecessorFlows[1]
	for range 64 {
		lb.predecessors.at = time.Now() // however long the test is held up
		ask(1)
	}
	lb.predecessors.at = time.Now().Add(-countsFor)
	ask(2)
}

// What a load balancer spends on the counts of 64 services that it is asked for, and what it would by a look for each.
func BenchmarkPredecessorsOf64Services(b *testing.B) {
	lb := &LB{tables: lbTables{predecessorFlows: make([]uint64, 1<<16)}}
	for name, count := range map[string]func() (map[uint32]int, error){"once a second": lb.PredecessorConnections, "each": lb.countPredecessors} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				for range 64 {
					if _, err := count(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func (w *world) emptyPredecessorFlows() error {
	for index := range w.lb.objects.PredecessorFlows.MaxEntries() {
		if err := w.lb.objects.PredecessorFlows.Put(index, uint64(0)); err != nil {
			return err
		}
	}
	return nil
}
