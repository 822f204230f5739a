package lb

import (
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/plan"
)

// PinnedLimits are those of the maps that an earlier process has left in dir, as far as an operator may choose them: a map keeps its size. 0: there is none.
func PinnedLimits(dir string) (limits plan.Limits, err error) {
	pins := pin.Instance{Dir: dir, Layout: Layout}
	for name, limit := range map[string]*uint32{"server_counters": &limits.Servers, "slots": &limits.Slots, "connections": &limits.Entries,
		"local_connections": &limits.Local, "replica_entries": &limits.Replicated} {
		if *limit, err = pins.Room(name); err != nil {
			return plan.Limits{}, err
		}
	}
	limits.Replicated = replicas.Entries(limits.Replicated)
	return limits, nil
}
