// What daemons have kept for the next process, for who examines a host where none runs.
package daemon

import (
	"errors"
	"os"

	"github.com/ballast-lb/ballast/internal/model"
)

// KeptState is an instance's state file.
type KeptState struct {
	Role  string // lb or agent
	Path  string
	Fleet model.Fleet // that ran
	Err   error       // why no daemon could begin with it
}

// KeptStates returns those that an instance has under stateDir: one, unless it has been of both roles.
func KeptStates(stateDir, instance string) (kept []KeptState) {
	add := func(role, path string, saved any, running *savedFleet) {
		err := decodeFile(path, saved)
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		fleet := model.Fleet(*running)
		if err == nil {
			err = fleet.Validate()
		}
		kept = append(kept, KeptState{Role: role, Path: path, Fleet: fleet, Err: err})
	}
	var lb savedState
	add("lb", lbState(stateDir, instance), &lb, &lb.Running)
	var agent savedAgent
	add("agent", agentState(stateDir, instance), &agent, &agent.Running)
	return kept
}
