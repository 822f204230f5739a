package lb

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/verdict"
	"github.com/ballast-lb/ballast/internal/model"
)

func TestResetZeroesWhatWasCountedAndLeavesWhatSteers(t *testing.T) {
	w := newWorld(t, serviceOf("web", vip4, func(s *model.Service) {
		weighted(1)(s)
		s.Dispatch = model.DispatchP2C
	}))
	place := w.tables.Places()["web"]
	counter := place.Counters[1]
	mustSet(w.lb.SetClock(counter, 77))
	w.connect(5)
	f := flowTo(vip4, 443, 1)
	w.runOnly(f.carrying(w.cookieFor("web", f, 1, 1)))
	if before, err := w.lb.ServerTraffic(counter); err != nil || before.Connections != 5 || before.Packets != 6 {
		t.Fatalf("before: %+v, %v", before, err)
	}
	mustSet(w.lb.ResetServerTraffic(counter))
	mustSet(w.lb.ResetVerdictTraffic(place.Number))
	if after, err := w.lb.ServerTraffic(counter); err != nil || after != (ServerTraffic{}) {
		t.Errorf("server after the reset: %+v, %v", after, err)
	}
	verdicts, err := w.lb.VerdictTraffic(place)
	mustSet(err)
	for value, traffic := range verdicts {
		if traffic != (verdict.Traffic{}) {
			t.Errorf("verdict %d after the reset: %+v", value, traffic)
		}
	}
	if open := w.lb.OpenConnections(counter); open != 5 {
		t.Errorf("%d open connections after the reset, not 5", open)
	}
	var clock uint64
	mustSet(w.lb.objects.Clocks.Lookup(counter, &clock))
	if uint32(clock) != 77 {
		t.Errorf("clock after the reset: %d", uint32(clock))
	}
}
