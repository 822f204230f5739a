// shell-resets: figure 6 of SHELL in small, on packets of a real load balancer.
package shell

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/lab/scenario"
	"github.com/ballast-lb/ballast/internal/lab/script"
	simulator "github.com/ballast-lb/ballast/internal/lab/sim/shell"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants. The paper has 500 servers, 35591 buckets and 100 reconfigurations.
const (
	resetServers  = 20
	resetSlots    = 251
	resetChanges  = 60
	resetsCounted = 10 // reconfigurations between two figures
)

// paperResets are those of the paper after 100 reconfigurations, by servers in the history.
var paperResets = []string{"31", "6.6", "2.0", "0.94"}

// runResets follows a connection of each slot and candidate through reconfigurations. A connection is reset when its server is not among those that
// its packets are sent through. The load balancer's program forwards real packets in test runs; there are no servers.
func runResets(run *scenario.Run) {
	course := simulator.Play(run.Seed, resetServers, resetSlots, model.MaxHistory, resetChanges)
	rig := script.Must(openResetRig())
	defer rig.close()
	var groups []*connections
	for n, pool := range course.Pools {
		script.Check(run.Context.Err())
		script.Check(rig.serve(pool))
		for h := 1; h <= model.MaxHistory; h++ {
			if n == 0 {
				groups = append(groups, script.Must(rig.connect(h)))
			}
			group := groups[h-1]
			script.Check(group.send(rig))
			is, simulated := group.percent(), course.Percent[n][h-1]
			run.Result.Expect(is == simulated,
				"h = %d: %.4g %% of connections are reset after %d reconfigurations, %.4g %% in the simulator", h, is, n, simulated)
			if n > 0 && n%resetsCounted == 0 {
				run.Result.Measure(fmt.Sprintf("reset_percent_h%d_after_%d", h, n), is)
			}
			if n == resetChanges {
				run.Result.Compare(scenario.Figure{What: fmt.Sprintf("%% of connections reset after %d reconfigurations, h = %d", n, h),
					Paper: paperResets[h-1] + " after 100 (SHELL, figure 6)", Here: is, Simulated: simulated,
					Why: fmt.Sprintf("%d servers and %d buckets; the paper has 500 and 35591", resetServers, resetSlots)})
			}
		}
		if len(run.Result.Failures) != 0 { // what follows differs, too
			return
		}
	}
	run.Result.Expect(groups[0].reset > groups[model.MaxHistory-1].reset, "a history of %d servers helps nobody", model.MaxHistory)
}
