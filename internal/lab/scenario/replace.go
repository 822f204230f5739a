// Replacing the processes of a fleet, politely and not.
package scenario

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/lab/await"
	"github.com/ballast-lb/ballast/internal/lab/loadmeter"
	"github.com/ballast-lb/ballast/internal/lab/world"
)

// ReplaceDaemon stops a node's process by SIGTERM and by SIGKILL; each time traffic flows without it,
// then a new process takes over.
func ReplaceDaemon(t *world.Trial, running *world.Load, role, node string, daemons map[string]*world.Daemon) {
	ways := []world.Step{
		{What: fmt.Sprintf("stop %s of %s", role, node), Do: func() {
			ctx, cancel := loadmeter.WithTimeout(t.Context, await.Deadline)
			defer cancel()
			daemons[node].Stop(ctx)
		}},
		{What: fmt.Sprintf("kill %s of %s", role, node), Do: func() { daemons[node].Kill() }},
	}
	for _, way := range ways {
		t.Series(running, way, world.Step{What: fmt.Sprintf("start %s of %s", role, node), Do: func() {
			daemons[node] = nil
			t.Rollout.Apply()
		}})
	}
}
