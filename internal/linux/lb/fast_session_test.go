package lb

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// helloWorld has services whose connections may begin on the fast path of lb_hello, each with something that must not where it shows. "other" is for
// goesFast.
func helloWorld(t *testing.T) *world {
	sessions := func(forward model.Forward, change func(*model.Service)) func(*model.Service) {
		return func(s *model.Service) {
			withSessions(s)
			s.Forward = forward
			if change != nil {
				change(s)
			}
		}
	}
	ids := func(ids ...uint16) func(*model.Service) { return withServers(false, ids...) }
	w := newWorld(t, serviceOf("ipip", fastVIP(10), sessions(model.ForwardIPIP, nil)), serviceOf("gue", fastVIP(11), sessions(model.ForwardGUE, nil)),
		serviceOf("l2", fastVIP(12), sessions(model.ForwardL2, nil)), serviceOf("over6", fastVIP(13), sessions(model.ForwardIPIP, withServers(true, 1, 2, 3))),
		serviceOf("p2c", fastVIP(14), sessions(model.ForwardIPIP, func(s *model.Service) {
			s.Dispatch = model.DispatchP2C // among one server: what both paths draw is not the same
			withServers(false, 1)(s)
		})),
		serviceOf("limited", fastVIP(15), limitedTo(2)), serviceOf("tagged", fastVIP(16), sessions(model.ForwardIPIP, ids(41, 42))),
		serviceOf("narrow", fastVIP(17), sessions(model.ForwardIPIP, ids(127, 3))), serviceOf("down", fastVIP(18), sessions(model.ForwardIPIP, nil)),
		serviceOf("six", vip6, sessions(model.ForwardIPIP, nil)), serviceOf("six4", plus(vip6, 1), sessions(model.ForwardGUE, ids(1, 2, 3))),
		serviceOf("other", fastVIP(99), fastCookies(16, withServers(false, 1, 2, 3, 127))), serviceOf("tagged-other", fastVIP(98), fastCookies(16, withServers(false, 1, 2, 3, 41, 42))))
	w.update(func(want *plan.Want) {
		want.Keys = testKeys(1, 2)
		service(want, "down").Down = map[uint16]bool{2: true}
		changePath(want, "tagged", 41, func(p *plan.Path) { p.VLAN = 7 })
		changePath(want, "narrow", 127, func(p *plan.Path) { p.MTU = 300 })
	})
	return w
}

// anyBeginning shakes hands with a service, and returns what may be the first segment with data, or the one before, with one or two things that are not
// usual.
func (w *world) anyBeginning(random *rand.Rand) (*shake, []byte) {
	s := &w.want.Services[random.IntN(len(w.want.Services)-2)]
	client := netip.AddrFrom4([4]byte{203, 0, 113, byte(random.IntN(256))})
	if s.VIP.Is6() {
		client = netip.AddrFrom16([16]byte{0x20, 1, 7: byte(random.IntN(256)), 15: byte(random.IntN(256))})
	}
	known := &shake{world: w, name: s.Name, sequence: random.Uint32(),
		flow: flow{netip.AddrPortFrom(client, 1024+uint16(random.IntN(60000))), netip.AddrPortFrom(s.VIP, s.Ports[random.IntN(len(s.Ports))])}}
	w.handshake(known, nil)
	nonce := random.Uint64()
	if s.Name == "limited" && random.IntN(2) == 0 {
		nonce = 1<<40 + random.Uint64N(20) // shown by many
	}
	sealed := sessionid.Seal(plan.SessionIDKey(w.want.Keys.Cookie[1+random.Uint32N(2)], s.VIP), nonce, s.Servers[random.IntN(len(s.Servers))].ID)
	name := sealed[:]
	if random.IntN(6) == 0 {
		name[random.IntN(len(name))] ^= 1 << random.IntN(8)
	}
	hello := [](func([]byte) []byte){clientHello, clientHello, ticketHello, sessionIDHello, func([]byte) []byte { return clientHello(nil) },
		func([]byte) []byte { return nil }, func([]byte) []byte { return []byte("GET / HTTP/1.1\r\n\r\n") }}[random.IntN(7)](name)
	for random.IntN(3) == 0 && len(hello) > 0 { // most of them where lengths and kinds are
		hello[[]int{random.IntN(len(hello)), random.IntN(min(len(hello), 120))}[random.IntN(2)]] ^= 1 << random.IntN(8)
	}
	flags, options, offset := byte(psh|ack), timestamps(random.Uint32(), known.value), uint32(0)
	if random.IntN(2) == 0 {
		[]func(){
			func() { flags = []byte{ack, psh, 0, ack | fin, ack | rst, rst, syn | ack, ack | 32}[random.IntN(8)] },
			func() { options = timestamps(random.Uint32(), known.value^1<<random.IntN(32)) },
			func() { options = append(options, 1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2) },
			func() { options = nil },
			func() { offset = 1 + random.Uint32N(3000) },
			func() { offset = random.Uint32() },
			func() { known.reply.Seq ^= 1 << random.IntN(32) },
			func() { known.sequence += random.Uint32N(2) },
			func() { hello = append(hello, make([]byte, random.IntN(100))...) },
		}[random.IntN(9)]()
	}
	frame := known.segment(flags, offset, options, hello)
	if random.IntN(8) == 0 {
		frame[14+random.IntN(min(60, len(frame)-14))] ^= 1 << random.IntN(8)
	}
	if random.IntN(8) == 0 {
		frame = append(frame, make([]byte, random.IntN(20))...)
	}
	return known, frame
}

// begins is what can be seen of the first segment of a connection.
type begins struct {
	outcome
	begun lbSessionBegunSet // of the flow, but for when
	shown map[uint64]uint64 // by outcome
}

// beginning sends it as if it was the first: nothing is known of the connection, or that its hello went to a server before.
func (w *world) beginning(s *shake, frame []byte, fast bool, before lbSessionBegun) (b begins) {
	w.Helper()
	program := w.lb.Program()
	if !fast {
		program = w.lb.objects.program("lb_slow")
	}
	place := w.begunBefore(s, before)
	was := w.shown(s.name)
	b.outcome, b.shown = w.walk(program, frame, s.name, ""), w.shown(s.name)
	for i, n := range was {
		b.shown[i] -= n
	}
	mustSet(w.lb.objects.SessionsBegun.Lookup(place, &b.begun))
	for i := range b.begun.Ways {
		way := &b.begun.Ways[i]
		if way.At = 0; way.Held == 0 {
			way.Generation = 0 // says nothing then
		}
	}
	return b
}

func (w *world) begunBefore(s *shake, before lbSessionBegun) (place uint32) {
	service := service(&w.want, s.name)
	epoch := uint32(1) // whose key has the parity that the answer's timestamp names
	if s.value>>(service.CookieBits-1)&1 == 0 {
		epoch = 2
	}
	hash := cookie.FlowHash(cookie.ServiceKey(w.want.Keys.Cookie[epoch], service.VIP, service.Protocol), s.flow.client, s.flow.service.Port())
	place, before.Tag = uint32(hash>>32)%w.lb.objects.SessionsBegun.MaxEntries(), uint32(hash)
	mustSet(w.lb.objects.SessionsBegun.Put(place, lbSessionBegunSet{Ways: [4]lbSessionBegun{before}}))
	return place
}

func (w *world) shown(name string) map[uint64]uint64 {
	counts, err := w.lb.Hellos(w.tables.Places()[name])
	mustSet(err)
	shown := map[uint64]uint64{}
	for i, n := range counts {
		shown[uint64(i)] = n
	}
	return shown
}

// The same segments through both paths: frames, counters and what is remembered are the same.
func TestHellosTakeTheFastPathAsTheSlowPath(t *testing.T) {
	w, random := helloWorld(t), seeded(t)
	fast, sessions, handshakes := map[string]int{}, map[string]int{}, 0
	for range 3000 {
		s, frame := w.anyBeginning(random)
		before := lbSessionBegun{}
		if random.IntN(8) == 0 {
			before = lbSessionBegun{Id: 1, Sequence: binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, s.sequence+1+random.Uint32N(2)))}
		}
		order := random.IntN(2) == 0 // a session's clients are known to who comes second
		first := w.beginning(s, frame, order, before)
		if first.verdicts[verdictKey{s.name, lbVerdictHELD_HELLO}] > 0 {
			second := w.beginning(s, frame, !order, before)
			if second.verdicts[verdictKey{s.name, lbVerdictANSWERED_HELLO}]+second.verdicts[verdictKey{s.name, lbVerdictHELD_HELLO}] == 0 {
				t.Fatalf("%x is held, and then\n%+v", frame, second)
			}
			continue
		}
		second := w.beginning(s, frame, !order, before)
		if !first.equal(&second.outcome) || first.begun != second.begun || !maps.Equal(first.shown, second.shown) {
			t.Fatalf("%x becomes\n%+v, on the other path (fast: %t)\n%+v", frame, first, !order, second)
		}
		handshakes += int(first.verdicts[verdictKey{s.name, lbVerdictDROPPED_HANDSHAKE}])
		w.begunBefore(s, before)
		if w.goesFast(frame, s.name) {
			fast[s.name]++
			sessions[s.name] += int(first.verdicts[verdictKey{s.name, lbVerdictFORWARDED_BY_SESSION}])
		}
	}
	for _, name := range []string{"ipip", "gue", "l2", "over6", "p2c", "limited", "tagged", "narrow", "down", "six", "six4"} {
		if fast[name] < 10 || sessions[name] < 5 {
			t.Errorf("%s: %d on the fast path, %d of them by a session", name, fast[name], sessions[name])
		}
	}
	if handshakes < 20 {
		t.Errorf("%d handshakes", handshakes)
	}
}

// without runs what is to work without a program that packets would go on to.
func (w *world) without(program string, run func()) {
	spec, err := loadLb()
	mustSet(err)
	calls := w.lb.objects.all["tail_calls"]
	for _, call := range spec.Maps["tail_calls"].Contents {
		if call.Value == program {
			mustSet(calls.Delete(call.Key))
			defer func() { mustSet(calls.Put(call.Key, w.lb.objects.program(program))) }()
		}
	}
	run()
}

// anySYN is of a service that does not choose at random, mostly with the options that clients send.
func (w *world) anySYN(random *rand.Rand) (name string, frame []byte) {
	names := []string{"ipip", "gue", "l2", "over6", "limited", "tagged", "narrow", "down", "six", "six4"}
	name = names[random.IntN(len(names))]
	s := service(&w.want, name)
	client := netip.AddrFrom4([4]byte{203, 0, 113, byte(random.IntN(256))})
	if s.VIP.Is6() {
		client = netip.AddrFrom16([16]byte{0x20, 1, 7: byte(random.IntN(256)), 15: byte(random.IntN(256))})
	}
	if random.IntN(20) == 0 { // nobody to answer
		client = s.VIP
	}
	f := flow{netip.AddrPortFrom(client, 1024+uint16(random.IntN(60000))), netip.AddrPortFrom(s.VIP, s.Ports[random.IntN(len(s.Ports))])}
	linux := []byte{2, 4, byte(random.Uint32()), byte(random.Uint32()), 4, 2, 8, 10, 1, 2, 3, byte(random.Uint32()), 0, 0, 0, 0, 1, 3, 3, byte(random.IntN(20))}
	apple := []byte{2, 4, 5, 0xb4, 1, 3, 3, 6, 1, 1, 8, 10, 9, 8, 7, 6, 0, 0, 0, 0, 4, 2, 0, 0}
	windows := []byte{2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2}
	options := [][]byte{linux, linux, apple, windows, {2, 4, 5, 0xb4}, nil}[random.IntN(6)]
	if len(options) > 0 && random.IntN(3) == 0 {
		options[random.IntN(len(options))] ^= 1 << random.IntN(8)
	}
	flags := []byte{0, 0, 0, 0xc0, 0x40, 1, 4, 8}[random.IntN(8)]
	segment := f.synSegment(random.Uint32(), flags, options)
	if random.IntN(6) == 0 { // TCP Fast Open
		segment = append(segment, make([]byte, random.IntN(100))...)
	}
	if frame = f.frame(segment); random.IntN(8) == 0 {
		frame[14+random.IntN(min(60, len(frame)-14))] ^= 1 << random.IntN(8)
	}
	if random.IntN(8) == 0 {
		frame = append(frame, make([]byte, random.IntN(20))...)
	}
	return name, frame
}

// The same SYNs through both paths: answers and counters are the same.
func TestSYNsOfSessionsTakeTheFastPathAsTheSlowPath(t *testing.T) {
	helloWorld(t).comparesSYNs(seeded(t))
}

func (w *world) comparesSYNs(random *rand.Rand) {
	t := w.TB
	type answeredSYN struct {
		name  string
		frame []byte
	}
	var frames []answeredSYN
	answered, fast := map[string]int{}, map[string]int{}
	for n := 0; n < 3000; n++ {
		name, frame := w.anySYN(random)
		now := sharedSeconds(t)
		first, second := w.walk(w.lb.Program(), frame, name, ""), w.walk(w.lb.objects.program("lb_slow"), frame, name, "")
		if (sharedSeconds(t)+1)/syncookie.PeriodSeconds != (now-1)/syncookie.PeriodSeconds { // the answer says which one it is
			n--
			continue
		}
		if len(first.verdicts)+len(second.verdicts) == 0 { // it became one of a service that chooses at random
			continue
		}
		if !first.equal(&second) {
			t.Fatalf("%x becomes\n%+v, on the slow path\n%+v", frame, first, second)
		}
		if first.verdicts[verdictKey{name, lbVerdictANSWERED_SYN}] == 0 {
			continue
		}
		answered[name]++
		frames = append(frames, answeredSYN{name, frame})
	}
	w.without("lb_slow", func() { // once: the kernel waits for all CPUs when such a call changes
		for _, f := range frames {
			action, err := w.lb.Program().Run(&ebpf.RunOptions{Data: f.frame})
			if mustSet(err); action == xdpTX {
				fast[f.name]++
			}
		}
	})
	for name, n := range answered {
		if n < 100 || fast[name] < n/3 { // 0.57 of them, as frames are drawn
			t.Errorf("%s: of %d SYNs that were answered %d took the fast path", name, n, fast[name])
		}
	}
	if len(answered) != 10 {
		t.Errorf("answered: %v", answered)
	}
}

// An address whose place is another's is found nevertheless: nobody is answered by its name.
func TestAnAddressWithoutAPlaceIsNotAnswered(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	address := func(vip netip.Addr) (key plan.PortKey) {
		copy(key.Address[:], vip.AsSlice())
		return key
	}
	slot, _ := w.lb.vipSlot(address(vip4))
	second := netip.MustParseAddr("10.0.0.1")
	for ; ; second = second.Next() {
		if other, _ := w.lb.vipSlot(address(second)); other == slot {
			break
		}
	}
	w.update(func(want *plan.Want) {
		service := want.Services[0].Service
		service.Name, service.VIP = "second", second
		want.Services = append(want.Services, plan.Service{Service: service})
	})
	t.Cleanup(func() { mustSet(w.lb.objects.AddressesDisplaced.Set(uint32(0))) }) // the program is that of all tests
	for _, pair := range [][2]netip.Addr{{vip4, second}, {second, vip4}} {
		f := flow{netip.AddrPortFrom(pair[0], 999), netip.AddrPortFrom(pair[1], 443)}
		linux := []byte{2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7}
		if got := w.run(f.frame(f.synSegment(anySequence(), 0, linux))); got.verdict != lbVerdictDROPPED_IMPOSSIBLE_SOURCE {
			t.Errorf("a SYN of %s to %s: %s", pair[0], pair[1], verdictNames[got.verdict])
		}
	}
}
