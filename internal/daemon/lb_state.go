// What a load balancer keeps for its next life.
package daemon

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/model"
)

// savedState is the state file.
type savedState struct {
	Base    statefile.Fleet            `json:"base"`
	Running statefile.Fleet            `json:"running"`
	Removed []node.Removed             `json:"removed"`
	Past    map[string][][]model.Share `json:"past"`
	// TakesPart is what probes found: without it every restart would take timestamps off until it has probed again.
	TakesPart map[netip.AddrPort]bool   `json:"takes_part"`
	Revision  uint64                    `json:"revision,omitempty"` // that controllers gave the state
	Unhealthy map[string]node.Unhealthy `json:"unhealthy,omitempty"`
	Suspects  []suspect                 `json:"suspects,omitempty"`
}

// keepState saves the state. Callers hold mu.
func (lb *LB) keepState() {
	if lb.waiting {
		return // there is none
	}
	n := &lb.node
	lb.kept.Save(savedState{Base: statefile.Fleet(n.Base), Running: statefile.Fleet(n.Running), Removed: n.Removed, Past: n.Past, TakesPart: lb.probes.takesPart,
		Unhealthy: lb.unhealthy, Suspects: lb.connections.suspects.list, Revision: lb.revision})
}

// loadState reads the state file; without one (known is false) the node knows nothing. Removed servers count as heard of now: the counters that would
// tell may be gone, and connections with them must not be.
func (lb *LB) loadState(now time.Time) (known bool, err error) {
	var saved savedState
	remedy := statefile.StartFromFile
	if lb.remote != nil {
		remedy = statefile.StartFromControllers
	}
	found, err := lb.kept.Load(&saved, remedy)
	if err != nil || !found {
		return false, err
	}
	n := node.Node{Base: model.Fleet(saved.Base), Running: model.Fleet(saved.Running), Removed: saved.Removed, Past: saved.Past}
	for _, fleet := range []*model.Fleet{&n.Base, &n.Running} {
		if err := fleet.Validate(); err != nil {
			return false, fmt.Errorf("load state %s: %w: %s", lb.kept.Path, err, remedy)
		}
	}
	for i := range n.Removed {
		if !n.Removed[i].Forgotten {
			n.Removed[i].LastSeen = now
		}
	}
	lb.node, lb.probes = n, probeTable{saved.TakesPart}
	lb.connections.suspects.replace(saved.Suspects)
	if saved.Unhealthy != nil {
		lb.unhealthy = saved.Unhealthy
	}
	if lb.remote != nil {
		lb.revision = saved.Revision
		lb.remote.Resume(lb.revision)
	}
	return true, nil
}
