// What daemons have kept for the next process, for who examines a host where none runs.
package statefile

import (
	"errors"
	"os"

	"github.com/ballast-lb/ballast/internal/model"
)

// Kept is a state file.
type Kept struct {
	Role  string // lb or agent
	Path  string
	Fleet model.Fleet // that ran
	Err   error       // why no daemon could begin with it
}

// Examine reads a role's state file into saved, which has running; none: there is no such file.
func Examine(role, path string, saved any, running *Fleet) (kept []Kept) {
	err := decode(path, saved)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	fleet := model.Fleet(*running)
	if err == nil {
		err = fleet.Validate()
	}
	return []Kept{{Role: role, Path: path, Fleet: fleet, Err: err}}
}
