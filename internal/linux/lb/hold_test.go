package lb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
	"github.com/ballast-lb/ballast/internal/testkit/frames"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

const orderType = 0x88b5 // ORDER_SEVERAL

// holdRig is a load balancer whose servers are behind a wire, whose far end sees what is released.
type holdRig struct {
	*world
	space *netspace.Space
	near  int // ifindex
	far   *frames.Socket
}

func newHoldRig(t *testing.T, vlan uint16, service model.Service) *holdRig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	space, err := netspace.CreateUnnamed()
	mustSet(err)
	t.Cleanup(space.Close)
	r := &holdRig{space: space}
	mustSet(space.Do(func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near", MTU: 9000}, PeerName: "far", PeerMTU: 9000}
		mustSet(netlink.LinkAdd(pair))
		for _, name := range []string{"lo", "far", "near"} {
			link, err := netlink.LinkByName(name)
			mustSet(err)
			mustSet(netlink.LinkSetUp(link))
		}
		near, err := net.InterfaceByName("near")
		mustSet(err)
		r.near = near.Index
		r.far, err = frames.Open("far")
		return err
	}))
	t.Cleanup(func() { r.far.Close() })
	r.world = newWorld(t, service)
	for place := range r.lb.objects.Holds.MaxEntries() {
		mustSet(r.lb.objects.Holds.Put(place, lbHold{})) // what other tests have left behind
	}
	r.update(func(want *plan.Want) {
		for address, path := range want.Paths {
			path.Ifindex, path.VLAN, path.MTU = uint32(r.near), vlan, 2000
			want.Paths[address] = path
		}
		want.Keys = testKeys(1, 2)
	})
	return r
}

// send sends a frame through both programs. order: it was one for lb_release.
func (r *holdRig) send(frame []byte) (got result, order bool) {
	r.Helper()
	mustSet(r.space.Do(func() error { got = r.run(frame); return nil }))
	order = got.action == xdpPass && len(got.frame) > 14 && binary.BigEndian.Uint16(got.frame[12:]) == orderType
	if order || (got.action == xdpPass && binary.BigEndian.Uint16(got.frame[12:]) == orderType+1) {
		r.tell(got.frame)
	}
	return got, order
}

// tell has lb_release see a frame.
func (r *holdRig) tell(frame []byte) (action uint32) {
	r.Helper()
	mustSet(r.space.Do(func() (err error) {
		action, err = r.lb.objects.program("lb_release").Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+4096)})
		return err
	}))
	return action
}

// seen are the frames that have come out at the far end: all that were sent before a last one of ours.
func (r *holdRig) seen() (list [][]byte) {
	r.Helper()
	marker := slices.Concat(bytes.Repeat([]byte{0xff}, 12), []byte{0x88, 0xb7}, make([]byte, 46))
	mustSet(r.space.Do(func() error {
		near, err := frames.Open("near")
		mustSet(err)
		defer near.Close()
		return near.Send(marker)
	}))
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		frame, err := r.far.Receive()
		mustSet(err)
		if bytes.Equal(frame, marker) {
			return list
		}
		if len(frame) > 14 && binary.BigEndian.Uint16(frame[12:]) != 0x88b7 && !bytes.Equal(frame[:2], []byte{0x33, 0x33}) {
			list = append(list, slices.Clone(frame))
		}
	}
	r.Fatal("the last frame did not come")
	return nil
}

// directly is what XDP makes of a segment of a connection whose server is known.
func (r *holdRig) directly(frame []byte) []byte {
	r.Helper()
	r.changeBegun(r.begunPlaces(), func(begun *lbSessionBegun) { begun.Held = 0 })
	got, _ := r.send(frame)
	if got.verdict != lbVerdictFORWARDED_STARTING || got.action != xdpRedirect {
		r.Fatalf("%s, action %d", verdictNames[got.verdict], got.action)
	}
	return got.frame
}

// pieces are a hello's, cut at random places, with random orders of options. They are called with TSval.
func (s *shake) pieces(random *rand.Rand, hello []byte, n int) (list []func(uint32) []byte) {
	cuts := []int{0, len(hello)}
	for len(cuts) <= n {
		if at := 1 + random.IntN(len(hello)-1); !slices.Contains(cuts, at) {
			cuts = append(cuts, at)
		}
	}
	slices.Sort(cuts)
	for i := range n {
		if cuts[i+1]-cuts[i] > 1448 {
			return s.pieces(random, hello, n)
		}
		before := random.IntN(3)
		list = append(list, func(value uint32) []byte {
			stamp := timestamps(value, s.value)[2:]
			options := slices.Concat([]byte{1, 1}[:before], stamp, []byte{1, 1}[before:])
			return s.segment(psh|ack, uint32(cuts[i]), options, hello[cuts[i]:cuts[i+1]])
		})
	}
	return list
}

// Promise: The segments of a ClientHello reach the session's server in any order, and when repeated.
func TestHellosInSeveralSegmentsReachTheServerOfTheirSession(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	hellos := 4 // of each server's sessions, and of none
	if os.Getenv("BALLAST_LONG") != "" {
		hellos = 200
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
			for _, vlan := range []uint16{0, 7} {
				t.Run(fmt.Sprint(vip, " ", forward, " ", vlan), func(t *testing.T) {
					r := newHoldRig(t, vlan, serviceOf("web", vip, func(s *model.Service) {
						withSessions(s)
						s.Forward = forward
					}))
					for n := range hellos {
						r.hold(random, flowTo(vip, 443, n), n)
					}
				})
			}
		}
	}
}

// hold sends the pieces of one hello in some order, some of them twice, and compares what the server gets with what it gets piece by piece.
func (r *holdRig) hold(random *rand.Rand, f flow, n int) {
	r.Helper()
	s := r.begin("web", f, anySequence(), 0, synOptions())
	session, verdict := uint16(n%4), lbVerdict(lbVerdictFORWARDED_BY_SESSION) // 0: none
	name := bytes.Repeat([]byte{7}, 16)                                       // of nobody
	if session != 0 {
		name = r.nameOf(f.service.Addr(), session, uint32(1+n%2))
	} else {
		session, verdict = s.fallback(), lbVerdictFORWARDED_NEW
	}
	hello := helloWithKey(name, 1300)
	stamped := s.pieces(random, hello, 2+random.IntN(7))
	values, pieces := make([]uint32, len(stamped)), make([][]byte, len(stamped)) // TSval, as if each might be sent again
	for i := range pieces {
		values[i] = uint32(random.IntN(4) - 2)
		pieces[i] = stamped[i](values[i])
	}
	named := bytes.Index(hello, name) + len(name) // the rest may come later
	order := random.Perm(len(pieces))
	var have []int
	for _, piece := range order {
		got, release := r.send(pieces[piece])
		have = append(have, piece)
		if release {
			if got.verdict != verdict || s.prefix(pieces, have) < named {
				r.Fatalf("%v of %v: %s", have, order, verdictNames[got.verdict])
			}
			break
		}
		if got.verdict != lbVerdictHELD_HELLO || got.action != xdpDrop || s.prefix(pieces, have) >= named {
			r.Fatalf("%v of %v: %s, action %d", have, order, verdictNames[got.verdict], got.action)
		}
		if random.IntN(2) == 0 {
			repeated := have[random.IntN(len(have))]
			again, _ := r.send(pieces[repeated])
			r.checkAgain(s, again, s.prefix(pieces, have), values[repeated])
		}
	}
	released, places := r.seen(), r.begunPlaces()
	for _, frame := range append(pieces, s.echoing(uint32(len(hello)), []byte("early data"))) {
		r.checkFollows(places, frame)
	}
	oldest := values[slices.MinFunc(have, func(a, b int) int { return int(int32(values[a] - values[b])) })]
	for i := range pieces {
		pieces[i] = stamped[i](oldest)
	}
	r.checkReleased(session, pieces, have, released)
}

// checkFollows: what comes right after the release does not overtake it.
func (r *holdRig) checkFollows(places []uint32, frame []byte) {
	r.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		r.changeBegun(places, func(begun *lbSessionBegun) { begun.At = uint16(uint64(clockNow()) * 1_000_000 >> 26) })
		got, release := r.send(frame)
		if got.verdict != lbVerdictFORWARDED_STARTING || release {
			r.Fatalf("what follows: %s, action %d", verdictNames[got.verdict], got.action)
		}
		if got.action == xdpPass {
			return
		} // else it was longer ago than HOLD_DETOUR_TIME: this process was not running
	}
	r.Fatal("what follows goes directly")
}

// checkReleased: as it would have gone to the server directly with the oldest TSval, in order but for what is behind a gap.
func (r *holdRig) checkReleased(session uint16, pieces [][]byte, have []int, released [][]byte) {
	r.Helper()
	slices.Sort(have)
	if len(released) != len(have) {
		r.Fatalf("%d frames were released, not %d", len(released), len(have))
	}
	for i, piece := range have {
		want := r.directly(pieces[piece])
		if to := uint16(want[5]); to != session {
			r.Fatalf("to server %d, not %d", to, session)
		}
		if want[12] == 0x81 { // packet sockets see no tag
			want = slices.Concat(want[:12], want[16:])
		}
		at := slices.IndexFunc(released, func(frame []byte) bool { return bytes.Equal(frame, want) })
		if at < 0 || (piece == i && at != i) {
			r.Fatalf("piece %d was released as number %d, of %v:\n%x\nshould have been\n%x", piece, at, have, released, want)
		}
	}
}

// prefix is how many bytes of the hello are there without a gap.
func (s *shake) prefix(pieces [][]byte, have []int) (length int) {
	for i := 0; slices.Contains(have, i); i++ {
		length += len(s.decode(pieces[i]).TransportLayer().LayerPayload())
	}
	return length
}

// checkAgain: what comes again is acknowledged as far as all is there, if the first piece is.
func (r *holdRig) checkAgain(s *shake, got result, length int, value uint32) {
	r.Helper()
	if length == 0 {
		if got.verdict != lbVerdictHELD_HELLO || got.action != xdpDrop {
			r.Fatalf("again: %s", verdictNames[got.verdict])
		}
		return
	}
	if got.verdict != lbVerdictANSWERED_HELLO || got.action != xdpTX {
		r.Fatalf("again: %s", verdictNames[got.verdict])
	}
	tcp := r.decode(got.frame).TransportLayer().(*layers.TCP)
	if tcp.Ack != s.sequence+1+uint32(length) || tcp.Seq != s.reply.Seq+1 || tcp.SYN || !tcp.ACK || tcp.Window != 64240>>plan.SessionScale || len(tcp.Payload) != 0 ||
		uint16(tcp.DstPort) != s.flow.client.Port() {
		r.Fatalf("answered by %+v", tcp)
	}
	stamps := slices.IndexFunc(tcp.Options, func(o layers.TCPOption) bool { return o.OptionType == layers.TCPOptionKindTimestamps })
	if stamps < 0 || !bytes.Equal(tcp.Options[stamps].OptionData, timestamps(s.value, value)[4:12]) {
		r.Fatalf("timestamps of the answer: %v", tcp.Options)
	}
}

func TestWhatIsHeldEndsByThePolicy(t *testing.T) {
	r := newHoldRig(t, 0, serviceOf("web", vip4, withSessions))
	begin := func(n int) *shake { return r.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions()) }
	hello := helloWithKey(r.nameOf(vip4, 2, 1), 3000)
	expect := func(what string, frame []byte, verdict lbVerdict, released int) {
		t.Helper()
		got, _ := r.send(frame)
		if seen := len(r.seen()); got.verdict != verdict || seen != released {
			t.Errorf("%s: %s, %d segments were released, not %s and %d", what, verdictNames[got.verdict], seen, verdictNames[verdict], released)
		}
	}
	s := begin(1)
	expect("the first piece", s.echoing(0, hello[:500]), lbVerdictHELD_HELLO, 0)
	expect("the client's end", s.segment(ack|fin, 500, timestamps(77, s.value), nil), lbVerdictFORWARDED_NEW, 2)
	s = begin(2)
	expect("an end without a beginning", s.segment(ack|fin, 500, timestamps(77, s.value), nil), lbVerdictFORWARDED_STARTING, 0)
	s = begin(3)
	for i := range 8 {
		expect("a small piece", s.echoing(uint32(10*i), hello[10*i:10*i+10]), lbVerdictHELD_HELLO, 0)
	}
	expect("one more than there is room for", s.echoing(80, hello[80:90]), lbVerdictFORWARDED_NEW, 8)
	s = begin(4)
	expect("the first piece", s.echoing(0, hello[:50]), lbVerdictHELD_HELLO, 0)
	expect("what no hello goes on with", s.echoing(50, bytes.Repeat([]byte{0xff}, 600)), lbVerdictFORWARDED_NEW, 2)
	s = begin(5)
	expect("too long a segment", s.echoing(0, hello[:1537]), lbVerdictFORWARDED_NEW, 0)
	s = begin(6)
	expect("what follows no TLS", s.echoing(100, []byte("later")), lbVerdictHELD_HELLO, 0)
	expect("no TLS", s.echoing(0, []byte("GET / HTTP/1.0")), lbVerdictFORWARDED_NEW, 2)
	s = begin(7)
	whole := clientHello(r.nameOf(vip4, 2, 1))
	expect("what follows a whole hello", s.echoing(uint32(len(whole)), []byte("early data")), lbVerdictHELD_HELLO, 0)
	expect("the hello", s.echoing(0, whole), lbVerdictFORWARDED_BY_SESSION, 2)
	s = begin(8)
	s.value = 0
	expect("without timestamps", s.segment(ack, 0, nil, hello[:500]), lbVerdictFORWARDED_NO_TIMESTAMP, 0)
}

// The client uses its port again, in the midst of a hello.
//
// Promise: A ClientHello with lost segments reaches the session's server once they are sent again.
// Also held by TestLostSegmentsOfAHelloAreSentAgain.
func TestAHelloIsNotMixedWithAnother(t *testing.T) {
	r := newHoldRig(t, 0, serviceOf("web", vip4, withSessions))
	first := anySequence()
	for n := range 4 {
		s := r.begin("web", flowTo(vip4, 443, 1), first+uint32(n)*1e6, 0, synOptions())
		hello := helloWithKey(r.nameOf(vip4, s.fallback()%3+1, 1), 1300+n)
		if got, _ := r.send(s.echoing(0, hello[:700])); got.verdict != lbVerdictHELD_HELLO {
			t.Fatal(verdictNames[got.verdict])
		}
		if n%2 == 0 {
			continue // and forgets it
		}
		got, _ := r.send(s.echoing(700, hello[700:]))
		if released := r.seen(); got.verdict != lbVerdictFORWARDED_BY_SESSION || len(released) != 2 || !bytes.Contains(released[0], hello[:700]) {
			t.Errorf("%s, %d released", verdictNames[got.verdict], len(released))
		}
	}
}

// Who sends first pieces only makes others lose theirs at most: they send them again.
//
// Promise: A client that floods the first segments of ClientHellos displaces other incomplete hellos, which are
// sent again; a displaced first segment goes by the policy, which costs the session and not the connection, and
// memory does not grow.
// Also held by TestAHelloWhoseFirstSegmentIsPushedOutGoesByThePolicy.
func TestBeginningsOfHellosTakeNoMoreThanTheirPlaces(t *testing.T) {
	r := newHoldRig(t, 0, serviceOf("web", vip4, withSessions))
	hello := helloWithKey(r.nameOf(vip4, 2, 1), 1300)
	victim := r.begin("web", flowTo(vip4, 443, 0), anySequence(), 0, synOptions())
	if got, _ := r.send(victim.echoing(0, hello[:700])); got.verdict != lbVerdictHELD_HELLO {
		t.Fatal(verdictNames[got.verdict])
	}
	for n := range 3000 {
		s := r.begin("web", flowTo(vip4, 443, 1+n), anySequence(), 0, synOptions())
		r.runOnly(s.echoing(0, hello[:700]))
	}
	for _, frame := range [][]byte{victim.echoing(700, hello[700:]), victim.echoing(0, hello[:700])} {
		r.send(frame)
	}
	released := r.seen()
	if len(released) != 2 || uint16(released[0][5]) != 2 {
		t.Errorf("%d released", len(released))
	}
}

// An attacker pushes out every place between any two packets of a client: the client's hello is not held for ever.
func TestAHelloWhoseFirstSegmentIsPushedOutGoesByThePolicy(t *testing.T) {
	r := newHoldRig(t, 0, serviceOf("web", vip4, withSessions))
	hello := helloWithKey(r.nameOf(vip4, 2, 1), 1300)
	held := 0
	const victims, most = 10, 4
	for n := range victims {
		victim := r.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		verdict := lbVerdictHELD_HELLO
		for try := 0; try < most && verdict == lbVerdictHELD_HELLO; try++ {
			got, _ := r.send(victim.echoing(0, hello[:700]))
			if verdict = got.verdict; verdict == lbVerdictHELD_HELLO {
				held++
				for port := range 1500 { // each time of new connections
					r.runOnly(r.begin("web", flowTo(vip4, 443, 1000+port), anySequence(), 0, synOptions()).echoing(0, hello[:700]))
				}
			}
		}
		if verdict != lbVerdictFORWARDED_NEW {
			t.Fatalf("client %d: %s after %d tries", n, verdictNames[verdict], most)
		}
		if got, _ := r.send(victim.echoing(700, hello[700:])); got.verdict != lbVerdictFORWARDED_STARTING {
			t.Errorf("client %d: what follows is %s", n, verdictNames[got.verdict])
		}
	}
	if held < victims || held > victims+victims/2 {
		t.Errorf("%d clients were held %d times", victims, held)
	}
}

// Promise: A host on the load balancer's link cannot forge the messages between its programs: they are dropped
// (`dropped_forged`).
func TestOrdersOfOthersAreRefused(t *testing.T) {
	r := newHoldRig(t, 0, serviceOf("web", vip4, withSessions))
	s := r.begin("web", flowTo(vip4, 443, 1), anySequence(), 0, synOptions())
	hello := helloWithKey(r.nameOf(vip4, 2, 1), 1300)
	r.send(s.echoing(0, hello[:700]))
	for place := range uint16(512) {
		for _, kind := range []uint16{orderType, orderType + 1} {
			forged := make([]byte, 80)
			copy(forged, nodeMAC[:])
			binary.LittleEndian.PutUint16(forged[6:], 1) // generation
			binary.LittleEndian.PutUint16(forged[8:], place)
			binary.BigEndian.PutUint16(forged[12:], kind)
			if place%64 == 0 {
				for _, tag := range [][]byte{nil, {0x81, 0, 0, 7}, {0x88, 0xa8, 0, 7}} { // which the kernel takes off before tc
					frame := slices.Insert(slices.Clone(forged), 12, tag...)
					if got := r.run(frame); got.verdict != lbVerdictDROPPED_FORGED || got.action != xdpDrop {
						t.Fatalf("%x behind %x: %s", kind, tag, verdictNames[got.verdict])
					}
				}
			}
			if action := r.tell(forged); action != 2 { // TC_ACT_SHOT; should XDP have let it pass
				t.Fatalf("%x: action %d at tc", kind, action)
			}
		}
	}
	r.send(s.echoing(700, hello[700:]))
	if released := r.seen(); len(released) != 2 {
		t.Errorf("%d released", len(released))
	}
}

// A segment that does not fit the way to its server is not sent: it comes again, and is answered.
func TestWhatIsReleasedFitsTheWay(t *testing.T) {
	r := newHoldRig(t, 0, serviceOf("web", vip4, withSessions))
	r.update(func(want *plan.Want) {
		for address, path := range want.Paths {
			path.MTU = 1000
			want.Paths[address] = path
		}
	})
	s := r.begin("web", flowTo(vip4, 443, 1), anySequence(), 0, synOptions())
	hello := helloWithKey(r.nameOf(vip4, 2, 1), 1300)
	r.send(s.echoing(0, hello[:1200]))
	if got, _ := r.send(s.echoing(1200, hello[1200:])); got.verdict != lbVerdictFORWARDED_BY_SESSION {
		t.Error(verdictNames[got.verdict])
	}
	if released := r.seen(); len(released) != 1 || len(released[0]) > 1014 {
		t.Errorf("%d released", len(released))
	}
	if got, _ := r.send(s.echoing(0, hello[:1200])); got.verdict != lbVerdictANSWERED_TOO_BIG {
		t.Error(verdictNames[got.verdict])
	}
}
