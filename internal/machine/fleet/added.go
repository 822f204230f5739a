package fleet

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// WithAdded returns who of a service is unhealthy once it becomes next: also servers that it did not have, until checks have found them
// healthy. Where no other server takes new connections, these do. before is nil for a service that is new: nothing is known of any server then.
func (u Unhealthy) WithAdded(before, next *model.Service) Unhealthy {
	if before == nil || before.Health.Check == model.CheckNone || next.Health.Check == model.CheckNone {
		return u
	}
	known := map[uint16]bool{}
	for i := range before.Servers {
		known[before.Servers[i].ID] = true
	}
	down, others := slices.Clone(u.Down), false
	for i := range next.Servers {
		if id := next.Servers[i].ID; known[id] {
			others = others || next.Servers[i].TakesNew()
		} else if !slices.Contains(down, id) {
			down = append(down, id)
		}
	}
	if !others || len(down) == len(u.Down) {
		return u
	}
	slices.Sort(down)
	u.Down = down
	return u
}
