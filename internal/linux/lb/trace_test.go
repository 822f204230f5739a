package lb

import (
	"net/netip"
	"slices"
	"testing"
	"time"

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
