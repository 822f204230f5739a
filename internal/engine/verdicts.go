// Which servers of a service are unhealthy.
package engine

import (
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/model"
)

// verdicts are which servers are unhealthy. serviceState.mutex guards them.
type verdicts struct {
	judge    health.Judge
	checkers []string
	down     []uint16 // as judged last
	kept     []uint16 // unhealthy, and get new connections all the same
	judged   time.Time
	evidence bool // there is something that was not judged yet
}

// decide judges all servers. It returns those that were unhealthy and are not any more; changed: the verdicts are other ones.
func (v *verdicts) decide(now time.Time, service *model.Service) (healthy []uint16, changed bool) {
	down := v.judge.Down(now, service, v.checkers)
	v.judged, v.evidence = now, false
	kept := v.judge.Kept()
	if slices.Equal(down, v.down) && slices.Equal(kept, v.kept) {
		return nil, false
	}
	for _, id := range slices.Concat(v.down, v.kept) {
		if !slices.Contains(down, id) && !(slices.Contains(v.kept, id) && slices.Contains(kept, id)) {
			healthy = append(healthy, id)
		}
	}
	v.down, v.kept = down, kept
	return healthy, true
}
