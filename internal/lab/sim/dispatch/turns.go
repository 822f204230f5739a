// Package dispatch gives the policies of the data plane to the simulated world of connections: what they choose is computed by
// internal/algo.
package dispatch

import "github.com/ballast-lb/ballast/internal/lab/sim/random"

// Turns is round robin: independent counters that each walk a round (bpf/lb/dispatch/turns.h). A load balancer has
// one for each service, which its CPUs share. The rounds of services are made by internal/algo/rounds; each element is a
// server. It must not be empty.
type Turns struct {
	Round    []uint32
	Counters int        // 0 counts as 1
	Numbers  random.Key // draws which counter a flow meets, and where each counter begins; one counter needs none and begins with the first turn
	next     []int      // by counter
}

// Choose implements flows.Chooser.
func (t *Turns) Choose(flow uint64, _ []int32) uint32 {
	at := &t.next[t.counterOf(flow)]
	if *at >= len(t.Round) {
		*at = 0
	}
	*at++
	return t.Round[*at-1]
}

// counterOf returns the counter that a flow meets.
func (t *Turns) counterOf(flow uint64) (number int) {
	if t.Counters > 1 {
		number = int(random.Below(t.Numbers.At(flow), uint32(t.Counters)))
	}
	for len(t.next) <= number {
		t.next = append(t.next, t.begin(len(t.next)))
	}
	return number
}

// begin is where a counter begins. No flow has the number by which it is drawn.
func (t *Turns) begin(counter int) int {
	if t.Counters <= 1 {
		return 0
	}
	return int(random.Below(t.Numbers.At(^uint64(counter)), uint32(len(t.Round))))
}

// SetCounters has new flows meet so many counters from now on. Counters that stay keep their places.
func (t *Turns) SetCounters(counters int) {
	t.Counters, t.next = counters, t.next[:min(counters, len(t.next))]
}

// ChooseAll implements flows.Oblivious.
func (t *Turns) ChooseAll(first uint64, servers []uint32) {
	for i := range servers {
		servers[i] = t.Choose(first+uint64(i), nil)
	}
}
