package lb

import (
	"net/netip"
	"runtime"
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A program that nobody needs costs nothing; one that somebody needs is where packets go on to it.
func TestProgramsAreLoadedWhenTheyAreNeeded(t *testing.T) {
	lb := loadLB(t)
	t.Cleanup(func() { lb.Close() })
	expect := func(programs, ways int) {
		t.Helper()
		if have := len(lb.objects.programs); have != programs {
			t.Errorf("%d programs are loaded, not %d", have, programs)
		}
		all, err := readMap[uint32, uint32](lb.objects.TailCalls)
		progtest.Check(t, err)
		if len(all) != ways {
			t.Errorf("packets go on %d ways, not %d", len(all), ways)
		}
	}
	expect(5, 1)
	progtest.Check(t, lb.AcceptTunnels(netip.Addr{}))
	expect(5, 1)
	progtest.Check(t, lb.AcceptTunnels(netip.MustParseAddr("10.1.0.1")))
	expect(6, 2)
	progtest.Check(t, lb.AcceptTunnels(netip.MustParseAddr("10.1.0.2")))
	expect(6, 2)
	progtest.Check(t, lb.apply(plan.WriteService{Row: 1, Value: plan.ServiceRow{Columns: 2}}))
	expect(7, 3)
	progtest.Check(t, lb.LoadAll())
	spec, err := loadLb()
	progtest.Check(t, err)
	expect(len(spec.Programs), len(spec.Maps["tail_calls"].Contents))
}

// What the programs are read from takes ten megabytes of heap. LB reads it again where more programs are needed.
func TestWhatTheProgramsWereReadFromIsNotKept(t *testing.T) {
	inUse := func() uint64 {
		for range 2 { // what pools have is kept for one collection
			runtime.GC()
		}
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return memory.HeapAlloc
	}
	before := inUse()
	lb := loadLB(t)
	t.Cleanup(func() { lb.Close() })
	if after := inUse(); after > before+2<<20 {
		t.Errorf("%d bytes of heap are in use, %d before the start", after, before)
	}
	runtime.KeepAlive(lb)
}
