// Counters begin anew.
package lb

import "github.com/cilium/ebpf"

// ResetServerTraffic zeroes what was counted for the server that counts under index. Its open connections and its clock stay:
// packets are steered by them.
func (lb *LB) ResetServerTraffic(index uint32) error {
	return lb.objects.ServerCounters.Put(index, make([]lbServerTraffic, ebpf.MustPossibleCPU()))
}

// ResetVerdictTraffic zeroes what was counted for a service number; 0: packets of no service.
func (lb *LB) ResetVerdictTraffic(service uint32) error { return lb.clearService(service) }
