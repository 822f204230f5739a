// How many connections go on to the predecessor of a service.
package lb

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/plan"
)

// predecessorWindow is how long a connection counts that goes on to a predecessor, from its last packet on.
const predecessorWindow = time.Minute

// PredecessorConnections estimates how many connections and flows of a service had packets for its predecessor within the last minute, as
// bpf/lb/state/predecessors.h says: 0 means none, but while another service's flows have taken their places.
func (lb *LB) PredecessorConnections(service plan.Place) (count int, err error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	for i := range lb.tables.predecessorFlows {
		flow := atomic.LoadUint64(&lb.tables.predecessorFlows[i])
		if uint32(flow) == service.Number && now.Sec-int64(flow>>32) <= int64(predecessorWindow/time.Second) {
			count++
		}
	}
	return count, nil
}
