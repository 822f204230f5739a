// Package desired keeps what controllers have this host serve for the next process.
package desired

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/machine/fleet"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// State is what controllers want.
type State struct {
	Node     fleet.Desired
	Tickets  map[string]rotation.ServiceTickets // keys of session tickets, by service
	Revision uint64
	Saved    statefile.File
}

// Tunnels are whose tunnels are taken.
type Tunnels struct {
	From    []netip.Addr // load balancers
	Limited bool         // those of others are dropped
}

// saved is the state file of an agent that runs by controllers.
type saved struct {
	Revision uint64          `json:"revision"`
	Running  statefile.Fleet `json:"running"`
	Removed  []fleet.Removed `json:"removed"`
	// TunnelsFrom are the addresses of load balancers; Limited: tunnels of others are dropped.
	TunnelsFrom []netip.Addr `json:"tunnels_from,omitempty"`
	Limited     bool         `json:"limited,omitempty"`

	Tickets map[string]rotation.ServiceTickets `json:"tickets,omitempty"`
}

// Kept returns the state file of an instance, none if there is no such file.
func Kept(stateDir, instance string) []statefile.Kept {
	var last saved
	return statefile.Examine("agent", statefile.Agent(stateDir, instance), &last, &last.Running)
}

// Load takes what an earlier process knew, and returns whose tunnels it took.
func (d *State) Load() (found bool, t Tunnels, err error) {
	var last saved
	if found, err = d.Saved.Load(&last, statefile.StartFromControllers); err != nil {
		return false, t, err
	}
	for service, tickets := range last.Tickets {
		if err := tickets.Validate(); err != nil {
			return false, t, fmt.Errorf("load state %s: service %s: %w: %s", d.Saved.Path, service, err, statefile.StartFromControllers)
		}
	}
	d.Node, d.Revision = fleet.Desired{Running: model.Fleet(last.Running), Removed: last.Removed}, last.Revision
	d.Tickets = last.Tickets
	return found, Tunnels{last.TunnelsFrom, last.Limited}, nil
}

// Save keeps the state, and whose tunnels are taken.
func (d *State) Save(t Tunnels) {
	d.Saved.Save(saved{d.Revision, statefile.Fleet(d.Node.Running), d.Node.Removed, t.From, t.Limited, d.Tickets})
}

// Left are the services that this host, which mine tells, was removed from, and whose connections it may have.
func (d *State) Left(mine func(*model.Server) bool) (services []string) {
	for i := range d.Node.Removed {
		r := &d.Node.Removed[i]
		s := d.Node.Running.Service(r.Service)
		if s == nil || r.Forgotten || !mine(&r.Server) || slices.Contains(services, r.Service) {
			continue
		}
		if here, _ := plan.ServerHere(s, mine); here == nil {
			services = append(services, r.Service)
		}
	}
	return services
}

// File makes a configuration of what controllers want. Removed servers still take part: their connections have not ended.
func (d *State) File(path string) *config.File {
	fleet := d.Node.Running.Clone()
	for _, r := range slices.Backward(d.Node.Removed) { // the newest first: connections that live carry its id
		if s := fleet.Service(r.Service); s != nil {
			server := r.Server
			server.State = model.StateDraining
			s.Servers = append(s.Servers, server)
		}
	}
	return &config.File{Path: path, Fleet: fleet}
}
