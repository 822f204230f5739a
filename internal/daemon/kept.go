// What daemons have kept, for who examines a host where none runs.
package daemon

import "github.com/ballast-lb/ballast/internal/daemon/statefile"

// KeptStates returns the state files that an instance has under stateDir: one, unless it has been of both roles.
func KeptStates(stateDir, instance string) []statefile.Kept {
	var lb savedState
	var agent savedAgent
	return append(statefile.Examine("lb", statefile.LB(stateDir, instance), &lb, &lb.Running),
		statefile.Examine("agent", statefile.Agent(stateDir, instance), &agent, &agent.Running)...)
}
