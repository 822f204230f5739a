// How many connections go on to the predecessor of a service.
package lb

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/plan"
)

// Succession is what was counted of packets for the predecessor of a service.
type Succession struct {
	Sent     uint64 // to it
	Returned uint64 // from there, or with no hop left to go there
}

// Succession counts since the counters began.
func (lb *LB) Succession(service plan.Place) (counted Succession, err error) {
	lb.retired.RLock()
	defer lb.retired.RUnlock()
	for verdict, packets := range map[lbVerdict]*uint64{lbVerdictFORWARDED_TO_PREDECESSOR: &counted.Sent, lbVerdictDROPPED_PREDECESSOR_LOOP: &counted.Returned} {
		perCPU, err := lb.verdictCounter(service.Number, verdict)
		if err != nil {
			return counted, err
		}
		for _, one := range perCPU {
			*packets += one.Packets
		}
	}
	return counted, nil
}

// Arrivals is what was counted of a service's packets since the counters began.
type Arrivals struct {
	All     uint64
	Orphans uint64 // what a predecessor would get: see is_not_ours in bpf/lb/ladder/predecessor.h
}

// Arrivals counts them, in packets.
func (lb *LB) Arrivals(service plan.Place) (counted Arrivals, err error) {
	lb.retired.RLock()
	defer lb.retired.RUnlock()
	for verdict := range lbVerdictVERDICTS {
		perCPU, err := lb.verdictCounter(service.Number, verdict)
		if err != nil {
			return counted, err
		}
		for _, one := range perCPU {
			counted.All += one.Packets
			if verdict == lbVerdictFORWARDED_UNKNOWN || verdict == lbVerdictFORWARDED_BAD_COOKIE {
				counted.Orphans += one.Packets
			}
		}
	}
	return counted, nil
}

// Implementation constants.
const (
	predecessorWindow = time.Minute // how long a connection counts that goes on to a predecessor, from its last packet on
	countsFor         = time.Second // how long a count is told again: whoever asks for one service asks for the next
)

// predecessorCounts are those of the last look at all places.
type predecessorCounts struct {
	mutex sync.Mutex
	of    map[uint32]int // nobody changes it
	at    time.Time      // zero: nobody has looked
}

// PredecessorConnections estimates how many connections and flows had packets for the predecessor of their service within the last minute, by the
// number of the service, as bpf/lb/state/predecessors.h says: none means none, but while another service's flows have taken their places. The
// estimates are a second old at most, and shared: they are not to be changed.
func (lb *LB) PredecessorConnections() (counts map[uint32]int, err error) {
	last := &lb.predecessors
	last.mutex.Lock()
	defer last.mutex.Unlock()
	if !last.at.IsZero() && time.Since(last.at) < countsFor {
		return last.of, nil
	}
	if counts, err = lb.countPredecessors(); err == nil {
		last.of, last.at = counts, time.Now()
	}
	return counts, err
}

// countPredecessors looks at all places.
func (lb *LB) countPredecessors() (counts map[uint32]int, err error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	counts = map[uint32]int{}
	for i := range lb.tables.predecessorFlows {
		flow := atomic.LoadUint64(&lb.tables.predecessorFlows[i])
		if number := uint32(flow); number != 0 && now.Sec-int64(flow>>32) <= int64(predecessorWindow/time.Second) {
			counts[number]++
		}
	}
	return counts, nil
}
