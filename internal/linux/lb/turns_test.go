package lb

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// expectEven fails the test unless servers 1 to n got as many connections each, or one more.
func expectEven[N int | uint64](t *testing.T, served map[uint16]N, n int) {
	t.Helper()
	counts := slices.Collect(maps.Values(served))
	if least, most := slices.Min(counts), slices.Max(counts); len(counts) != n || most-least > 1 {
		t.Fatalf("%d servers got %v", n, served)
	}
}

func TestServersGetTheirTurnsWhicheverCPUsTakeThem(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1, 1, 1, 1, 1, 0))
	served := map[uint16]int{}
	for round := range 20 {
		for cpu := range runtime.NumCPU() {
			onCPU(t, cpu, func() {
				for id, n := range w.connect(3 + round%4) {
					served[id] += n
				}
			})
			if len(served) == 5 || round > 1 {
				expectEven(t, served, 5)
			}
		}
	}
}

func TestWeightedTurnsAreExactWhicheverCPUsTakeThem(t *testing.T) {
	for dispatch, weights := range map[model.Dispatch][]uint16{model.DispatchWRR: {1, 2, 5, 7}, model.DispatchAWRR: {10, 20, 5, 15, 10}} {
		w := newWorld(t, policy(dispatch, weights...))
		if dispatch == model.DispatchAWRR {
			w.reweigh(weights...)
		}
		round, cpus := 0, runtime.NumCPU()
		for _, weight := range weights {
			round += int(weight)
		}
		served := map[uint16]int{}
		for n := range 5 * cpus { // a fifth of a round at a time
			onCPU(t, n%cpus, func() {
				for id, n := range w.connect(round / 5) {
					served[id] += n
				}
			})
		}
		for i, weight := range weights {
			if got := served[idAt(uint16(i+1))]; got != int(weight)*cpus {
				t.Errorf("%s: after %d rounds server %d of weight %d got %d", dispatch, cpus, i+1, weight, got)
			}
		}
	}
}

// atOnce sends a SYN so many times on each CPU, on all at once, and returns the connections that servers got by it. Frames that leave are
// as those that came, so that the kernel can repeat them: servers have our MAC.
func (w *world) atOnce(t *testing.T, repeat uint32) map[uint16]uint64 {
	t.Helper()
	before := w.serverTraffic("web")
	cpus := runtime.NumCPU()
	errs := make([]error, cpus)
	var all sync.WaitGroup
	ready := make(chan struct{})
	for cpu := range cpus {
		all.Go(func() {
			f := flowTo(vip4, 80, cpu)
			frame := f.frame(f.tcp(syn, synOptions(), nil))
			onCPU(t, cpu, func() {
				<-ready
				_, _, errs[cpu] = w.lb.Program().Benchmark(frame, int(repeat), nil)
			})
		})
	}
	close(ready)
	all.Wait()
	served := map[uint16]uint64{}
	for id, now := range w.serverTraffic("web") {
		served[id] = now.Connections - before[id].Connections
	}
	for _, err := range errs {
		mustSet(err)
	}
	return served
}

// toOurselves makes the next hop of every server the node itself, by Ethernet.
func toOurselves(w *world) {
	w.update(func(want *plan.Want) {
		for i := range want.Services[0].Servers {
			address := want.Services[0].Servers[i].Address
			path := want.Paths[address]
			path.DestinationMAC = nodeMAC
			want.Paths[address] = path
		}
	})
}

func byEthernet(s *model.Service) { s.Forward = model.ForwardL2 }

// Promise: The CPUs of a load balancer share one round of a service with `rr`, `wrr` or `awrr`: no turn is lost, and none is taken twice.
// Also held by TestServersGetTheirTurnsWhicheverCPUsTakeThem and TestATurnIsNotLostWhereTheFastPathGivesUp.
func TestEveryTurnIsTakenOnceByCPUsAtOnce(t *testing.T) {
	const repeat = 5000
	s := policy(model.DispatchRR, 1, 1, 1, 1, 1, 1, 1)
	byEthernet(&s)
	w := newWorld(t, s)
	toOurselves(w)
	number := w.tables.Places()["web"].Number
	for _, start := range []uint32{0, 1, 1 << 20, 0, 0} { // 0: that of a node that starts
		mustSet(w.lb.objects.Turns.Put(number, lbCursor{Turn: start}))
		news := func() uint64 { return w.verdicts()[verdictKey{"web", lbVerdictFORWARDED_NEW}] }
		before := news()
		served := w.atOnce(t, repeat)
		expectEven(t, served, len(s.Servers))
		sum := uint64(0)
		for _, n := range served {
			sum += n
		}
		sent := news() - before
		if sum != sent || sent < uint64(repeat*runtime.NumCPU()) { // a run that a signal interrupted is begun again
			t.Fatalf("%d connections, %d SYNs", sum, sent)
		}
		var after lbCursor
		mustSet(w.lb.objects.Turns.Lookup(number, &after))
		if start != 0 && uint64(after.Turn-start) != sent {
			t.Errorf("%d turns, %d SYNs", after.Turn-start, sent)
		}
	}
}

func TestATurnIsNotLostWhereTheFastPathGivesUp(t *testing.T) {
	for name, tagged := range map[string]int{"all servers": 1, "every second server": 2, "every third server": 3} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, policy(model.DispatchRR, 1, 1, 1, 1, 1, 1))
			w.update(func(want *plan.Want) {
				for i := 0; i < 6; i += tagged {
					address := want.Services[0].Servers[i].Address
					path := want.Paths[address]
					path.VLAN = 7 // the slow path only
					want.Paths[address] = path
				}
			})
			expectEven(t, w.connect(601), 6)
		})
	}
}

func TestNodesBeginTheirRoundsAtDifferentServers(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1, 1, 1, 1, 1, 1, 1, 1))
	first := map[uint16]bool{}
	number := w.tables.Places()["web"].Number
	for range 24 { // a node that starts has turns of 0
		mustSet(w.lb.objects.Turns.Put(number, lbCursor{}))
		for id := range w.connect(1) {
			first[id] = true
		}
	}
	if len(first) < 4 { // 3 or fewer of 8 by chance: 1 in 10^9
		t.Errorf("24 nodes began at %d servers of 8", len(first))
	}
}
