package lb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// cutRig is a load balancer of a TCP and a UDP service whose far end sees the fragments that it sends.
func cutRig(t *testing.T, vlan, mtu uint16, change func(*model.Service)) *holdRig {
	r := newHoldRig(t, vlan, serviceOf("web", vip4, change))
	r.update(func(want *plan.Want) {
		want.Services = append(want.Services, plan.Service{Service: udpService("dns", vip4, func(s *model.Service) {
			if web := service(want, "web"); web.Forward != model.ForwardNAT {
				s.Servers, s.Forward = web.Servers, web.Forward
			}
		})})
		for address, path := range want.Paths {
			path.MTU = mtu
			want.Paths[address] = path
		}
	})
	return r
}

// cut sends an IP packet without Don't Fragment through both programs, and compares what comes out with the reference.
func (r *holdRig) cut(ip []byte, mtu int) {
	r.Helper()
	var got result
	mustSet(r.space.Do(func() error { got, _ = r.checkVerdict(ethernet(0, ip), lbVerdictFORWARDED_IN_FRAGMENTS); return nil }))
	r.tell(got.order)
	front, inner := got.frame[:got.front], got.frame[got.front:]
	link := linkLength(got.frame)
	pieces := cut(inner, mtu-got.front+link)
	seen := r.seen()
	if len(seen) != len(pieces) || len(pieces) < 2 {
		r.Fatalf("%d fragments, want %d", len(seen), len(pieces))
	}
	var data []byte
	for i, frame := range seen {
		want := slices.Concat(front, pieces[i])
		resizeOuter(want[link:], len(front)-link)
		if err := verifyFrame(want); err != nil || len(want)-link > mtu {
			r.Fatalf("fragment %d of %d bytes: %v", i, len(want)-link, err)
		}
		want = append(want[:12:12], want[link-2:]...) // the kernel takes a tag off before sockets see the frame
		if !bytes.Equal(frame, want) {
			r.Fatalf("fragment %d:\ngot  %x\nwant %x", i, frame, want)
		}
		data = append(data, pieces[i][20:]...)
	}
	if !bytes.Equal(data, inner[20:]) {
		r.Fatal("the fragments are not the packet")
	}
}

// resizeOuter corrects outer headers of that length to what follows them.
func resizeOuter(packet []byte, outer int) {
	switch {
	case outer == 0:
		return
	case packet[0]>>4 == 6:
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
		if packet[6] == 17 {
			binary.BigEndian.PutUint16(packet[44:], uint16(len(packet)-40))
		}
	default:
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		setIPv4Checksum(packet)
		if packet[9] == 17 {
			binary.BigEndian.PutUint16(packet[24:], uint16(len(packet)-20))
		}
	}
}

func randomBytes(random *rand.Rand, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	return data
}

func TestPacketsWithoutDontFragmentGoInFragments(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE, model.ForwardSRv6} {
		for _, family := range familiesOf(forward) {
			if family.vip.Is6() {
				continue
			}
			for _, vlan := range []uint16{0, 7} {
				mtu := 576 + random.IntN(1000)
				t.Run(fmt.Sprint(forward, " ipv6=", family.server, " ", vlan, " ", mtu), func(t *testing.T) {
					r := cutRig(t, vlan, uint16(mtu), func(s *model.Service) { withServers(family.server, 1, 2, 3)(s); s.Forward = forward })
					f, u := flowTo(vip4, 80, 1), flowTo(vip4, 53, 2)
					for range 3 {
						size := min(mtu+random.IntN(2*mtu), 3300) // test runs at tc take a page
						r.cut(mayFragment(ipPacket(client4, vip4, 6, f.tcp(ack, timestamps(1, r.cookieFor("web", f, 2, 1)), randomBytes(random, size)))), mtu)
						datagram := u.udp(randomBytes(random, size))
						r.cut(mayFragment(ipPacket(client4, vip4, 17, datagram)), mtu)
						// a client's own fragments, which are cut further
						middle := len(datagram) / 2 &^ 7
						if middle+20 <= mtu {
							continue
						}
						id := random.Uint32N(1 << 16)
						for _, own := range [][]byte{
							fragmentOf(client4, vip4, 17, id, 0, true, datagram[:middle]), fragmentOf(client4, vip4, 17, id, middle, false, datagram[middle:]),
						} {
							r.cut(mayFragment(own[14:]), mtu)
						}
					}
				})
			}
		}
	}
}

func TestNATedPacketsGoInFragmentsToo(t *testing.T) {
	r := cutRig(t, 0, 1400, func(s *model.Service) { s.Return, s.Ports = model.ReturnThrough, []uint16{80}; setPorts(s, 8080) })
	f := flowTo(vip4, 80, 1)
	r.cut(mayFragment(ipPacket(client4, vip4, 6, f.tcp(syn, nil, make([]byte, 1400)))), 1400)
}

func TestWhatCannotGoInFragmentsIsAnswered(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withServers(false, 1, 2, 3)), udpService("dns", vip4, nil))
	w.update(func(want *plan.Want) { service(want, "web").Servers[1].State = model.StateDraining })
	u := flowTo(vip4, 53, 2)
	for _, one := range []struct {
		mtu     uint16
		length  int
		verdict lbVerdict
	}{
		{1500, 9216 - 28, lbVerdictFORWARDED_IN_FRAGMENTS}, {1500, 9217 - 28, lbVerdictANSWERED_TOO_BIG}, // longer than any frame
		{596, 8*552 - 8, lbVerdictFORWARDED_IN_FRAGMENTS}, {596, 8*552 - 7, lbVerdictANSWERED_TOO_BIG}, // 9 fragments
		{88, 128, lbVerdictFORWARDED_IN_FRAGMENTS}, {87, 128, lbVerdictANSWERED_TOO_BIG}, // narrower than any path
		{19, 128, lbVerdictANSWERED_TOO_BIG}, // than the tunnel
	} {
		setMTU(w, one.mtu)
		w.checkVerdict(ethernet(0, mayFragment(ipPacket(client4, vip4, 17, u.udp(make([]byte, one.length))))), one.verdict)
	}
	setMTU(w, 1500)
	seen := map[lbVerdict]int{} // second chances are not for fragments
	for n := range 40 {
		f := flowTo(vip4, 80, n)
		got, want := w.check(ethernet(0, mayFragment(ipPacket(client4, vip4, 6, f.tcp(ack, nil, make([]byte, 1460))))))
		seen[got.verdict]++
		if got.verdict == lbVerdictFORWARDED_IN_FRAGMENTS && len(want.stops) > 0 {
			t.Fatal("fragments have stops")
		}
	}
	if seen[lbVerdictANSWERED_TOO_BIG] == 0 || seen[lbVerdictFORWARDED_IN_FRAGMENTS] == 0 {
		t.Errorf("verdicts %v", seen)
	}
}

func TestWhatGoesInFragmentsIsLimited(t *testing.T) {
	w := newWorld(t, udpService("dns", vip4, nil))
	onOneCPU(t)
	setMTU(w, 1500)
	frame := ethernet(0, mayFragment(ipPacket(client4, vip4, 17, flowTo(vip4, 53, 1).udp(make([]byte, 1472)))))
	const kind = 2 // ANSWER_IN_FRAGMENTS
	owe := func(until uint64) {
		debts := slices.Repeat([]uint64{until}, ebpf.MustPossibleCPU())
		mustSet(w.lb.objects.AnswerDebts.Put(uint32(kind), debts))
	}
	verdictOf := func() lbVerdict {
		before := w.verdicts()
		w.runOnly(frame)
		after := w.verdicts()
		for _, verdict := range []lbVerdict{lbVerdictFORWARDED_IN_FRAGMENTS, lbVerdictDROPPED_FRAGMENT_LIMIT} {
			if key := (verdictKey{"dns", verdict}); after[key] > before[key] {
				return verdict
			}
		}
		return lbVerdictVERDICT_CONTINUE
	}
	now := func() uint64 {
		var at unix.Timespec
		mustSet(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
		return uint64(at.Nano())
	}
	owe(now() + uint64(10*time.Second))
	if got := verdictOf(); got != lbVerdictDROPPED_FRAGMENT_LIMIT {
		t.Errorf("beyond the limit: %s", verdictNames[got])
	}
	owe(now() + uint64(100*time.Millisecond)) // less than a burst
	var before, after []uint64
	mustSet(w.lb.objects.AnswerDebts.Lookup(uint32(kind), &before))
	if got := verdictOf(); got != lbVerdictFORWARDED_IN_FRAGMENTS {
		t.Errorf("within the limit: %s", verdictNames[got])
	}
	mustSet(w.lb.objects.AnswerDebts.Lookup(uint32(kind), &after))
	if paid := slices.Max(after) - before[0]; paid < 20_000 || slices.Equal(before, after) {
		t.Errorf("one packet costs %d ns", paid)
	}
}

func TestForgedOrdersSendNothing(t *testing.T) {
	r := cutRig(t, 0, 1500, nil)
	ip := mayFragment(ipPacket(client4, vip4, 17, flowTo(vip4, 53, 1).udp(make([]byte, 1472))))
	var got result
	mustSet(r.space.Do(func() error { got, _ = r.checkVerdict(ethernet(0, ip), lbVerdictFORWARDED_IN_FRAGMENTS); return nil }))
	if wire := r.run(got.order); wire.verdict != lbVerdictDROPPED_FORGED || wire.action != xdpDrop {
		t.Errorf("an order from the wire: %s", verdictNames[wire.verdict])
	}
	changed := func(change func(order []byte)) []byte {
		frame := slices.Clone(got.order)
		change(frame)
		return frame
	}
	for name, order := range map[string][]byte{
		"no service":      changed(func(o []byte) { binary.NativeEndian.PutUint16(o[6:], 999) }),
		"no server":       changed(func(o []byte) { binary.NativeEndian.PutUint16(o[8:], 999) }),
		"no front":        changed(func(o []byte) { binary.NativeEndian.PutUint16(o[10:], 1) }),
		"front too long":  changed(func(o []byte) { binary.NativeEndian.PutUint16(o[10:], 256) }),
		"a detour":        changed(func(o []byte) { o[13]++ }),
		"a cut frame":     got.order[:1000],
		"offsets too big": changed(func(o []byte) { binary.BigEndian.PutUint16(o[34+6:], 0x1ff0) }),
		"fits":            changed(func(o []byte) { binary.BigEndian.PutUint16(o[34+2:], 100) }),
	} {
		if r.tell(order); len(r.seen()) != 0 {
			t.Errorf("%s: something was sent", name)
		}
	}
	r.cut(ip, 1500)
}
