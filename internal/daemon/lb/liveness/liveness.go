// Package liveness answers BFD: that of routers, which BGP names, and that of network functions, whose gateways are the load balancers that answer.
package liveness

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/daemon/lb/dataplane"
	"github.com/ballast-lb/ballast/internal/linux/bfd"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/gateways"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	period = time.Second
	// grace is how long functions are answered by a load balancer that nobody has said can forward for them: its daemon restarts, or is dead.
	grace = 15 * time.Second
	// Notice is what functions have to leave a load balancer that answers no more, before its data path goes.
	Notice = 2 * gateways.Multiplier * gateways.Interval
)

// Options of New.
type Options struct {
	Pins   string // the instance's
	Tables *dataplane.Tables
	Stop   func() string // why no packet is forwarded; empty: some are
	Ring   func() string // why packets of replicated services should not come here; nil: there are none
	Log    *slog.Logger
}

// Responder answers. Its methods are safe for concurrent use.
type Responder struct {
	o    Options
	wake chan struct{}

	mutex     sync.Mutex
	reflector *bfd.Reflector // nil: there is nobody to answer, or it has ended
	ended     bool
	routers   []bfd.Session
	functions []bfd.Session
	problem   string
}

// New makes one that answers whom an earlier process did until it is told otherwise.
func New(o Options) *Responder { return &Responder{o: o, wake: make(chan struct{}, 1)} }

// Wake makes it look at once.
func (r *Responder) Wake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run answers network functions until ctx ends, and for a while longer.
func (r *Responder) Run(ctx context.Context) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for ctx.Err() == nil {
		r.look()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-r.wake:
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.ended = true; r.reflector != nil {
		r.reflector.Close()
	}
}

func (r *Responder) look() {
	state := r.o.Tables.Now()
	if !state.Followed {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.functions = FunctionsOf(&state.Running, state.Removed)
	err := r.follow()
	if err == nil && r.reflector != nil {
		err = r.answer(state)
	}
	before := r.problem
	if r.problem = ""; err != nil {
		r.problem = err.Error()
	}
	if r.problem != "" && r.problem != before {
		r.o.Log.Error("network functions are not answered", "why", r.problem)
	}
}

// answer says how long functions are answered, where that can be known.
func (r *Responder) answer(state *dataplane.Snapshot) error {
	if state.Own().State != model.StateActive || r.o.Stop() != "" {
		return r.reflector.Answer(0)
	}
	if r.o.Ring != nil && r.o.Ring() != "" {
		return nil
	}
	return r.reflector.Answer(grace)
}

// FunctionsOf are the sessions with all network functions of a fleet, and with those that were removed and have connections yet.
func FunctionsOf(running *model.Fleet, removed []fleet.Removed) (sessions []bfd.Session) {
	known := map[netip.Addr]bool{}
	for i := range running.Services {
		if s := &running.Services[i]; s.Functions() {
			for k := range s.Servers {
				known[s.Servers[k].Address] = true
			}
		}
	}
	for i := range removed {
		if s := running.Service(removed[i].Service); s != nil && s.Functions() && !removed[i].Forgotten {
			known[removed[i].Server.Address] = true
		}
	}
	for address := range known {
		sessions = append(sessions, bfd.Session{Neighbor: address, Interval: gateways.Interval, Multiplier: gateways.Multiplier})
	}
	slices.SortFunc(sessions, func(a, b bfd.Session) int { return a.Neighbor.Compare(b.Neighbor) })
	return sessions
}

// Routers answers these, and no others.
func (r *Responder) Routers(sessions []bfd.Session) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.routers = sessions
	if state := r.o.Tables.Now(); state.Followed {
		r.functions = FunctionsOf(&state.Running, state.Removed)
	}
	return r.follow()
}

func (r *Responder) follow() (err error) {
	if r.ended {
		return nil
	}
	if len(r.routers)+len(r.functions) == 0 {
		if r.reflector != nil {
			r.reflector.Close()
			r.reflector = nil
		}
		return bfd.Remove(r.o.Pins)
	}
	if r.reflector == nil {
		if r.reflector, err = bfd.Open(r.o.Pins); err != nil {
			return err
		}
	}
	var devices []int
	resolver := netdev.NewResolver()
	for _, s := range slices.Concat(r.routers, r.functions) {
		if hop, _ := resolver.Lookup(s.Neighbor); hop.Ifindex != 0 && !slices.Contains(devices, hop.Ifindex) {
			devices = append(devices, hop.Ifindex)
		}
	}
	return r.reflector.Follow(r.routers, r.functions, devices)
}

// States tells how the sessions with routers are.
func (r *Responder) States(routers []netip.Addr) map[netip.Addr]bfd.State {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.reflector == nil || r.ended {
		return nil
	}
	return r.reflector.States(routers)
}

// Problems are why functions may get no answer.
func (r *Responder) Problems() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.problem == "" {
		return nil
	}
	return []string{"network functions: " + r.problem}
}
