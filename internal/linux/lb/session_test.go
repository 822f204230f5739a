package lb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/cookie"
	"github.com/ballast-lb/ballast/internal/algo/sessionid"
	"github.com/ballast-lb/ballast/internal/algo/siphash"
	"github.com/ballast-lb/ballast/internal/algo/syncookie"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

func withSessions(s *model.Service) { s.Session = model.SessionTLS }

// clientHello is a record with a ClientHello that shows the name of a session in its identity (RFC 8446 4.2.11); empty: it resumes none.
func clientHello(name []byte) []byte { return helloWithKey(name, 36) }

// helloWithKey is one whose key share has this many bytes.
func helloWithKey(name []byte, bytes int) []byte {
	field := func(bytes int, content []byte) []byte {
		var length [4]byte
		binary.BigEndian.PutUint32(length[:], uint32(len(content)))
		return append(length[4-bytes:], content...)
	}
	extension := func(kind uint16, content []byte) []byte {
		return append(binary.BigEndian.AppendUint16(nil, kind), field(2, content)...)
	}
	extensions := slices.Concat(extension(0, make([]byte, 20)), extension(51, make([]byte, bytes)))
	if len(name) > 0 {
		identity := append(field(2, append(slices.Clone(name), make([]byte, 150)...)), 0, 0, 0, 1)
		extensions = append(extensions, extension(41, append(field(2, identity), field(2, field(1, make([]byte, 32)))...))...)
	}
	body := slices.Concat([]byte{3, 3}, make([]byte, 32), field(1, make([]byte, 32)), field(2, make([]byte, 6)), field(1, []byte{0}), field(2, extensions))
	return append([]byte{22, 3, 1}, field(2, append([]byte{1}, field(3, body)...))...)
}

// shake is a client's handshake with a service that has sessions.
type shake struct {
	*world
	name     string
	flow     flow
	sequence uint32 // of its SYN
	reply    layers.TCP
	value    uint32            // TSval of the answer; 0: none
	options  syncookie.Options // of its SYN
}

// anySequence is one that no connection of the same ports has had: load balancers remember.
func anySequence() uint32 { return rand.Uint32() }

func sharedSeconds(t testing.TB) uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Sec)
}

// segment is one of the client's, its sequence number counted from behind the SYN.
func (s *shake) segment(flags byte, offset uint32, options, payload []byte) []byte {
	b := s.flow.tcp(flags, options, payload)
	binary.BigEndian.PutUint32(b[4:], s.sequence+1+offset)
	binary.BigEndian.PutUint32(b[8:], s.reply.Seq+1)
	b[16], b[17] = 0, 0
	setTransportChecksum(b, 16, s.flow.client.Addr(), s.flow.service.Addr(), 6)
	return s.flow.frame(b)
}

// echoing is one with data that echoes the answer, if that had a timestamp.
func (s *shake) echoing(offset uint32, payload []byte) []byte {
	var options []byte
	if s.value != 0 {
		options = timestamps(77, s.value)
	}
	return s.segment(psh|ack, offset, options, payload)
}

func (f flow) synSegment(sequence uint32, flags byte, options []byte) []byte {
	b := f.tcp(syn|flags, options, nil)
	binary.BigEndian.PutUint32(b[4:], sequence)
	b[16], b[17] = 0, 0
	setTransportChecksum(b, 16, f.client.Addr(), f.service.Addr(), 6)
	return b
}

// answered takes the answer to the SYN.
func (s *shake) answered(reply *layers.TCP) {
	s.reply = *reply
	for _, option := range reply.Options {
		if option.OptionType == layers.TCPOptionKindTimestamps {
			s.value = binary.BigEndian.Uint32(option.OptionData)
		}
	}
}

// begin sends a SYN with options, and checks the answer.
func (w *world) begin(name string, f flow, sequence uint32, flags byte, options []byte) *shake {
	w.Helper()
	s := &shake{world: w, name: name, flow: f, sequence: sequence}
	b := f.synSegment(sequence, flags, options)
	before := sharedSeconds(w)
	got := w.run(f.frame(b))
	if got.verdict != lbVerdictANSWERED_SYN || got.action != xdpTX {
		w.Fatalf("a SYN: %s, action %d", verdictNames[got.verdict], got.action)
	}
	if !bytes.Equal(got.frame[:6], routerMAC[:]) || !bytes.Equal(got.frame[6:12], nodeMAC[:]) {
		w.Fatalf("from %x to %x", got.frame[6:12], got.frame[:6])
	}
	packet := w.decode(got.frame)
	s.answered(packet.TransportLayer().(*layers.TCP))
	source, destination := packet.NetworkLayer().NetworkFlow().Endpoints()
	if from, _ := netip.AddrFromSlice(source.Raw()); from != f.service.Addr() || !bytes.Equal(destination.Raw(), f.client.Addr().AsSlice()) {
		w.Fatalf("from %v to %v", source, destination)
	}
	key, told := plan.SYNCookieKey(&w.want.Keys, f.service.Addr()), syncookie.Flow{Client: f.client, ServicePort: f.service.Port(), Sequence: sequence, Timestamp: s.value}
	o := syncookie.Options{WindowScale: syncookie.NoWindowScale, ECN: flags&0xc0 == 0xc0}
	tcp := layers.TCP{}
	if err := tcp.DecodeFromBytes(b, nopFeedback{}); err != nil {
		w.Fatal(err)
	}
	for _, option := range tcp.Options {
		switch option.OptionType {
		case layers.TCPOptionKindMSS:
			o.MSS = binary.BigEndian.Uint16(option.OptionData)
		case layers.TCPOptionKindWindowScale:
			o.WindowScale = min(option.OptionData[0], 14)
		case layers.TCPOptionKindSACKPermitted:
			o.SACK = true
		}
	}
	made := func(seconds uint64) bool { return s.reply.Seq == syncookie.Make(key, told, o, seconds) }
	if !made(before-1) && !made(before) && !made(sharedSeconds(w)+1) { // periods begin and end within some ticks
		w.Fatalf("sequence number %#x, not %#x", s.reply.Seq, syncookie.Make(key, told, o, before))
	}
	if s.reply.Ack != sequence+1 || !s.reply.SYN || !s.reply.ACK || s.reply.ECE != o.ECN || s.reply.DstPort != layers.TCPPort(f.client.Port()) {
		w.Fatalf("%+v", s.reply)
	}
	s.checkOptions(tcp.Options, o)
	s.options = o
	return s
}

type nopFeedback struct{}

func (nopFeedback) SetTruncated() {}

// checkOptions: the answer has what the SYN has, and no more.
func (s *shake) checkOptions(sent []layers.TCPOption, o syncookie.Options) {
	s.Helper()
	find := func(list []layers.TCPOption, kind layers.TCPOptionKind) []byte {
		for _, option := range list {
			if option.OptionType == kind {
				return append([]byte{byte(kind)}, option.OptionData...)
			}
		}
		return nil
	}
	for _, kind := range []layers.TCPOptionKind{layers.TCPOptionKindMSS, layers.TCPOptionKindWindowScale, layers.TCPOptionKindSACKPermitted, layers.TCPOptionKindTimestamps} {
		if (find(sent, kind) == nil) != (find(s.reply.Options, kind) == nil) {
			s.Fatalf("sent %v, answered %v", sent, s.reply.Options)
		}
	}
	if scale := find(s.reply.Options, layers.TCPOptionKindWindowScale); scale != nil && scale[1] != plan.SessionScale {
		s.Fatalf("window scale %d", scale[1])
	}
	if ours, theirs := find(s.reply.Options, layers.TCPOptionKindTimestamps), find(sent, layers.TCPOptionKindTimestamps); ours != nil && !bytes.Equal(ours[5:], theirs[1:5]) {
		s.Fatalf("echoes %x, sent was %x", ours[5:], theirs[1:5])
	}
}

// fallback is the server that the answer's timestamp names.
func (s *shake) fallback() uint16 {
	service, current := service(&s.want, s.name), s.want.Keys.Current
	hash := cookie.FlowHash(cookie.ServiceKey(s.want.Keys.Cookie[current], service.VIP, service.Protocol), s.flow.client, s.flow.service.Port())
	return syncookie.Fallback(service.CookieBits, s.value, hash)
}

// goes sends a frame, and says which server it goes to, if the verdict is the one.
func (s *shake) goes(frame []byte, verdict lbVerdict) uint16 {
	s.Helper()
	got := s.run(frame)
	if got.verdict != verdict {
		s.Fatalf("%s, not %s", verdictNames[got.verdict], verdictNames[verdict])
	}
	if got.action == xdpDrop {
		return 0
	}
	return uint16(got.frame[5]) // of the MAC: testPath
}

// nameOf is one that a server has sealed in an epoch.
func (w *world) nameOf(vip netip.Addr, id uint16, epoch uint32) []byte {
	name := sessionid.Seal(plan.SessionIDKey(w.want.Keys.Cookie[epoch], vip), uint64(id)*77+uint64(epoch), id)
	return name[:]
}

var synOptionSets = [][]byte{
	synOptions(), nil, {2, 4, 5, 0xb4}, {2, 4, 5, 0xb4, 4, 2}, {2, 4, 0x22, 0xf8, 1, 3, 3, 14}, {8, 10, 9, 9, 9, 9, 0, 0, 0, 0}, {3, 3, 15, 8, 10, 1, 1, 1, 1, 0, 0, 0, 0},
	{2, 4, 5, 0x14, 3, 3, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0}, {4, 2, 3, 3, 0}, {2, 4, 2, 0, 1, 1, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 3, 3, 9},
}

func TestConnectionsOfASessionReachItsServer(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, forward := range []model.Forward{model.ForwardL2, model.ForwardIPIP, model.ForwardGUE} {
			for _, dispatch := range []model.Dispatch{model.DispatchRR, model.DispatchMaglev, model.DispatchP2C, model.DispatchLeast} {
				t.Run(fmt.Sprint(vip, " ", forward, " ", dispatch), func(t *testing.T) {
					w := newWorld(t, serviceOf("web", vip, func(s *model.Service) {
						withSessions(s)
						s.Forward, s.Dispatch = forward, dispatch
					}))
					w.update(func(want *plan.Want) { want.Keys = testKeys(1, 2) })
					for n := range 40 {
						w.converse(flowTo(vip, 443, n), n)
					}
				})
			}
		}
	}
}

// converse begins a connection, with or without a session, and follows its first packets.
func (w *world) converse(f flow, n int) {
	w.Helper()
	s := w.begin("web", f, anySequence(), byte(n%2)*0xc0, synOptionSets[n%len(synOptionSets)])
	session, verdict := uint16(n%4), lbVerdict(lbVerdictFORWARDED_BY_SESSION) // 0: none
	var name []byte
	if session != 0 && s.value != 0 { // without timestamps only placement finds it again
		name = w.nameOf(f.service.Addr(), session, uint32(1+n%2))
	} else {
		session, verdict = 0, lbVerdictFORWARDED_NEW
	}
	bare := []byte(nil)
	if s.value != 0 {
		bare = timestamps(77, s.value)
	}
	s.goes(s.segment(ack, 0, bare, nil), lbVerdictDROPPED_HANDSHAKE)
	hello := clientHello(name)
	server := s.goes(s.echoing(0, hello), verdict)
	if session != 0 && server != session || server == 0 {
		w.Fatalf("a session of server %d goes to server %d", session, server)
	}
	if session == 0 && s.value != 0 && server != s.fallback() {
		w.Fatalf("a new session goes to server %d, and the timestamp names %d", server, s.fallback())
	}
	if again := s.goes(s.echoing(0, hello), lbVerdictFORWARDED_STARTING); again != server { // it counts once
		w.Fatalf("the hello goes to server %d, then to %d", server, again)
	}
	later := lbVerdict(lbVerdictFORWARDED_STARTING)
	if s.value == 0 {
		later = lbVerdictFORWARDED_NO_TIMESTAMP
	}
	if to := s.goes(s.echoing(uint32(len(hello)), []byte("early data")), later); to != server {
		w.Fatalf("the hello goes to server %d, what follows to %d", server, to)
	}
	if s.value == 0 {
		return
	}
	established := f.carrying(w.cookieFor("web", f, server, 2))
	if to := s.goes(established, lbVerdictFORWARDED_BY_COOKIE); to != server {
		w.Fatalf("the hello goes to server %d, then to %d", server, to)
	}
}

func TestSessionsOfServersThatAreGoneGoElsewhere(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	names := [][]byte{w.nameOf(vip4, 9, 1), bytes.Repeat([]byte{7}, 16)}
	other := sessionid.Seal(plan.SessionIDKey([16]byte{1, 2, 3}, vip4), 1, 2)
	names = append(names, other[:])
	for n, name := range names {
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		if server := s.goes(s.echoing(0, clientHello(name)), lbVerdictFORWARDED_NEW); server != s.fallback() {
			t.Errorf("%x goes to server %d, not %d", name, server, s.fallback())
		}
	}
}

// Who knows how ids are hidden, but not how names are authenticated, reaches no server of his choice.
func TestAForgedNameThatOpensToAServerGoesByThePolicy(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	key := plan.SessionIDKey(w.want.Keys.Cookie[1], vip4)
	for n := range 12 {
		name := [sessionid.Length]byte{}
		binary.BigEndian.PutUint64(name[:], rand.Uint64())
		binary.BigEndian.PutUint64(name[6:], rand.Uint64())
		target := uint16(n%3 + 1)
		binary.BigEndian.PutUint16(name[14:], target^uint16(siphash.Sum24(key.Hide.K0, key.Hide.K1, name[:14])))
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		if server := s.goes(s.echoing(0, clientHello(name[:])), lbVerdictFORWARDED_NEW); server != s.fallback() {
			t.Errorf("a forged name of server %d reaches server %d, not %d", target, server, s.fallback())
		}
	}
}

func TestSessionsOfUnhealthyServersGoElsewhere(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	for n, down := range []bool{false, true, false} {
		w.update(func(want *plan.Want) { service(want, "web").Down = map[uint16]bool{2: down} })
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		verdict := lbVerdict(lbVerdictFORWARDED_BY_SESSION)
		if down {
			verdict = lbVerdictFORWARDED_NEW
		}
		if server := s.goes(s.echoing(0, clientHello(w.nameOf(vip4, 2, 1))), verdict); (server == 2) == down {
			t.Errorf("down: %v: to server %d", down, server)
		}
	}
}

// Its agent has nothing to do with the service any more. What it has goes on.
//
// Promise: The session of a removed or unhealthy server reaches the policy's server, and resumes there if the
// servers share a ticket key.
// Also held by TestSessionsOfUnhealthyServersGoElsewhere and TestSessionsOfServersThatAreGoneGoElsewhere.
func TestSessionsOfRemovedServersGoElsewhere(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	w.update(func(want *plan.Want) {
		s := service(want, "web")
		s.Removed, s.Servers = append(s.Removed, s.Servers[1]), slices.Delete(slices.Clone(s.Servers), 1, 2)
	})
	s := w.begin("web", flowTo(vip4, 443, 1), anySequence(), 0, synOptions())
	if server := s.goes(s.echoing(0, clientHello(w.nameOf(vip4, 2, 1))), lbVerdictFORWARDED_NEW); server == 2 {
		t.Error("a session goes to a server that was removed")
	}
	if server := s.goes(s.flow.carrying(w.cookieFor("web", s.flow, 2, 1)), lbVerdictFORWARDED_BY_COOKIE); server != 2 {
		t.Errorf("an established connection goes to server %d", server)
	}
}

// A draining server keeps its sessions, and gets no others.
//
// Promise: TLS sessions stay at their server, a draining one too, while servers, load balancers and keys change.
// Also held by TestConnectionsOfATLSSessionReachOneServer.
func TestSessionsOfDrainingServersStay(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	w.update(func(want *plan.Want) { service(want, "web").Servers[1].State = model.StateDraining })
	for n := range 10 {
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		if s.fallback() == 2 {
			t.Error("a draining server gets new sessions")
		}
		s.goes(s.echoing(0, clientHello(w.nameOf(vip4, 2, 1))), lbVerdictFORWARDED_BY_SESSION)
	}
}

// Connections that have heard of their server go on without session tls, and with it again.
func TestConnectionsOutliveTheirServicesSessions(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	s := w.begin("web", flowTo(vip4, 443, 1), anySequence(), 0, synOptions())
	server := s.goes(s.echoing(0, clientHello(w.nameOf(vip4, 2, 1))), lbVerdictFORWARDED_BY_SESSION)
	for _, session := range []model.Session{model.SessionNone, model.SessionTLS} {
		w.update(func(want *plan.Want) { service(want, "web").Session = session })
		if to := s.goes(s.flow.carrying(w.cookieFor("web", s.flow, server, 1)), lbVerdictFORWARDED_BY_COOKIE); to != server {
			t.Errorf("session %v: to server %d, not %d", session, to, server)
		}
	}
}

// The client uses its port again: what its last connection has left behind does not count.
func TestAConnectionDoesNotFollowTheOneBefore(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	first := anySequence()
	for n := range 6 {
		s := w.begin("web", flowTo(vip4, 443, 1), first+uint32(n)*1e6, 0, synOptions())
		hello, verdict := clientHello(nil), lbVerdict(lbVerdictFORWARDED_NEW)
		if n%2 == 0 {
			hello, verdict = clientHello(w.nameOf(vip4, s.fallback()%3+1, 1)), lbVerdictFORWARDED_BY_SESSION
		}
		server := s.goes(s.echoing(0, hello), verdict)
		if later := s.goes(s.echoing(uint32(len(hello)), []byte("data")), lbVerdictFORWARDED_STARTING); later != server {
			t.Errorf("the hello goes to server %d, what follows to %d", server, later)
		}
	}
}

// What the client has not been told by one of us does not begin anything.
//
// Promise: A ClientHello without a handshake at a load balancer goes to one server at most, which drops it.
func TestAHelloWithoutAHandshakeBeginsNothing(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	s := w.begin("web", flowTo(vip4, 443, 77), anySequence(), 0, synOptions())
	hello := clientHello(w.nameOf(vip4, s.fallback()%3+1, 1))
	for name, change := range map[string]func(s *shake){
		"another sequence number": func(s *shake) { s.sequence++ },
		"another acknowledgement": func(s *shake) { s.reply.Seq ^= 1 << 20 },
		"other options":           func(s *shake) { s.reply.Seq ^= 1 },
		"an older answer":         func(s *shake) { s.reply.Seq ^= 4 << 9 },
	} {
		forged := *s
		change(&forged)
		if got := w.run(forged.echoing(0, hello)); got.verdict != lbVerdictHELD_HELLO || got.action != xdpDrop {
			t.Errorf("%s: %s", name, verdictNames[got.verdict])
		}
	}
	if got := w.run(s.flow.carrying(s.value ^ 1)); got.verdict == lbVerdictFORWARDED_NEW || got.verdict == lbVerdictFORWARDED_BY_SESSION {
		t.Errorf("another timestamp: %s", verdictNames[got.verdict])
	}
}

// A SYN cookie is good for its own period and four more, and for one more where the clock of the load balancer that made it is ahead.
func TestASYNCookieExpires(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions), serviceOf("web6", vip6, withSessions))
	for name, vip := range map[string]netip.Addr{"web": vip4, "web6": vip6} {
		key := plan.SYNCookieKey(&w.want.Keys, vip)
		for age := -1; age < 7; age++ {
			verdict, action := lbVerdictFORWARDED_BY_SESSION, uint32(xdpTX)
			if age > 4 {
				verdict, action = lbVerdictHELD_HELLO, xdpDrop
			}
			inOnePeriod(t, func(now uint64) error {
				s := w.begin(name, flowTo(vip, 443, 100+age), anySequence(), 0, synOptions())
				made := syncookie.Flow{Client: s.flow.client, ServicePort: 443, Sequence: s.sequence, Timestamp: s.value}
				s.reply.Seq = syncookie.Make(key, made, s.options, now-uint64(age*syncookie.PeriodSeconds))
				hello := clientHello(w.nameOf(vip, s.fallback()%3+1, 1))
				if got := w.run(s.echoing(0, hello)); got.verdict != verdict || got.action != action {
					return fmt.Errorf("%s, %d periods old: %s, action %d; want %s", name, age, verdictNames[got.verdict], got.action, verdictNames[verdict])
				}
				return nil
			})
		}
	}
}

// inOnePeriod runs a test of ages again where a period of SYN cookies has ended meanwhile.
func inOnePeriod(t *testing.T, test func(now uint64) error) {
	t.Helper()
	for {
		now := sharedSeconds(t)
		err := test(now)
		if (sharedSeconds(t)+1)/syncookie.PeriodSeconds != (now-1)/syncookie.PeriodSeconds { // load balancers know the time to some ticks
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
}

// Other protocols on such a service, and hellos that cannot be read, go by the policy at once.
//
// Promise: Another protocol than TLS, or a hello that cannot be read, goes by the policy at once.
func TestWhatIsNoHelloGoesByThePolicy(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, withSessions))
	for n, payload := range [][]byte{[]byte("GET / HTTP/1.0\r\n\r\n"), {0}, append([]byte{22, 3, 1, 0, 0}, make([]byte, 80)...), make([]byte, 1400)} {
		s := w.begin("web", flowTo(vip4, 443, n), anySequence(), 0, synOptions())
		if server := s.goes(s.echoing(0, payload), lbVerdictFORWARDED_NEW); server != s.fallback() {
			t.Errorf("%d: to server %d, not %d", n, server, s.fallback())
		}
	}
}
