// Readiness: what keeps a daemon from its work. Who answers for a VIP in the network may go by it.
package daemon

import (
	"fmt"
)

// obstacles are what keeps this node from forwarding, empty: it is ready. A refused file, servers that are unhealthy and the loss of
// controllers are not among them: what was known goes on. Callers hold mu.
func (lb *LB) obstacles() (found []string) {
	found = append(lb.attachments.Problems(), lb.tierProblems()...)
	if down, all := lb.attachments.Down(); all {
		found = append(found, down...)
	}
	if lb.unattached != "" {
		found = append(found, lb.unattached)
	}
	switch {
	case lb.waiting:
		return append(found, "no controller has said yet what to forward, and no state was kept: what an earlier process left goes on untouched")
	case len(lb.tables.Places()) > 0:
	case lb.remote != nil && lb.revision == 0:
		found = append(found, "no controller has said yet what to forward, and no state was kept")
	default:
		found = append(found, "there is no service to forward for")
	}
	if lb.stale {
		found = append(found, "the file is refused, and what is forwarded by is of before the last reboot: look whether it is still right")
	}
	if lb.applyIncomplete {
		found = append(found, "the tables are behind the desired state: a change was carried out only in part")
	}
	if len(lb.paths.Why) > 0 && !lb.paths.Confirmed() {
		found = append(found, fmt.Sprintf("no way is known to any of %d servers", len(lb.paths.Why)))
	}
	if why := lb.misreads(); why != "" {
		found = append(found, why)
	}
	return append(found, lb.unnamed()...)
}

func (lb *LB) health() []string {
	lb.mu.Lock()
	defer lb.mu.Unlock()
	return lb.obstacles()
}
