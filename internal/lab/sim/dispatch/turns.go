// Package dispatch gives the policies of the data plane to the simulated world of connections: what they choose is computed by
// internal/algo.
package dispatch

// Turns is round robin: one counter that walks a round (bpf/lb/dispatch/turns.h). The rounds of services are made by internal/algo/rounds; each
// element is a server. It must not be empty.
type Turns struct {
	Round []uint32
	next  int
}

// Choose implements flows.Chooser.
func (t *Turns) Choose(uint64, []int32) uint32 {
	if t.next >= len(t.Round) {
		t.next = 0
	}
	t.next++
	return t.Round[t.next-1]
}

// ChooseAll implements flows.Oblivious.
func (t *Turns) ChooseAll(_ uint64, servers []uint32) {
	for i := range servers {
		servers[i] = t.Choose(0, nil)
	}
}
