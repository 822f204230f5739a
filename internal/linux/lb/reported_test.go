package lb

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// connectionLoad is CONNECTION_LOAD of bpf/lb/state/loads.h.
const connectionLoad = 256

func TestReportedLoadsGrowWithConnectionsAndDoNotFallAtTheirEnd(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchP2C, model.DispatchLeast} {
		s := policy(dispatch, 1, 1)
		s.Load.Source = model.LoadCPU
		w := newWorld(t, s)
		low, high := w.tables.Places()["web"].Counters[1], w.tables.Places()["web"].Counters[2]
		w.setOpen("web", func(id uint16) int32 { return int32(id-1) * 5 * connectionLoad })
		if served := w.connect(4); dispatch == model.DispatchLeast && served[idAt(1)] != 4 {
			t.Errorf("%s: connections went to %v, not to the server of the lowest load", dispatch, served)
		}
		if have := w.lb.OpenConnections(low) + w.lb.OpenConnections(high); have != 9*connectionLoad {
			t.Errorf("%s: loads are %d after four connections", dispatch, have)
		}
		if served := w.connect(100); served[idAt(1)] == 100 {
			t.Errorf("%s: one server got everything until the next report", dispatch)
		}
		before := w.lb.OpenConnections(low)
		f := flowTo(vip4, 80, 1)
		w.check(f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
		if have := w.lb.OpenConnections(low); have != before {
			t.Errorf("%s: the end of a connection made %d of a load of %d", dispatch, have, before)
		}
		w.update(func(want *plan.Want) { service(want, "web").Load.Source = model.LoadConnections })
		if have, open := w.lb.OpenConnections(low), w.serverTraffic("web")[1].Open(); have != open {
			t.Errorf("%s by connections begins with %d open, not %d", dispatch, have, open)
		}
	}
}

func TestQUICConnectionsGoToTheServerThatReportsTheLowestLoad(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchP2C, model.DispatchLeast} {
		w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
			weighted(1, 1, 1)(s)
			byConnectionID(dispatch, model.QUIC{})(s)
		}))
		w.setOpen("web", func(id uint16) int32 { return int32(id) * 1000 * connectionLoad })
		const connections = 600 // 5/9, 3/9 and 1/9 of them by p2c: six standard deviations apart
		got := map[uint16]int{}
		for n := range connections {
			out, want := w.checkVerdict(flowTo(vip4, 443, n).initial([]byte{byte(n), byte(n >> 8), 2, 3, 4, 5, 6, 7}), lbVerdictFORWARDED_NEW)
			got[uint16(want.serverOf(out.frame))]++
		}
		if dispatch == model.DispatchLeast && got[1] != connections || got[1] <= got[2] || got[2] < got[3] {
			t.Errorf("%s: %v of %d connections, by server of ascending load", dispatch, got, connections)
		}
	}
}
