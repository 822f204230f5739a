// What a load balancer keeps for its next life.
package lb

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/instance"
	"github.com/ballast-lb/ballast/internal/daemon/lb/bgp"
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/daemon/lb/l2"
	"github.com/ballast-lb/ballast/internal/daemon/lb/liveness"
	"github.com/ballast-lb/ballast/internal/daemon/lb/replication"
	"github.com/ballast-lb/ballast/internal/daemon/lb/sweeper"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// savedState is the state file.
type savedState struct {
	Base    statefile.Fleet            `json:"base"`
	Running statefile.Fleet            `json:"running"`
	Removed []fleet.Removed            `json:"removed"`
	Past    map[string][][]model.Share `json:"past"`
	// TakesPart is what probes found: without it every restart would take timestamps off until it has probed again.
	TakesPart map[netip.AddrPort]bool    `json:"takes_part"`
	Revision  uint64                     `json:"revision,omitempty"` // that controllers gave the state
	Unhealthy map[string]fleet.Unhealthy `json:"unhealthy,omitempty"`
	Alone     bool                       `json:"alone,omitempty"` // this load balancer has found Unhealthy, in place of controllers
	Suspects  []sweeper.Suspect          `json:"suspects,omitempty"`

	BGP         *bgp.Kept          `json:"bgp,omitempty"`
	L2          *l2.Kept           `json:"l2,omitempty"`
	Replication *replication.State `json:"replication,omitempty"` // with controllers
}

// loadState reads the state file; nil: there is none, and the node knows nothing.
func loadState(kept *statefile.File, remedy string) (saved *savedState, err error) {
	saved = &savedState{}
	if found, err := kept.Load(saved, remedy); err != nil || !found {
		return nil, err
	}
	for _, fleet := range []*statefile.Fleet{&saved.Base, &saved.Running} {
		if err := (*model.Fleet)(fleet).Validate(); err != nil {
			return nil, fmt.Errorf("load state %s: %w: %s", kept.Path, err, remedy)
		}
	}
	return saved, nil
}

// limitsFor are the limits that the options say. Others are those of maps that are there, or else as large as the fleet needs; with controllers, which have not
// said it yet, DefaultLimits.
func limitsFor(pins string, said plan.Limits, file *config.File, saved *savedState) (plan.Limits, error) {
	pinned, err := lb.PinnedLimits(pins)
	if err != nil {
		return plan.Limits{}, err
	}
	limits := said.Or(pinned)
	if file == nil {
		return limits.Or(plan.DefaultLimits), nil
	}
	services := slices.Clone(file.Fleet.Services)
	if saved != nil { // some may have been added to what the file has
		for i := range saved.Running.Services {
			if s := &saved.Running.Services[i]; file.Fleet.Service(s.Name) == nil {
				services = append(services, *s)
			}
		}
	}
	return limits.Or(plan.LimitsFor(services)), nil
}

// state is the desired state that was saved.
func (s *savedState) state(self string) *desired.State {
	return &desired.State{Desired: fleet.Desired{Base: model.Fleet(s.Base), Running: model.Fleet(s.Running), Removed: s.Removed, Past: s.Past}, Unhealthy: s.Unhealthy, Self: self}
}

// Kept returns the state file that an instance has under stateDir, if there is one.
func Kept(stateDir, instance string) []statefile.Kept {
	var saved savedState
	return statefile.Examine("lb", statefile.LB(stateDir, instance), &saved, &saved.Running)
}

// Forwarded counts the packets that were sent to servers, by what a load balancer that has ended has left pinned; known is false where nothing is.
func Forwarded(runDir, name string) (packets uint64, known bool, err error) {
	return lb.Forwarded(instance.PinDir(runDir, name))
}

// Withdraw makes routers and the segment forget what a daemon that has ended has announced, and network functions leave it, before its data path goes. Who does not answer
// is named in the log alone.
func Withdraw(ctx context.Context, stateDir, instance, pins string, log *slog.Logger) error {
	if err := l2.Withdraw(ctx, pins); err != nil {
		log.Warn("VIPs are answered for on the segment yet", "error", err)
	}
	var saved savedState
	kept := statefile.File{Path: statefile.LB(stateDir, instance), Log: log}
	found, err := kept.Load(&saved, statefile.StartFromFile)
	if err != nil {
		log.Warn("not known whether VIPs are announced", "error", err)
	}
	if !found || saved.BGP == nil {
		err := bfd.Remove(pins)
		if running := model.Fleet(saved.Running); len(liveness.FunctionsOf(&running, saved.Removed)) > 0 {
			select {
			case <-time.After(liveness.Notice):
			case <-ctx.Done():
			}
		}
		return err
	}
	if err := bgp.Withdraw(ctx, pins, &saved.BGP.By, log); err != nil {
		log.Warn(err.Error())
	}
	return nil
}
