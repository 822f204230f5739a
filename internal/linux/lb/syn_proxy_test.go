package lb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func withSYNProxy(s *model.Service) { s.SYNProxy = model.SYNProxyAlways }

func withSYNProxyAuto(s *model.Service) {
	s.SYNProxy, s.SYNLimit = model.SYNProxyAuto, model.DefaultSYNLimit
}

// flood turns syn_proxy auto on or off.
func (w *world) flood(name string, flooded bool) {
	w.Helper()
	w.update(func(want *plan.Want) { service(want, name).Flooded = flooded })
}

// bare are the options of a segment after the handshake.
func (s *shake) bare() []byte {
	if s.value == 0 {
		return nil
	}
	return timestamps(77, s.value)
}

// ends sends the third segment of the handshake.
func (s *shake) ends(verdict lbVerdict) uint16 {
	s.Helper()
	return s.goes(s.segment(ack, 0, s.bare(), nil), verdict)
}

// Promise: With `syn_proxy` the acknowledgement or the first data of a client, repeated or not, reaches the server that
// the dispatch policy chose.
func TestConnectionsBeginByAnyThirdSegment(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
			for _, dispatch := range []model.Dispatch{model.DispatchRR, model.DispatchMaglev, model.DispatchP2C, model.DispatchLeast} {
				t.Run(fmt.Sprint(vip, " ", forward, " ", dispatch), func(t *testing.T) {
					w := newWorld(t, serviceOf("web", vip, func(s *model.Service) {
						withSYNProxy(s)
						s.Forward, s.Dispatch = forward, dispatch
					}))
					w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
					for n := range 40 {
						w.proxied(flowTo(vip, 443, n), n)
					}
				})
			}
		}
	}
}

// proxied begins a connection of a service with syn_proxy, and follows its first packets.
func (w *world) proxied(f flow, n int) {
	w.Helper()
	s := w.begin("web", f, anySequence(), byte(n%2)*0xc0, synOptionSets[n%len(synOptionSets)])
	data := s.echoing(0, []byte("EHLO example.com\r\n"))
	first, again := lbVerdict(lbVerdictFORWARDED_NEW), lbVerdict(lbVerdictFORWARDED_STARTING)
	if s.value == 0 {
		first, again = lbVerdictFORWARDED_NO_TIMESTAMP, lbVerdictFORWARDED_NO_TIMESTAMP // by placement, which is not remembered
	}
	segments := [][]byte{s.segment(ack, 0, s.bare(), nil), s.segment(ack, 0, s.bare(), nil), data, data}
	if n%3 == 0 { // the acknowledgement is lost
		segments = segments[2:]
	}
	var server uint16
	for i, segment := range append(segments, s.echoing(18, []byte("MAIL")), s.segment(ack|fin, 22, s.bare(), nil)) {
		verdict := again
		if i == 0 {
			verdict = first
		}
		to := s.goes(segment, verdict)
		if i > 0 && to != server {
			w.Fatalf("segment %d of %d goes to server %d, and those before to %d", i, n, to, server)
		}
		server = to
	}
	if server == 0 || s.value != 0 && server != s.fallback() {
		w.Fatalf("to server %d, and the timestamp names %d", server, s.fallback())
	}
	if s.value == 0 {
		return
	}
	if to := s.goes(f.carrying(w.cookieFor("web", f, server, 2)), lbVerdictFORWARDED_BY_COOKIE); to != server {
		w.Fatalf("it begins at server %d, and goes on at %d", server, to)
	}
}

// The same segments through both paths, while it is on and off: those that are answered, and those that begin or go on.
func TestTheFastPathDoesWhatTheSlowPathDoesWithSYNProxy(t *testing.T) {
	w, random := helloWorld(t), seeded(t)
	proxied := func(flooded bool) {
		w.update(func(want *plan.Want) {
			for i := range want.Services {
				if s := &want.Services[i]; s.Session == model.SessionTLS || s.SYNProxy != model.SYNProxyOff {
					s.Session, s.SessionClients, s.SYNProxy, s.SYNLimit, s.Flooded = model.SessionNone, model.DefaultSessionClients, model.SYNProxyAuto, 1, flooded
				}
			}
		})
	}
	proxied(true)
	w.comparesSYNs(random)
	seen := map[lbVerdict]int{}
	for n := range 3000 {
		if n%500 == 0 {
			proxied(n%1000 == 0)
		}
		s, frame := w.anyBeginning(random)
		before := lbSessionBegun{}
		if random.IntN(8) == 0 {
			before = lbSessionBegun{Id: 1, Sequence: binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, s.sequence+1+random.Uint32N(2)))}
		}
		first, second := w.beginning(s, frame, true, before), w.beginning(s, frame, false, before)
		if !first.equal(&second.outcome) || first.begun != second.begun {
			t.Fatalf("%x becomes\n%+v, on the slow path\n%+v", frame, first, second)
		}
		for key, count := range first.verdicts {
			seen[key.verdict] += int(count)
		}
	}
	for _, verdict := range []lbVerdict{lbVerdictFORWARDED_NEW, lbVerdictFORWARDED_STARTING, lbVerdictFORWARDED_NO_TIMESTAMP, lbVerdictFORWARDED_BAD_COOKIE} {
		if seen[verdict] < 20 {
			t.Errorf("%d %s", seen[verdict], verdictNames[verdict])
		}
	}
}

// Each policy has its say: the turns of rr are those of the SYNs.
func TestThePolicyPlacesConnectionsWhoseSYNsAreAnswered(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { withSYNProxy(s); s.Dispatch = model.DispatchRR }))
	got := map[uint16]int{}
	for n := range 30 {
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		got[s.ends(lbVerdictFORWARDED_NEW)]++
	}
	for id, n := range got {
		if n != 10 {
			t.Errorf("server %d gets %d of 30", id, n)
		}
	}
	traffic, err := w.lb.ServerTraffic(w.tables.Places()["web"].Counters[1])
	mustSet(err)
	if traffic.Connections != 10 || traffic.Closed != 0 {
		t.Errorf("counted %+v", traffic)
	}
}

// Nothing is remembered at one load balancer alone: the route changes between the SYN and what follows.
//
// Promise: A handshake that `syn_proxy` began ends at any load balancer of the fleet, and at the same server.
func TestAHandshakeEndsAtAnotherLoadBalancer(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, withSYNProxyAuto))
		// another is one that remembers nothing of these connections, and may have no flood.
		another := func(flooded bool) {
			w.changeBegun(w.begunPlaces(), func(begun *lbSessionBegun) { *begun = lbSessionBegun{} })
			w.flood("web", flooded)
		}
		for n := range 40 {
			w.flood("web", true)
			s := w.begin("web", flowTo(vip, 443, n), anySequence(), 0, synOptionSets[n%len(synOptionSets)])
			first := lbVerdict(lbVerdictFORWARDED_NEW)
			if s.value == 0 {
				first = lbVerdictFORWARDED_NO_TIMESTAMP
			}
			another(n%2 == 0)
			there := s.ends(first)
			another(n%3 == 0)
			if back := s.goes(s.echoing(0, []byte("data")), first); back != there {
				t.Errorf("%s: client %d: to server %d, then to %d", vip, n, there, back)
			}
		}
	}
}

// Promise: `syn_proxy: auto` answers no SYN while it is off, and no connection is cut when it is switched on or off: one
// whose handshake is under way goes on.
func TestAutoCutsNoConnectionWhenItIsSwitched(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, withSYNProxyAuto))
		for n := range 20 {
			f := flowTo(vip, 443, n)
			server := (&shake{world: w, flow: f}).goes(f.frame(f.synSegment(anySequence(), 0, synOptions())), lbVerdictFORWARDED_NEW)
			w.flood("web", true)
			established := &shake{world: w, flow: f}
			if to := established.goes(f.carrying(w.cookieFor("web", f, server, 1)), lbVerdictFORWARDED_BY_COOKIE); to != server {
				t.Errorf("a handshake of before goes on at server %d, not %d", to, server)
			}
			s := w.begin("web", flowTo(vip, 443, 100+n), anySequence(), 0, synOptions())
			w.flood("web", false)
			server = s.ends(lbVerdictFORWARDED_NEW)
			if to := s.goes(s.echoing(0, []byte("data")), lbVerdictFORWARDED_STARTING); to != server || server != s.fallback() {
				t.Errorf("a handshake from when it was on goes to %d and %d, not %d", server, to, s.fallback())
			}
		}
	}
}

// A client without timestamps is only found by placement. Servers have changed since: who is asked first has no connection yet.
func TestAClientWithoutTimestampsBeginsAtTheOwnerOfItsPlace(t *testing.T) {
	for _, on := range []bool{true, false} {
		w := newWorld(t, serviceOf("web", vip4, withSYNProxyAuto))
		w.flood("web", true)
		w.update(func(want *plan.Want) {
			s := service(want, "web")
			s.Removed, s.Servers = append(s.Removed, s.Servers[1]), slices.Delete(slices.Clone(s.Servers), 1, 2)
		})
		for n := range 40 {
			s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptionSets[3])
			w.flood("web", on)
			if server := s.ends(lbVerdictFORWARDED_NO_TIMESTAMP); server == 2 {
				t.Errorf("on %v: client %d begins at a server that was removed", on, n)
			}
			w.flood("web", true)
		}
	}
}

// What nobody here has answered begins nothing, and its packets go as before.
//
// Promise: A forged acknowledgement goes where it would without `syn_proxy`.
func TestAForgedThirdSegmentGoesByPlacement(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSYNProxy), serviceOf("plain", fastVIP(99), nil))
	for n := range 20 {
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		for name, change := range map[string]func(s *shake){
			"another sequence number": func(s *shake) { s.sequence++ },
			"another acknowledgement": func(s *shake) { s.reply.Seq ^= 1 << 20 },
			"an older answer":         func(s *shake) { s.reply.Seq ^= 4 << 9 },
		} {
			forged := *s
			change(&forged)
			if got := w.run(forged.segment(ack, 0, forged.bare(), nil)); got.verdict != lbVerdictFORWARDED_STARTING {
				t.Errorf("%s: %s", name, verdictNames[got.verdict])
			}
		}
		forged := *s
		forged.value ^= 1
		if got := w.run(forged.segment(ack, 0, forged.bare(), nil)); got.verdict != lbVerdictFORWARDED_BAD_COOKIE && got.verdict != lbVerdictFORWARDED_BY_COOKIE {
			t.Errorf("another timestamp: %s", verdictNames[got.verdict])
		}
	}
	if n := w.verdicts()[verdictKey{"web", lbVerdictFORWARDED_NEW}]; n != 0 {
		t.Errorf("%d connections have begun", n)
	}
}

// Who may not connect gets no answer, by any of several VIPs, and what is answered counts for the service.
func TestSYNProxyAnswersAllowedClientsAlone(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		other := fastVIP(77)
		if vip.Is6() {
			other = plus(vip6, 9)
		}
		w := newWorld(t, serviceOf("web", vip, allowing(func(s *model.Service) {
			withSYNProxy(s)
			s.MoreVIPs = []netip.Addr{other}
		})))
		for _, at := range []netip.Addr{vip, other} {
			answered := w.verdicts()[verdictKey{"web", lbVerdictANSWERED_SYN}]
			f := outside(at, 443, 1)
			if got := w.run(f.frame(f.synSegment(anySequence(), 0, synOptions()))); got.verdict != lbVerdictDROPPED_NOT_ALLOWED {
				t.Errorf("%s: %s", at, verdictNames[got.verdict])
			}
			inside := flowTo(at, 443, 1)
			if got := w.run(inside.frame(inside.synSegment(anySequence(), 0, synOptions()))); got.verdict != lbVerdictANSWERED_SYN {
				t.Errorf("%s: an allowed client's SYN: %s", at, verdictNames[got.verdict])
			}
			if n := w.verdicts()[verdictKey{"web", lbVerdictANSWERED_SYN}] - answered; n != 1 {
				t.Errorf("%s: %d are counted", at, n)
			}
		}
	}
}

// A server that was proposed to the client is gone when it answers.
func TestAServerThatIsGoneSinceTheSYNIsReplaced(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSYNProxy))
	var shakes []*shake
	for n := range 30 {
		shakes = append(shakes, w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions()))
	}
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Servers = slices.Delete(slices.Clone(s.Servers), 1, 2)
	})
	for _, s := range shakes {
		server := s.ends(lbVerdictFORWARDED_NEW)
		if server == 2 || s.fallback() != 2 && server != s.fallback() {
			t.Errorf("the timestamp names %d, it goes to %d", s.fallback(), server)
		}
		if to := s.goes(s.echoing(0, []byte("data")), lbVerdictFORWARDED_STARTING); to != server {
			t.Errorf("to server %d, then to %d", server, to)
		}
	}
}

// Each SYN is of another client.
//
// Promise: A SYN flood of a service with `syn_proxy` reaches no server and stores nothing, while other connections begin.
func TestAFloodOfSYNsReachesNoServer(t *testing.T) {
	const packets, rounds = 100_000, 5
	w := newWorld(t, serviceOf("web", vip4, withSYNProxyAuto))
	b, err := wrapper.Open()
	mustSet(err)
	defer b.Close()
	w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
	w.flood("web", true)
	cell := w.benchCell(syn, 1<<24)
	cell.CookieBits, cell.Growth = 0, 14+20+20+12-wrapper.FrameLength // the answer has timestamps, too
	sent := func() (packets uint64) {
		for _, index := range w.tables.Places()["web"].Counters {
			traffic, err := w.lb.ServerTraffic(index)
			mustSet(err)
			packets += traffic.Packets
		}
		return packets
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for round := range uint32(rounds) {
		flows := make([]uint32, packets/rounds)
		for i := range flows {
			flows[i] = round*uint32(len(flows)) + uint32(i)
		}
		entries, _ := w.held()
		answered, before := w.verdicts()[verdictKey{"web", lbVerdictANSWERED_SYN}], sent()
		mustSet(errors.Join(b.Put(w.lb.Program()), b.List(&cell, flows, nil)))
		run, err := b.Run(uint32(len(flows)))
		if n := w.verdicts()[verdictKey{"web", lbVerdictANSWERED_SYN}] - answered; err != nil || run.Surprises > 0 || n != run.Runs+run.Discarded || sent() != before {
			t.Fatalf("%d of %d SYNs were answered, %d otherwise than expected, %d sent: %v", n, run.Runs+run.Discarded, run.Surprises, sent()-before, err)
		}
		if held, _ := w.held(); !maps.Equal(held, entries) {
			t.Fatalf("entries before %v, and after %v", entries, held)
		}
		for n := range 12 {
			w.proxied(flowTo(vip4, 443, int(round)*12+n), n)
		}
	}
}
