// What a node tells controllers of its own condition.
package daemon

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/model"
)

// condition is what controllers are told: they know themselves whether they are connected.
func (lb *LB) condition() *ballastv1.Condition {
	status := lb.status()
	if status.Config.Error != "" {
		status.Problems = append(status.Problems, status.Config.Error)
	}
	return &ballastv1.Condition{Ready: status.Ready, Problems: status.Problems, Addresses: lb.sources()}
}

// unserved are services whose new connections are dropped, as none of their servers takes any. Callers hold mu.
func (lb *LB) unserved() (problems []string) {
	for i := range lb.node.Running.Services {
		s := &lb.node.Running.Services[i]
		down := lb.unhealthy[s.Name].Down
		takesNew := func(server model.Server) bool { return server.TakesNew() && !slices.Contains(down, server.ID) }
		if !lb.sendsToNodes(s) && !slices.ContainsFunc(s.Servers, takesNew) {
			problems = append(problems, fmt.Sprintf("service %s: no server takes new connections: they are dropped (dropped_no_server)", s.Name))
		}
	}
	return problems
}

// unnamed are addresses of this load balancer that the file does not name: agents that run by it drop all that it sends. Callers hold mu.
func (lb *LB) unnamed() (problems []string) {
	fleet := &lb.node.Running
	if len(fleet.TunnelsFrom) == 0 {
		return nil
	}
	lacking := map[netip.Addr]netip.Addr{} // address of ours -> a server that is reached from it
	for i := range fleet.Services {
		s := &fleet.Services[i]
		if s.Forward != model.ForwardIPIP && s.Forward != model.ForwardGUE || lb.sendsToNodes(s) {
			continue
		}
		for j := range s.Servers {
			to := s.Servers[j].Address
			if path, known := lb.paths.Known[to]; known && !slices.Contains(fleet.TunnelsFrom, path.Source) {
				lacking[path.Source] = to
			}
		}
	}
	for _, from := range slices.SortedFunc(maps.Keys(lacking), netip.Addr.Compare) {
		problems = append(problems, fmt.Sprintf("tunnels_from lacks %s, which packets to %s come from: agents drop them: add it to the file on all nodes", from, lacking[from]))
	}
	return problems
}
