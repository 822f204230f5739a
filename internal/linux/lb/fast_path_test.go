package lb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/linux/internal/wire"
	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func fastCookies(bits uint8, change func(*model.Service)) func(*model.Service) {
	return func(s *model.Service) {
		s.CookieBits, s.Dispatch = bits, model.DispatchMaglev
		if change != nil {
			change(s)
		}
	}
}

func fastHash(change func(*model.Service)) func(*model.Service) {
	return func(s *model.Service) {
		s.Affinity, s.Dispatch = model.AffinityHash, model.DispatchMaglev
		change(s)
	}
}

func fastQUIC(algorithm model.QUICAlgorithm, nonce uint8, forward model.Forward) func(*model.Service) {
	return func(s *model.Service) {
		byConnectionID(model.DispatchRR, model.QUIC{Algorithm: algorithm, NonceLength: nonce})(s)
		s.Forward = forward
	}
}

func fastDatagrams(forward model.Forward) func(*model.Service) {
	return func(s *model.Service) { s.Protocol, s.Forward = model.ProtocolUDP, forward }
}

func fastVIP(n byte) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 100, n}) }

// fastWorld has services whose packets may take the fast path, each with something that they must not where it shows. "other" is for goesFast.
func fastWorld(t *testing.T) *world {
	policy := func(dispatch model.Dispatch, ids ...uint16) func(*model.Service) {
		return fastCookies(14, func(s *model.Service) { // where packets draw lots there is but one
			withServers(false, ids...)(s)
			s.Dispatch = dispatch
		})
	}
	candidates := func(ipv6 bool) func(*model.Service) {
		return func(s *model.Service) {
			withServers(ipv6, 1, 2, 3)(s)
			s.Dispatch, s.Affinity = model.DispatchChoices, model.AffinityHistory
		}
	}
	w := newWorld(t, serviceOf("web", fastVIP(10), fastCookies(14, nil)), serviceOf("narrow", fastVIP(11), fastCookies(8, withServers(false, 1, 127))),
		serviceOf("wide", fastVIP(12), fastCookies(16, withServers(false, 1, 2, 30000))),
		serviceOf("hash", fastVIP(13), fastHash(func(*model.Service) {})),
		serviceOf("gue", fastVIP(14), fastCookies(14, func(s *model.Service) { s.Forward = model.ForwardGUE })),
		serviceOf("over6", fastVIP(15), fastCookies(14, withServers(true, 1, 2))),
		serviceOf("l2", fastVIP(16), fastCookies(14, func(s *model.Service) { s.Forward = model.ForwardL2 })),
		serviceOf("older", fastVIP(17), fastHash(func(s *model.Service) { s.Fallback = model.FallbackSecondChance })),
		serviceOf("rr", fastVIP(18), policy(model.DispatchRR, 1, 3)), serviceOf("p2c", fastVIP(19), policy(model.DispatchP2C, 1)),
		serviceOf("least", fastVIP(20), policy(model.DispatchLeast, 1, 3)), serviceOf("awfd", fastVIP(21), policy(model.DispatchAWFD, 1)),
		serviceOf("six", vip6, fastCookies(14, nil)), serviceOf("six4", plus(vip6, 1), fastCookies(14, withServers(false, 1, 2))),
		serviceOf("hash6", plus(vip6, 2), fastHash(func(*model.Service) {})),
		serviceOf("gue6", plus(vip6, 3), fastCookies(14, func(s *model.Service) { s.Forward = model.ForwardGUE })),
		serviceOf("srv6", plus(vip6, 4), fastCookies(14, func(s *model.Service) { withServers(true, 1, 2, 3)(s); s.Forward = model.ForwardSRv6 })),
		serviceOf("srv64", fastVIP(22), fastCookies(14, func(s *model.Service) { withServers(true, 1, 2, 3)(s); s.Forward = model.ForwardSRv6 })),
		serviceOf("column", fastVIP(23), candidates(false)), serviceOf("column6", plus(vip6, 5), candidates(true)),
		serviceOf("segments", plus(vip6, 13), func(s *model.Service) { candidates(true)(s); s.Forward = model.ForwardSRv6 }),
		serviceOf("quic", fastVIP(24), fastQUIC(model.QUICSinglePass, 0, model.ForwardIPIP)), serviceOf("quic-plain", fastVIP(25), fastQUIC(model.QUICPlain, 4, model.ForwardIPIP)),
		serviceOf("quic-gue", fastVIP(26), fastQUIC(model.QUICSinglePass, 0, model.ForwardGUE)), serviceOf("quic-four", fastVIP(27), fastQUIC(model.QUICFourPass, 5, model.ForwardIPIP)),
		serviceOf("quic6", plus(vip6, 6), fastQUIC(model.QUICSinglePass, 0, model.ForwardIPIP)),
		serviceOf("l2-six", plus(vip6, 7), fastCookies(14, func(s *model.Service) { s.Forward = model.ForwardL2 })),
		serviceOf("l2-hash", fastVIP(28), fastHash(func(s *model.Service) { s.Forward = model.ForwardL2 })),
		serviceOf("udp", fastVIP(29), fastHash(fastDatagrams(model.ForwardIPIP))), serviceOf("udp6", plus(vip6, 8), fastHash(fastDatagrams(model.ForwardIPIP))),
		serviceOf("udp-gue", fastVIP(30), fastHash(fastDatagrams(model.ForwardGUE))), serviceOf("udp-l2", fastVIP(31), fastHash(fastDatagrams(model.ForwardL2))),
		serviceOf("local", fastVIP(32), fastHash(func(s *model.Service) { s.Affinity = model.AffinityLocal })),
		serviceOf("udp-local", fastVIP(33), fastHash(func(s *model.Service) { fastDatagrams(model.ForwardIPIP)(s); s.Affinity = model.AffinityLocal })),
		serviceOf("allow", fastVIP(34), allowing(fastCookies(14, nil))), serviceOf("allow6", plus(vip6, 9), func(s *model.Service) {
			fastCookies(14, nil)(s)
			s.Allow = prefixes("2001::/57")
		}),
		serviceOf("allow-quic", fastVIP(35), allowing(fastQUIC(model.QUICSinglePass, 0, model.ForwardIPIP))),
		serviceOf("allow-udp", fastVIP(36), allowing(fastHash(fastDatagrams(model.ForwardIPIP)))),
		serviceOf("vips", fastVIP(37), fastCookies(14, func(s *model.Service) { s.MoreVIPs = []netip.Addr{plus(vip6, 11), fastVIP(38), plus(vip6, 12)} })),
		serviceOf("other", fastVIP(99), fastCookies(16, withServers(false, 1, 2, 3, 127, 30000))))
	w.update(func(want *plan.Want) {
		want.Keys = testKeys(1, 2)
		s := service(want, "older") // packets of its third server's slots have a second stop
		s.Servers = slices.Clone(s.Servers)[:2]
		changePath(want, "narrow", 127, func(p *plan.Path) { p.VLAN = 7 })
		changePath(want, "wide", 2, func(p *plan.Path) { p.MTU = 100 })
	})
	return w
}

// changePath makes the way to a server another one than testPath's.
func changePath(want *plan.Want, name string, id uint16, change func(*plan.Path)) {
	address := serverIn(service(want, name), id).Address
	path := testPath(address)
	change(&path)
	want.Paths[address] = path
}

func plus(address netip.Addr, n byte) netip.Addr {
	bytes := address.As16()
	bytes[15] += n
	return netip.AddrFrom16(bytes)
}

// goesFast reports whether a packet takes the fast path. Only that goes by the word in its service's slots: here it names a row with the servers of "other", or of "tagged-other".
func (w *world) goesFast(frame []byte, name string) bool {
	t, places := &w.lb.tables, w.tables.Places()
	spare, other := uint32(len(t.services)-1), "other"
	if strings.HasPrefix(name, "tagged") {
		other = "tagged-other"
	}
	for _, number := range places[name].Numbers {
		row := w.lb.Service(w.lb.ServiceRow(number))
		row.IDsBase = w.lb.Service(w.lb.ServiceRow(places[other].Number)).IDsBase
		t.services[spare] = row
		for _, slot := range w.lb.vipSlotsOf[number] {
			if slot.fast != 0 && slot.number == number { // else it is another service's by now, and publishRow leaves it as it is
				slot.fast = spare<<4 | slot.fast&(15|7<<29)
			}
		}
		spare--
		defer w.lb.publishRow(number)
	}
	before := w.serverTraffic(other)
	w.runOnly(frame)
	return !maps.Equal(before, w.serverTraffic(other))
}

// outcome is all that can be seen of a frame's way.
type outcome struct {
	action   uint32
	frame    []byte
	verdicts map[verdictKey]uint64
	servers  map[string]map[uint16]ServerTraffic
	turns    []uint32 // after the packet, by service
	loads    map[uint32]int32
	starting uint64 // what is known of the connection, of QUIC
}

// walk looks at the verdicts of some services, empty: of none, none given: of all, which takes most of the time.
func (w *world) walk(program *ebpf.Program, frame []byte, services ...string) (o outcome) {
	w.Helper()
	w.payAnswers()
	w.empty(w.lb.objects.Closing)
	w.empty(w.lb.objects.LocalConnections)
	if key, ok := w.localKey(frame); ok && len(frame)%2 == 0 {
		mustSet(w.lb.objects.LocalConnections.Put(key, lbLocalConnection{Id: 2, Packets: 1}))
	}
	w.eachService(func(place plan.Place) {
		mustSet(w.lb.objects.Turns.Put(place.Number, lbCursor{Turn: uint32(len(frame))}))
		for _, index := range place.Counters {
			w.lb.tables.loads[index].value = int32(len(frame)) / 20 * int32(index)
		}
		w.lb.writeLoads(w.lb.ServiceRow(place.Number))
	})
	w.replicate(frame)
	before := w.counters(services...)
	place, first, begun := w.startingPlace(frame)
	if begun {
		known := uint64(0)
		if len(frame)%2 == 0 {
			known = place&^0xffff | uint64(first)
		}
		mustSet(w.lb.objects.Starting.Put(uint32(uint16(place)), known))
	}
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	var err error
	if o.action, err = program.Run(&options); err != nil {
		w.Fatalf("test run of %x: %v", frame, err)
	}
	if begun {
		mustSet(w.lb.objects.Starting.Lookup(uint32(uint16(place)), &o.starting))
	}
	o.loads = map[uint32]int32{}
	after := w.counters(services...)
	o.frame, o.verdicts, o.servers = options.DataOut, after.verdicts, after.servers
	w.eachService(func(place plan.Place) {
		var cursor lbCursor
		mustSet(w.lb.objects.Turns.Lookup(place.Number, &cursor))
		o.turns = append(o.turns, cursor.Turn)
		for _, index := range place.Counters {
			o.loads[index] = w.lb.tables.loads[index].value
		}
	})
	for key := range o.verdicts {
		if o.verdicts[key] -= before.verdicts[key]; o.verdicts[key] == 0 {
			delete(o.verdicts, key)
		}
	}
	for name, servers := range o.servers {
		for id, now := range servers {
			was := before.servers[name][id]
			now.Packets, now.Bytes = now.Packets-was.Packets, now.Bytes-was.Bytes
			now.Connections, now.Closed = now.Connections-was.Connections, now.Closed-was.Closed
			if servers[id] = now; now == (ServerTraffic{}) {
				delete(servers, id)
			}
		}
	}
	return o
}

// localKey is where the local table knows the frame's connection, if its service has one.
func (w *world) localKey(frame []byte) (key lbConnectionKey, ok bool) {
	p, verdict := parseRef(frame)
	if verdict != lbVerdictVERDICT_CONTINUE || len(p.ip) < p.l4+4 {
		return key, false
	}
	s, _ := w.vipService(p.destination, p.dport, p.protocol)
	if s == nil || s.Affinity != model.AffinityLocal {
		return key, false
	}
	key = lbConnectionKey{ClientPort: wire.Port(p.sport), ServicePort: wire.Port(p.dport), Service: w.tables.Places()[s.Name].Number}
	for i, b := 0, p.source.AsSlice(); i < len(b); i += 4 {
		key.Client[i/4] = binary.NativeEndian.Uint32(b[i:])
	}
	return key, true
}

// startingPlace is the hash of a connection that begins, if the frame may be of one, and the first server of its service.
func (w *world) startingPlace(frame []byte) (hash uint64, first uint16, ok bool) {
	p, verdict := parseRef(frame)
	if verdict != lbVerdictVERDICT_CONTINUE || p.protocol != 17 || len(p.ip) < p.l4+8+15 {
		return 0, 0, false
	}
	s, _ := w.vipService(p.destination, p.dport, p.protocol)
	if s == nil || s.Affinity != model.AffinityQUIC {
		return 0, 0, false
	}
	return w.startingHash(s, p), s.Servers[0].ID, true
}

func (w *world) eachService(visit func(plan.Place)) {
	places := w.tables.Places()
	for i := range w.want.Services {
		visit(places[w.want.Services[i].Name])
	}
}

func (o *outcome) equal(p *outcome) bool {
	return o.action == p.action && o.starting == p.starting && bytes.Equal(o.frame, p.frame) && maps.Equal(o.verdicts, p.verdicts) &&
		slices.Equal(o.turns, p.turns) && maps.Equal(o.loads, p.loads) &&
		maps.EqualFunc(o.servers, p.servers, func(a, b map[uint16]ServerTraffic) bool { return maps.Equal(a, b) })
}

// The same packets through both paths: frames and counters are the same. Other tests compare the slow path with the reference.
func TestTheFastPathDoesWhatTheSlowPathDoes(t *testing.T) {
	comparePaths(t, fastWorld(t), fastKinds{
		fast: []string{"web", "narrow", "wide", "hash", "older", "over6", "six", "six4", "hash6", "gue", "gue6", "srv6", "srv64", "column", "column6", "quic", "quic-plain", "quic-gue", "quic6",
			"l2", "l2-six", "l2-hash", "udp", "udp6", "udp-gue", "udp-l2", "local", "udp-local", "allow", "allow6", "allow-quic"},
		syns:     []string{"web", "rr", "p2c", "least", "awfd", "column", "column6", "segments", "six", "srv6", "quic", "quic-plain", "quic-gue", "quic6", "l2", "l2-six", "local", "udp-local"},
		starting: []string{"quic", "quic-plain", "quic-gue", "quic6"},
		cookies:  []string{"web", "narrow", "wide", "gue", "over6", "l2", "six", "six4", "gue6", "srv6", "srv64", "quic-four", "allow", "allow6"},
	})
}

// fastKinds are names of services.
type fastKinds struct {
	fast, syns, starting []string // of which such packets shall have taken the fast path
	cookies              []string // of which packets shall have gone by their cookie
}

// comparePaths draws at least 3,000 frames, and as many as it takes until every kind was among them: how many of a kind are drawn is chance.
func comparePaths(t *testing.T, w *world, kinds fastKinds) {
	random := seeded(t)
	byCookie, fast, fastSYNs, starting := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	missing := func() (missing []string) {
		seen := func(what string, count map[string]int, least int, names []string) {
			for _, name := range names {
				if count[name] < least {
					missing = append(missing, fmt.Sprintf("%s of %s: %d", what, name, count[name]))
				}
			}
		}
		seen("packets on the fast path", fast, 10, kinds.fast)
		seen("new connections on the fast path", fastSYNs, 2, kinds.syns)
		seen("known first flights on the fast path", starting, 2, kinds.starting)
		seen("packets by cookie", byCookie, 10, kinds.cookies)
		return missing
	}
	for n := 0; n < 3000 || n < 60000 && len(missing()) > 0; n++ {
		frame, name := anyFastFrame(w, random)
		looked := []string{name, ""}
		if n%20 == 0 {
			looked = nil // at all
		}
		short, slow := w.walk(w.lb.Program(), frame, looked...), w.walk(w.lb.objects.program("lb_slow"), frame, looked...)
		if !short.equal(&slow) {
			t.Fatalf("%x becomes\n%+v, on the slow path\n%+v", frame, short, slow)
		}
		for key, packets := range short.verdicts {
			if packets > 0 && key.verdict == lbVerdictFORWARDED_BY_COOKIE {
				byCookie[key.service]++
			}
		}
		if w.goesFast(frame, name) {
			fast[name]++
			if short.verdicts[verdictKey{name, lbVerdictFORWARDED_NEW}] > 0 {
				fastSYNs[name]++
			}
			starting[name] += int(short.verdicts[verdictKey{name, lbVerdictFORWARDED_STARTING}])
		}
	}
	if few := missing(); len(few) > 0 {
		t.Errorf("too few: %v", few)
	}
}

func TestWhatTheFastPathCountedStaysWhenItsServerLeaves(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	f := flowTo(vip4, 443, 1)
	frame := f.carrying(w.cookieFor("web", f, 2, 1))
	count := func() verdict.Traffic {
		traffic, err := w.lb.VerdictTraffic(w.tables.Places()["web"])
		mustSet(err)
		return traffic[lbVerdictFORWARDED_BY_COOKIE]
	}
	for range 3 {
		w.checkVerdict(frame, lbVerdictFORWARDED_BY_COOKIE)
	}
	want := verdict.Traffic{Packets: 3, Bytes: 3 * uint64(len(frame)-14)}
	if got := w.serverTraffic("web")[2]; got.Traffic != want || count() != want {
		t.Fatalf("counted %+v for the server and %+v for the service, want %+v", got, count(), want)
	}
	second, before := service(&w.want, "web").Servers[1], w.tables.Places()["web"]
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Servers = slices.Delete(slices.Clone(s.Servers), 1, 2)
	})
	if count() != want {
		t.Errorf("after the server has left %+v, want %+v", count(), want)
	}
	traffic, err := w.lb.VerdictTraffic(before) // of who has not heard that it has left
	mustSet(err)
	if got := traffic[lbVerdictFORWARDED_BY_COOKIE]; got != want {
		t.Errorf("counted twice: %+v, want %+v", got, want)
	}
	w.update(func(want *plan.Want) { s := service(want, "web"); s.Servers = append(slices.Clone(s.Servers), second) })
	w.checkVerdict(frame, lbVerdictFORWARDED_BY_COOKIE)
	want.Packets, want.Bytes = 4, want.Bytes/3*4
	if got := w.serverTraffic("web")[2]; got.Packets != 1 || count() != want {
		t.Errorf("after it came back %+v for the server and %+v for the service, want %+v", got, count(), want)
	}
}

// An update that was interrupted between vips and the faster copy of it is completed by the next process.
func TestPlacesOfDestinationsFollowVIPsAfterAnInterruptedUpdate(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil))
	vips, err := w.lb.VIPs()
	mustSet(err)
	var moved, gone plan.VIPKey
	for key := range vips {
		if key.IPv6 == 0 && key.Protocol == 6 {
			moved = key
		} else if key.IPv6 == 0 {
			gone = key
		}
	}
	slot, destination := w.lb.vipSlot(moved.PortKey)
	other, otherDestination := w.lb.vipSlot(gone.PortKey)
	if slot.destination != destination || slot.fast == 0 || other.destination != otherDestination {
		t.Fatalf("no slots: %+v, %+v", slot, other)
	}
	const number = 7
	t.Cleanup(func() { // the program is that of all tests
		mustSet(errors.Join(w.lb.objects.Vips.Put(moved.PortKey, vips[moved]), w.lb.objects.Vips.Put(gone.PortKey, vips[gone]), w.lb.fillVIPSlot(gone.PortKey, vips[gone]), w.lb.adoptVIPs()))
	})
	mustSet(w.lb.objects.Vips.Put(moved.PortKey, uint32(number)))
	mustSet(w.lb.objects.Vips.Delete(gone.PortKey))
	w.lb.vipSlotsOf = map[uint32][]*vipSlot{}
	mustSet(w.lb.adoptVIPs())
	if slot.number != number || slot.fast != 0 || other.destination != 0 {
		t.Errorf("slots after the next start: %+v, %+v", slot, other)
	}
}

// Two IPv6 destinations whose places are alike: packets of both go where they should, before and after either leaves.
func TestDestinationsOfOnePlaceAreKeptApart(t *testing.T) {
	const golden = 0x9e3779b97f4a7c15
	one := netip.MustParseAddr("2001:db8::10").As16()
	first, second := binary.LittleEndian.Uint64(one[:]), binary.LittleEndian.Uint64(one[8:])
	two := [16]byte{}
	binary.LittleEndian.PutUint64(two[8:], second+1<<32)
	binary.LittleEndian.PutUint64(two[:], first-(1<<32*golden&(1<<64-1)))
	vips := []netip.Addr{netip.AddrFrom16(one), netip.AddrFrom16(two)}
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		w := newWorld(t, serviceOf("a", vips[order[0]], nil), serviceOf("b", vips[order[1]], nil))
		check := func(names ...string) {
			for _, name := range names {
				f := flowTo(service(&w.want, name).VIP, 443, 1)
				w.checkVerdict(f.carrying(w.cookieFor(name, f, 2, 1)), lbVerdictFORWARDED_BY_COOKIE)
				w.checkVerdict(f.frame(f.tcp(syn, synOptions(), nil)), lbVerdictFORWARDED_NEW) // of that service
			}
		}
		check("a", "b")
		w.update(func(want *plan.Want) { want.Services = want.Services[1:] })
		check("b")
	}
}
