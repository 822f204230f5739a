// What load balancers have kept, for who examines a host where none runs.
package daemon

import "github.com/ballast-lb/ballast/internal/daemon/statefile"

// Kept returns the state file of an instance, none if there is no such file.
func Kept(stateDir, instance string) []statefile.Kept {
	var last savedState
	return statefile.Examine("lb", statefile.LB(stateDir, instance), &last, &last.Running)
}
