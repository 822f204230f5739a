package lb

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/algo/peermessage"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/model"
)

func (w *world) trace(filter TraceFilter, budget int32) *Trace {
	w.Helper()
	trace, err := w.lb.StartTrace(filter)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { trace.Close() })
	if _, err := trace.Allow(budget); err != nil {
		w.Fatal(err)
	}
	trace.reader.SetDeadline(time.Now().Add(5 * time.Second))
	return trace
}

func TestTraceTellsWhichRungDecided(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	trace := w.trace(TraceFilter{}, 100)
	for name, vip := range map[string]netip.Addr{"web": vip4, "web6": vip6} {
		f := flowTo(vip, 80, 1)
		echo := w.cookieFor(name, f, 2, 1)
		frame := f.carrying(echo)
		w.check(frame)
		event, err := trace.Next()
		if err != nil {
			t.Fatal(err)
		}
		want := TraceEvent{Source: f.client, Destination: f.service, Protocol: 6, Service: w.tables.Places()[name].Number, Server: 2,
			Verdict: uint8(lbVerdictFORWARDED_BY_COOKIE), TCPFlags: "PSH,ACK", Length: uint16(len(frame) - 14), Timestamp: 77, Echo: echo}
		if event.Stops != nil {
			t.Errorf("stops %v", event.Stops)
		}
		if event.Stops = nil; event.Source != want.Source || event.Destination != want.Destination || event.Server != want.Server ||
			event.Verdict != want.Verdict || event.TCPFlags != want.TCPFlags || event.Length != want.Length || event.Service != want.Service ||
			event.Timestamp != want.Timestamp || event.Echo != want.Echo {
			t.Errorf("got  %+v\nwant %+v", event, want)
		}
	}
}

// A SYN's event has all candidates; the next packet's the one that has accepted.
func TestTraceTellsWhichCandidateAccepted(t *testing.T) {
	for _, affinity := range []model.Affinity{model.AffinityCookie, model.AffinityHistory} {
		w := newWorld(t, choosing(vip4, false, affinity, 3, 2))
		trace := w.trace(TraceFilter{}, 100)
		f := flowTo(vip4, 80, 1)
		_, offered := w.check(f.frame(f.tcp(syn, synOptions(), nil)))
		candidates := append(slices.Clone(offered.ids[:1]), offered.stops...)
		event, err := trace.Next()
		progtest.Check(t, err)
		if named := append([]uint16{event.Server}, event.Stops...); len(named) != 3 || !slices.Equal(named, candidates) {
			t.Errorf("%v: a SYN is offered to %v, the trace says %v", affinity, candidates, named)
		}
		for column, id := range candidates {
			echo := 0x01020300 | uint32(column)
			if affinity == model.AffinityCookie {
				echo = w.cookieFor("web", f, id, 1)
			}
			w.check(f.carrying(echo))
			if event, err = trace.Next(); err != nil || event.Server != id {
				t.Errorf("%v: candidate %d is %d, the trace says %d, %v", affinity, column, id, event.Server, err)
			}
		}
	}
}

func TestTraceFiltersAndIsLimited(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil))
	trace := w.trace(TraceFilter{Service: w.tables.Places()["web"].Number, Client: client4, ClientPort: 20003}, 2)
	for n := range 6 {
		for _, vip := range []netip.Addr{vip4, vip6} {
			f := flowTo(vip, 80, n)
			w.check(f.frame(f.tcp(syn, nil, nil)))
		}
	}
	f := flowTo(vip4, 80, 3)
	for range 4 {
		w.check(f.frame(f.tcp(ack, nil, nil)))
	}
	for i, flags := range []string{"SYN", "ACK"} {
		event, err := trace.Next()
		if err != nil {
			t.Fatal(err)
		}
		if event.Source != f.client || event.TCPFlags != flags {
			t.Fatalf("event %d: %+v", i, event)
		}
	}
	if suppressed, err := trace.Allow(0); err != nil || suppressed != 3 {
		t.Errorf("suppressed %d: %v", suppressed, err)
	}
}

// The event of a forwarded packet has the headers that came, not those that went; of what it carries there is nothing.
func TestATraceHasTheHeadersThatCame(t *testing.T) {
	const secret = "GET /?token=secret HTTP/1.1\r\n"
	w := newWorld(t, serviceOf("web", vip4, nil), serviceOf("web6", vip6, nil), udpService("dns", vip4, nil))
	trace := w.trace(TraceFilter{}, 1000)
	f, f6 := flowTo(vip4, 80, 1), flowTo(vip6, 80, 1)
	lost := f.tcp(ack, timestamps(77, 1), []byte(secret))
	for name, c := range map[string]struct {
		frame   []byte
		headers int
	}{
		"TCP, tagged":      {ethernet(5, ipPacket(f.client.Addr(), vip4, 6, f.tcp(psh|ack, timestamps(77, 1), []byte(secret)))), 18 + 20 + 32},
		"TCP over IPv6":    {f6.frame(f6.tcp(psh|ack, timestamps(77, 1), []byte(secret))), 14 + 40 + 32},
		"SYN":              {f.frame(f.tcp(syn, synOptions(), nil)), 14 + 20 + 20 + len(synOptions())},
		"UDP":              {ethernet(0, ipPacket(f.client.Addr(), vip4, 17, f.udp([]byte(secret)))), 14 + 20 + 8},
		"later fragment":   {ethernet(0, fragmentOf(f.client.Addr(), vip4, 6, 7, 64, false, []byte(secret))), 14 + 20},
		"ICMP error":       {icmpFrame(client4, vip4, 3, 4, 1400, ipPacket(vip4, f.client.Addr(), 6, lost)), 14 + 20 + 8 + 20 + 32},
		"no TCP, as it is": {ethernet(0, ipPacket(f.client.Addr(), vip4, 6, []byte(secret)[:12])), 14 + 20 + 12},
		"ARP":              {slices.Concat(f.frame(nil)[:12], []byte{8, 6}, make([]byte, 46)), 14 + 28},
		"no IP":            {slices.Concat(f.frame(nil)[:12], []byte{8, 7}, []byte(secret)), 14},
		"longest":          {f.frame(f.tcp(psh|ack, slices.Repeat([]byte{1}, 40), slices.Repeat([]byte(secret), 40))), 14 + 20 + 60},
	} {
		t.Run(name, func(t *testing.T) {
			before := time.Now()
			w.runOnly(c.frame)
			event, err := trace.Next()
			progtest.Check(t, err)
			if !slices.Equal(event.Headers, c.frame[:min(c.headers, len(c.frame))]) || int(event.FrameLength) != len(c.frame) {
				t.Errorf("%x of %d\nwant %x of %d", event.Headers, event.FrameLength, c.frame[:min(c.headers, len(c.frame))], len(c.frame))
			}
			if event.Interface != 1 || event.StandsFor != 1 {
				t.Errorf("by interface %d, for %d packets", event.Interface, event.StandsFor)
			}
			if event.Time.Before(before.Add(-10*time.Millisecond)) || event.Time.After(time.Now().Add(10*time.Millisecond)) {
				t.Errorf("at %v, not after %v", event.Time, before)
			}
		})
	}
}

func TestATraceOfTheSecondTierHasTheTunnelsHeadersToo(t *testing.T) {
	for _, gue := range []bool{false, true} {
		w := secondNode(t, vip4, netip.MustParseAddr("10.2.0.1"))
		trace := w.trace(TraceFilter{}, 100)
		f := flowTo(vip4, 443, 1)
		inner := ipPacket(f.client.Addr(), vip4, 6, f.tcp(psh|ack, timestamps(77, 1), []byte("secret")))
		frame := ethernet(0, tunnelled(netip.MustParseAddr("10.2.0.1"), gue, 0, inner))
		w.runOnly(frame)
		event, err := trace.Next()
		progtest.Check(t, err)
		if event.Source != f.client || !slices.Equal(event.Headers, frame[:len(frame)-len("secret")]) {
			t.Errorf("gue %v: %v: %x\nwant %x", gue, event.Source, event.Headers, frame[:len(frame)-len("secret")])
		}
	}
}

// What is dropped before the tunnel comes off is seen as well: of the client's packet if it is whole, else of the tunnel.
func TestATraceOfTheSecondTierShowsWhatTheTunnelLoses(t *testing.T) {
	for _, vip := range []netip.Addr{vip4, vip6} {
		for _, node := range nodeAddresses {
			w := secondNode(t, vip, node)
			trace := w.trace(TraceFilter{}, 100)
			f := flowTo(vip, 443, 1)
			inner := ipPacket(f.client.Addr(), vip, 6, f.tcp(psh|ack, timestamps(77, 1), []byte("secret")))
			setECN(inner, 0)
			frame := ethernet(0, tunnelled(node, false, 3, inner))
			w.check(frame)
			event, err := trace.Next()
			progtest.Check(t, err)
			if lbVerdict(event.Verdict) != lbVerdictDROPPED_CONGESTED || event.Source != f.client || event.Destination.Addr() != vip || event.TCPFlags != "PSH,ACK" || int(event.FrameLength) != len(frame) {
				t.Errorf("%v to %v: %+v", vip, node, event)
			}
		}
	}
	w := secondNode(t, vip4, nodeAddresses[0])
	trace := w.trace(TraceFilter{}, 100)
	frame := ethernet(0, tunnelled(nodeAddresses[0], true, 0, []byte{0x45, 0}))
	frame[14+20+8+2] = 1 // a flag of GUE that nobody knows
	w.check(frame)
	event, err := trace.Next()
	progtest.Check(t, err)
	if lbVerdict(event.Verdict) != lbVerdictDROPPED_MALFORMED || event.Destination.Addr() != nodeAddresses[0] {
		t.Errorf("a tunnel of another kind: %+v", event)
	}
}

// A client who sends UDP to a port that is GUE's elsewhere shows no more of what it says than others.
func TestWhatAClientSendsToTheTunnelsPortIsNoHeader(t *testing.T) {
	w := newWorld(t, udpService("dns", vip4, func(s *model.Service) { s.Ports = []uint16{peermessage.Port} }))
	trace := w.trace(TraceFilter{}, 100)
	f := flowTo(vip4, peermessage.Port, 1)
	w.runOnly(ethernet(0, ipPacket(f.client.Addr(), vip4, 17, f.udp(append([]byte{0, 4, 0, 0}, ipPacket(client4, vip4, 6, f.tcp(syn, nil, nil))...)))))
	event, err := trace.Next()
	progtest.Check(t, err)
	if len(event.Headers) != 14+20+8 {
		t.Errorf("%d bytes: %x", len(event.Headers), event.Headers)
	}
}

// One of eight packets is traced; the others take the fast path, which is said by where they are counted.
func TestASampleIsByChanceAndTheRestTakesTheFastPath(t *testing.T) {
	const oneOf, packets = 8, 4000
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) { s.CookieBits = 14 }))
	trace := w.trace(TraceFilter{OneOf: oneOf}, packets)
	f := flowTo(vip4, 80, 1)
	frame := f.carrying(w.cookieFor("web", f, 2, 1))
	for range packets {
		w.runOnly(frame)
	}
	var fast uint64
	for _, index := range w.tables.Places()["web"].Counters {
		_, traffic, err := w.lb.serverCounter(index)
		progtest.Check(t, err)
		fast += traffic.Packets
	}
	trace.reader.SetDeadline(time.Unix(1, 0))
	traced := uint64(0)
	for event, err := trace.Next(); err == nil; event, err = trace.Next() {
		if traced++; event.StandsFor != oneOf {
			t.Fatalf("stands for %d", event.StandsFor)
		}
	}
	// 500 are expected, with a standard deviation of 21; the ring has room for all.
	if traced < 350 || traced > 650 {
		t.Errorf("%d of %d are traced, one of %d is asked for", traced, packets, oneOf)
	}
	if fast+traced != packets {
		t.Errorf("%d took the fast path and %d were traced, of %d", fast, traced, packets)
	}
	progtest.Check(t, trace.Sample(0))
	w.runOnly(frame)
	if event, err := trace.Next(); err != nil || event.StandsFor != 1 {
		t.Errorf("without a sample: %+v, %v", event, err)
	}
}
