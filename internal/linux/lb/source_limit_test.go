package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// limiting lets a source begin five connections at once, and then one each second.
func limiting(change func(*model.Service)) func(*model.Service) {
	return func(s *model.Service) {
		s.SourceLimit = model.SourceLimit{Rate: 1, Burst: 5, IPv4Prefix: 32, IPv6Prefix: 64}
		if change != nil {
			change(s)
		}
	}
}

// checkNot expects that no packet of a service had a verdict.
func (w *world) checkNot(verdict lbVerdict) {
	w.Helper()
	for key, count := range w.verdicts() {
		if key.verdict == verdict && key.service != "" && count != 0 {
			w.Errorf("%d packets of %s: %s", count, key.service, verdictNames[verdict])
		}
	}
}

// limitedWorld is a world in which no source has begun anything yet.
func limitedWorld(t *testing.T, services ...model.Service) *world {
	t.Helper()
	w := newWorld(t, services...)
	w.changeSources(func(uint64) uint64 { return 0 })
	return w
}

// sourceSet is struct source_set.
type sourceSet [4]uint64

// changeSources changes every bucket.
func (w *world) changeSources(change func(uint64) uint64) {
	w.Helper()
	for index := range w.lb.objects.SourceLimits.MaxEntries() {
		var set sourceSet
		mustSet(w.lb.objects.SourceLimits.Lookup(index, &set))
		for i, bucket := range set {
			set[i] = change(bucket)
		}
		mustSet(w.lb.objects.SourceLimits.Put(index, set))
	}
}

// payFor makes the buckets as they are some time later.
func (w *world) payFor(elapsed time.Duration) {
	w.Helper()
	w.changeSources(func(bucket uint64) uint64 {
		if bucket == 0 {
			return 0
		}
		return bucket&^(1<<48-1) | (bucket-uint64(elapsed/256))&(1<<48-1)
	})
}

// from is the flow of another client.
func (f flow) from(client string) flow {
	f.client = netip.AddrPortFrom(netip.MustParseAddr(client), f.client.Port())
	return f
}

// neighbours are an address of the same source, and one of another.
func neighbours(vip netip.Addr) (same, other string) {
	if vip.Is6() {
		return "2001:db8:f00:7::abcd", "2001:db8:f00:8::7"
	}
	return "203.0.113.9", "203.0.113.8"
}

// passing counts the frames that are not dropped because of the limit, and what else the time since it began to count may have let pass.
func (w *world) passing(frames [][]byte) (passed, more int) {
	w.Helper()
	begun := time.Now()
	for _, frame := range frames {
		got := w.run(frame)
		if got.verdict != lbVerdictDROPPED_SOURCE_LIMIT {
			passed++
		} else if got.action != xdpDrop {
			w.Fatalf("action %d", got.action)
		}
	}
	return passed, int(time.Since(begun)/time.Second) + 1
}

func (w *world) lets(what string, want int, frames [][]byte) {
	w.Helper()
	if passed, more := w.passing(frames); passed < want || passed > want+more {
		w.Fatalf("%s: %d of %d may begin, want %d, and at most %d more for the time it took", what, passed, len(frames), want, more)
	}
}

// freshPort is one that no connection of manySYNs has.
var freshPort atomic.Uint32

// manySYNs are SYNs of connections of one client that were not there before, with and without timestamps.
func manySYNs(f flow, count int) (frames [][]byte) {
	for n := range count {
		f.client = netip.AddrPortFrom(f.client.Addr(), uint16(freshPort.Add(1)))
		frames = append(frames, f.frame(f.tcp(syn, [][]byte{synOptions(), nil}[n%2], nil)))
	}
	return frames
}

// Promise: With `source_limit` a source begins no more connections than its burst and its rate, and what it has begun
// passes; other sources are not touched.
func TestASourceBeginsNoMoreThanItsLimit(t *testing.T) {
	eachPath(t, func(t *testing.T, path string) {
		for _, vip := range []netip.Addr{vip4, vip6} {
			for name, change := range map[string]func(*model.Service){
				"cookie": nil, "hash": fastHash(func(*model.Service) {}), "local table": localTable(model.DispatchRR),
				"table":   func(s *model.Service) { s.Affinity, s.Table = model.AffinityTable, model.Table{Entries: 128} },
				"through": func(s *model.Service) { s.Return, s.Ports = model.ReturnThrough, []uint16{443} },
				"history": func(s *model.Service) { s.Dispatch, s.Affinity = model.DispatchChoices, model.AffinityHistory },
			} {
				w := limitedWorld(t, serviceOf("web", vip, limiting(change)))
				w.path = path
				same, other := neighbours(vip)
				f := flowTo(vip, 443, 1).from(same)
				first := manySYNs(f, 20)
				w.lets(name, 5, first)
				w.lets(name+", by the same ports", 0, first)
				w.lets(name+", by others", 0, manySYNs(f, 20))
				w.lets(name+", another source", 5, manySYNs(flowTo(vip, 443, 1).from(other), 20))
				if vip.Is6() {
					w.lets(name+", another address of the source", 0, manySYNs(f.from("2001:db8:f00:7:1::1"), 20))
				}
				var carried [][]byte
				for n := range 20 {
					living := flowTo(vip, 443, n).from(same)
					carried = append(carried, living.frame(living.tcp(ack, timestamps(5, 0), nil)), living.frame(living.tcp(ack, nil, nil)), living.frame(living.tcp(rst, nil, nil)))
					if name == "cookie" {
						w.checkVerdict(living.carrying(w.cookieFor("web", living, 2, 1)), lbVerdictFORWARDED_BY_COOKIE)
					}
				}
				w.lets(name+", of connections", len(carried), carried)
				w.payFor(3 * time.Second)
				w.lets(name+", three seconds later", 3, manySYNs(f, 20))
				w.payFor(time.Hour)
				w.lets(name+", an hour later", 5, manySYNs(f, 20))
			}
		}
	})
}

// A limit that nobody reaches changes nothing: the reference has none.
func TestBelowTheLimitAllIsAsWithoutOne(t *testing.T) {
	eachPath(t, func(t *testing.T, path string) {
		for _, vip := range []netip.Addr{vip4, vip6} {
			w := limitedWorld(t, serviceOf("web", vip, func(s *model.Service) {
				s.SourceLimit = model.SourceLimit{Rate: 1000, Burst: 1000, IPv4Prefix: 1, IPv6Prefix: 1}
			}))
			w.path = path
			for n := range 50 {
				f := flowTo(vip, 443, n)
				w.check(f.frame(f.tcp(syn, synOptions(), nil)))
				w.check(f.frame(f.tcp(syn, nil, nil)))
				w.check(f.carrying(w.cookieFor("web", f, 2, 1)))
			}
		}
	})
}

func TestPrefixesSayWhatASourceIs(t *testing.T) {
	for _, test := range []struct {
		vip        netip.Addr
		ipv4, ipv6 uint8
		a, b       string
		same       bool
	}{
		{vip4, 32, 64, "203.0.113.8", "203.0.113.9", false}, {vip4, 31, 64, "203.0.113.8", "203.0.113.9", true}, {vip4, 8, 64, "203.0.113.8", "203.255.0.1", true},
		{vip4, 1, 64, "203.0.113.8", "130.0.0.1", true}, {vip4, 1, 64, "203.0.113.8", "100.0.0.1", false},
		{vip6, 32, 64, "2001:db8:f00:7::1", "2001:db8:f00:6::1", false}, {vip6, 32, 63, "2001:db8:f00:7::1", "2001:db8:f00:6::1", true},
		{vip6, 32, 56, "2001:db8:f00:7::1", "2001:db8:f00:107::1", false}, {vip6, 32, 32, "2001:db8:f00:7::1", "2001:db8:1::", true}, {vip6, 32, 1, "2001:db8::1", "3001::1", true},
	} {
		w := limitedWorld(t, serviceOf("web", test.vip, limiting(func(s *model.Service) { s.SourceLimit.IPv4Prefix, s.SourceLimit.IPv6Prefix = test.ipv4, test.ipv6 })))
		f := flowTo(test.vip, 443, 1)
		w.lets(test.a, 5, manySYNs(f.from(test.a), 10))
		want := 5
		if test.same {
			want = 0
		}
		w.lets(fmt.Sprintf("%+v", test), want, manySYNs(f.from(test.b), 10))
	}
}

func TestServicesOfAVIPCountApart(t *testing.T) {
	for _, over := range []model.PlacementOver{model.PlaceConnection, model.PlaceSource} {
		bySource := func(s *model.Service) {
			s.Dispatch, s.Placement = model.DispatchMaglev, model.Placement{Over: over, IPv4Prefix: 32, IPv6Prefix: 64}
		}
		w := limitedWorld(t, serviceOf("web", vip4, limiting(func(s *model.Service) { bySource(s); s.Ports = []uint16{443} })),
			serviceOf("mail", vip4, limiting(func(s *model.Service) { bySource(s); s.Ports = []uint16{25} })))
		w.lets("web", 5, manySYNs(flowTo(vip4, 443, 1), 10))
		w.lets("mail", 5, manySYNs(flowTo(vip4, 25, 1), 10))
	}
}

// Promise: A flood from more sources than `source_limit` has room for costs no other source a connection.
func TestWhereThereIsNoRoomSourcesAreNotLimited(t *testing.T) {
	w := limitedWorld(t, serviceOf("web", vip4, limiting(nil)))
	f := flowTo(vip4, 443, 1)
	w.lets("alone", 5, manySYNs(f, 10))
	owed := func(elapsed time.Duration) uint64 {
		var now unix.Timespec
		mustSet(unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		return uint64((time.Duration(now.Nano())+elapsed)/256) & (1<<48 - 1)
	}
	w.changeSources(func(bucket uint64) uint64 {
		if bucket != 0 {
			return bucket
		}
		return owed(15 * time.Minute) // of tag 0
	})
	w.lets("known, and the table is full", 0, manySYNs(f, 10))
	_, other := neighbours(vip4)
	w.lets("unknown, and the table is full", 10, manySYNs(f.from(other), 10))
	w.changeSources(func(bucket uint64) uint64 { return owed(-time.Second) })
	w.lets("what is paid for makes room", 5, manySYNs(f.from(other), 10))
}

// Where two CPUs see packets of a source at the same moment, one of them may not count.
func TestTwoCPUsCountTogether(t *testing.T) {
	w := limitedWorld(t, serviceOf("web", vip4, limiting(func(s *model.Service) { s.SourceLimit.Burst = 1000 })))
	frames := manySYNs(flowTo(vip4, 443, 1), 2000)
	begun := time.Now()
	var passed atomic.Int64
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for _, frame := range frames {
				action, err := w.lb.Program().Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)})
				mustSet(err)
				if action != xdpDrop {
					passed.Add(1)
				}
			}
		})
	}
	group.Wait()
	if n, most := passed.Load(), 1000+int64(time.Since(begun)/time.Second)+80; n < 1000 || n > most {
		t.Errorf("%d of 8000 may begin, want 1000 to %d", n, most)
	}
}

func TestFirstDatagramsAreCounted(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := limitedWorld(t, udpService("dns", vip, limiting(localTable(model.DispatchRR))))
		var questions [][]byte
		for n := range 10 {
			questions = append(questions, flowTo(vip, 53, n).datagram([]byte("question")))
		}
		w.lets("questions", 5, questions)
		w.lets("of flows that are known", 10, slices.Repeat(questions[:1], 10))
	}
}

// A SYN's source may be anybody's: where the load balancer answers it, the source counts when it has shown the answer.
//
// Promise: While load balancers answer SYNs, a forged source costs its owner none of `source_limit`.
func TestSYNsThatAreAnsweredCountWhenTheyAreAcknowledged(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := limitedWorld(t, serviceOf("web", vip, limiting(withSYNProxy)))
		w.lets("SYNs that are answered", 40, manySYNs(flowTo(vip, 443, 1), 40))
		var ends [][]byte
		for n := range 10 {
			s := w.begin("web", flowTo(vip, 443, n), anySequence(), 0, synOptions())
			ends = append(ends, s.segment(ack, 0, s.bare(), nil))
		}
		w.lets("handshakes that end", 5, ends)
		w.lets("ends sent again", 5, slices.Repeat(ends[:1], 5))
		w.lets("ends sent again for other connections", 3, slices.Repeat(ends[:1], 20))
		s := w.begin("web", flowTo(vip, 443, 99), anySequence(), 0, nil)
		w.payFor(time.Second)
		w.lets("without timestamps", 4, slices.Repeat([][]byte{s.segment(ack, 0, nil, nil), s.echoing(0, []byte("data"))}, 2))
		w.lets("SYNs with options that cannot be read", 10, slices.Repeat([][]byte{s.flow.frame(s.flow.synSegment(anySequence(), 0, []byte{1, 5, 0, 0}))}, 10))
		w.checkNot(lbVerdictFORWARDED_BAD_OPTIONS)
		s = w.begin("web", flowTo(vip, 443, 100), anySequence(), 0, nil)
		w.lets("ends with such options", 0, [][]byte{s.segment(ack, 0, []byte{1, 5, 0, 0}, []byte("data"))})
		w.flood("web", true)
		w.update(func(want *plan.Want) {
			service(want, "web").SYNProxy, service(want, "web").SYNLimit = model.SYNProxyAuto, 1
		})
		w.flood("web", false)
		w.payFor(2 * time.Second)
		w.lets("SYNs while syn_proxy is off", 2, manySYNs(flowTo(vip, 443, 1), 10))
	}
}

func TestSessionsCountWhenTheirHelloComes(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := limitedWorld(t, serviceOf("tls", vip, limiting(onlySessions)))
		w.lets("SYNs that are answered", 40, manySYNs(flowTo(vip, 8443, 1), 40))
		var hellos [][]byte
		for n := range 10 {
			s := w.begin("tls", flowTo(vip, 8443, n), anySequence(), 0, synOptions())
			hellos = append(hellos, s.echoing(0, []byte("no TLS at all")))
		}
		w.lets("hellos", 5, hellos)
		w.lets("hellos sent again", 8, slices.Repeat(hellos[:1], 8))
		w.lets("hellos sent again for other connections", 0, slices.Repeat(hellos[:1], 10))
	}
}

func TestWhatAnErrorQuotesIsNotCounted(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := limitedWorld(t, serviceOf("web", vip, limiting(nil)))
		f := flowTo(vip, 443, 1)
		kind, header := byte(3), 28
		if vip.Is6() {
			kind, header = 1, 48
		}
		errors := slices.Repeat([][]byte{pathError(f, kind, 0, 0, f.answer(w.cookieFor("web", f, 2, 1)), header)}, 20)
		w.lets("errors", 20, errors)
		w.lets("then", 5, manySYNs(f, 10))
	}
}
