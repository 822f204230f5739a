package lb

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

// allowing lets the clients of flowTo begin connections, and few others.
func allowing(change func(*model.Service)) func(*model.Service) {
	return func(s *model.Service) {
		s.Allow = prefixes("203.0.113.0/25", "192.0.2.1/32")
		if s.VIP.Is6() {
			s.Allow = prefixes("2001:db8:f00::/48", "2001:db9::1/128")
		}
		if change != nil {
			change(s)
		}
	}
}

// outside is a flow of a client that is not allowed; its address is that of one but for a bit.
func outside(vip netip.Addr, port uint16, n int) flow {
	f := flowTo(vip, port, n)
	address := netip.MustParseAddr("203.0.113.135")
	if vip.Is6() {
		address = netip.MustParseAddr("2001:db8:f01::7")
	}
	f.client = netip.AddrPortFrom(address, f.client.Port())
	return f
}

// Promise: With `allow`, other clients' packets without a valid cookie are dropped and leave nothing behind;
// connections with one live on when the list changes.
// Also held by TestALongHeaderBeginsAConnectionWhateverItsID.
func TestOnlyAllowedClientsBeginConnections(t *testing.T) {
	eachPath(t, func(t *testing.T, path string) {
		for _, vip := range []netip.Addr{vip4, vip6} {
			for name, change := range map[string]func(*model.Service){
				"cookie": nil, "hash": fastHash(func(*model.Service) {}), "local table": localTable(model.DispatchRR),
				"table":   func(s *model.Service) { s.Affinity, s.Table = model.AffinityTable, model.Table{Entries: 128} },
				"through": func(s *model.Service) { s.Return, s.Ports = model.ReturnThrough, []uint16{443} },
				"history": func(s *model.Service) { s.Dispatch, s.Affinity = model.DispatchChoices, model.AffinityHistory },
			} {
				w := newWorld(t, serviceOf("web", vip, allowing(change)))
				w.path = path
				loads := func() (sum int32) {
					for _, index := range w.tables.Places()["web"].Counters {
						sum += w.lb.tables.loads[index].value
					}
					return sum
				}
				before := loads()
				for n := range 4 {
					inside, other := flowTo(vip, 443, n), outside(vip, 443, n)
					for _, segment := range [][]byte{other.tcp(syn, synOptions(), nil), other.tcp(syn, nil, nil), other.tcp(ack, nil, nil), other.tcp(ack, timestamps(5, 0), nil),
						other.tcp(ack, timestamps(5, 0x7fff_fffe), nil), other.tcp(rst, nil, nil), other.tcp(ack, optionBytes("010830", 1, 2), nil)} {
						w.check(other.frame(segment))
					}
					w.checkVerdict(other.frame(other.tcp(syn, synOptions(), nil)), lbVerdictDROPPED_NOT_ALLOWED)
					if loads() != before {
						t.Fatalf("%s: what was dropped counts as %d open connections", name, loads()-before)
					}
					if got, _ := w.check(inside.frame(inside.tcp(syn, synOptions(), nil))); !isForwarded(got.verdict) {
						t.Errorf("%s, an allowed client: %s", name, verdictNames[got.verdict])
					}
					before = loads()
				}
			}
			w := newWorld(t, serviceOf("web", vip, nil))
			w.path = path
			few := model.Service{VIP: vip}
			allowing(nil)(&few)
			f := outside(vip, 443, 1)
			living, begins := f.carrying(w.cookieFor("web", f, 2, 1)), f.frame(f.tcp(syn, synOptions(), nil))
			for _, step := range []struct {
				allow []netip.Prefix
				want  lbVerdict
			}{{nil, lbVerdictFORWARDED_NEW}, {few.Allow, lbVerdictDROPPED_NOT_ALLOWED}, {[]netip.Prefix{netip.PrefixFrom(f.client.Addr(), 8).Masked()}, lbVerdictFORWARDED_NEW},
				{[]netip.Prefix{netip.PrefixFrom(f.client.Addr(), 0).Masked()}, lbVerdictFORWARDED_NEW}, {nil, lbVerdictFORWARDED_NEW}} {
				w.update(func(want *plan.Want) { service(want, "web").Allow = step.allow })
				w.checkVerdict(living, lbVerdictFORWARDED_BY_COOKIE)
				w.checkVerdict(begins, step.want)
			}
		}
	})
}

func isForwarded(verdict lbVerdict) bool {
	return verdict >= lbVerdictFORWARDED_NEW && verdict < lbVerdictRETURNED
}

func TestDatagramsAreAllowedOneByOne(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, affinity := range []model.Affinity{model.AffinityHash, model.AffinityLocal} {
			w := newWorld(t, udpService("dns", vip, allowing(func(s *model.Service) { s.Affinity = affinity })))
			inside, other := flowTo(vip, 53, 1), outside(vip, 53, 1)
			w.checkVerdict(other.datagram([]byte("question")), lbVerdictDROPPED_NOT_ALLOWED)
			if got, _ := w.check(inside.datagram([]byte("question"))); !isForwarded(got.verdict) {
				t.Error(verdictNames[got.verdict])
			}
			for _, f := range []flow{inside, other} { // a later fragment goes the way of the first
				want := map[bool]lbVerdict{true: lbVerdictFORWARDED_FRAGMENT, false: lbVerdictDROPPED_UNKNOWN_FRAGMENT}[f == inside]
				w.check(fragmentOf(f.client.Addr(), vip, 17, 77, 0, true, f.udp(make([]byte, 72))))
				w.checkVerdict(fragmentOf(f.client.Addr(), vip, 17, 77, 80, false, make([]byte, 40)), want)
			}
		}
	}
}

// A client can make a connection id that names a server, or get one from a friend.
func TestALongHeaderBeginsAConnectionWhateverItsID(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, algorithm := range []model.QUICAlgorithm{model.QUICPlain, model.QUICSinglePass} {
			w := newWorld(t, serviceOf("quic", vip, allowing(byConnectionID(model.DispatchRR, model.QUIC{Algorithm: algorithm}))))
			inside, other := flowTo(vip, 443, 1), outside(vip, 443, 1)
			id := w.idOf("quic", 2, 1, 7)
			long := func(f flow, id []byte) []byte {
				return f.datagram(slices.Concat([]byte{0xc0, 0, 0, 0, 1, byte(len(id))}, id, make([]byte, 60)))
			}
			w.checkVerdict(other.short(id), lbVerdictFORWARDED_BY_COOKIE) // the client of a connection that lives has moved
			w.checkVerdict(long(other, id), lbVerdictDROPPED_NOT_ALLOWED)
			w.checkVerdict(long(other, []byte("12345678")), lbVerdictDROPPED_NOT_ALLOWED)
			w.checkVerdict(long(inside, id), lbVerdictFORWARDED_BY_COOKIE)
			w.checkVerdict(long(inside, []byte("12345678")), lbVerdictFORWARDED_NEW)
		}
	}
}

func TestPathErrorsAreAllowedAsTheFlowThatTheyQuote(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("web", vip, allowing(nil)))
		for _, f := range []flow{flowTo(vip, 443, 1), outside(vip, 443, 1)} {
			short := map[bool]lbVerdict{true: lbVerdictFORWARDED_ICMP_BY_FALLBACK, false: lbVerdictDROPPED_NOT_ALLOWED}[f == flowTo(vip, 443, 1)]
			kind, header := byte(3), 28
			if vip.Is6() {
				kind, header = 1, 48
			}
			sent := f.answer(w.cookieFor("web", f, 2, 1))
			w.checkVerdict(pathError(f, kind, 0, 0, sent, 128), lbVerdictFORWARDED_ICMP_BY_COOKIE)
			w.checkVerdict(pathError(f, kind, 0, 0, sent, header), short)
		}
	}
}

func TestSessionsBeginForAllowedClientsAlone(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		w := newWorld(t, serviceOf("tls", vip, allowing(onlySessions)))
		for _, f := range []flow{flowTo(vip, 8443, 1), outside(vip, 8443, 1)} {
			want := map[bool]lbVerdict{true: lbVerdictANSWERED_SYN, false: lbVerdictDROPPED_NOT_ALLOWED}[f == flowTo(vip, 8443, 1)]
			for _, options := range [][]byte{synOptions(), nil} {
				if got := w.run(f.frame(f.synSegment(anySequence(), 0, options))); got.verdict != want {
					t.Errorf("%s: %s", f.client, verdictNames[got.verdict])
				}
			}
			if got := w.run(f.frame(f.tcp(ack, timestamps(1, 2), []byte("hello")))); (got.verdict == lbVerdictDROPPED_NOT_ALLOWED) != (want == lbVerdictDROPPED_NOT_ALLOWED) {
				t.Errorf("%s, a first segment: %s", f.client, verdictNames[got.verdict])
			}
		}
	}
}

// A new process knows the lists, and empties those that nobody has before their numbers are used again.
func TestListsOfAllowedClientsOutliveTheProcess(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, allowing(nil)), serviceOf("web6", vip6, allowing(nil)))
	lists, err := w.lb.Allowed()
	mustSet(err)
	orphan := uint32(1)
	for lists[orphan] != nil {
		orphan++
	}
	everybody := prefixes("0.0.0.0/0")
	mustSet(w.lb.apply(plan.WriteAllowed{List: orphan, Prefixes: everybody}))
	restored, err := plan.Restore(testLimits, w.lb)
	mustSet(err)
	changes, err := restored.Update(&w.want)
	mustSet(err)
	for _, change := range changes {
		if _, ok := change.(plan.WriteAllowed); ok {
			t.Errorf("%+v: nothing has changed", change)
		}
	}
	mustSet(w.lb.Apply(changes))
	now, err := w.lb.Allowed()
	mustSet(err)
	sort := func(lists map[uint32][]netip.Prefix) map[uint32][]netip.Prefix {
		for _, list := range lists {
			slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		}
		return lists
	}
	if !maps.EqualFunc(sort(now), sort(lists), slices.Equal) {
		t.Errorf("have %v, want %v", now, lists)
	}
}
