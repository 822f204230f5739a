// What controllers say that this host serves, kept for the next process.
package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/config"
	"github.com/ballast-lb/ballast/internal/daemon/statefile"
	"github.com/ballast-lb/ballast/internal/machine/node"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/model"
)

// desired is what controllers say.
type desired struct {
	node     node.Node
	tickets  map[string]rotation.ServiceTickets // keys of session tickets, by service
	revision uint64
	kept     statefile.File
}

// saved is the state file of an agent that runs by controllers.
type saved struct {
	Revision uint64          `json:"revision"`
	Running  statefile.Fleet `json:"running"`
	Removed  []node.Removed  `json:"removed"`
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

// load goes on with what an earlier process knew.
func (d *desired) load(t *tunnels) (found bool, err error) {
	var last saved
	if found, err = d.kept.Load(&last, statefile.StartFromControllers); err != nil {
		return false, err
	}
	for service, tickets := range last.Tickets {
		if err := tickets.Validate(); err != nil {
			return false, fmt.Errorf("load state %s: service %s: %w: %s", d.kept.Path, service, err, statefile.StartFromControllers)
		}
	}
	d.node, d.revision = node.Node{Running: model.Fleet(last.Running), Removed: last.Removed}, last.Revision
	d.tickets = last.Tickets
	t.sources.Limited = last.Limited
	t.sources.Restore(last.TunnelsFrom, time.Now())
	return found, nil
}

func (d *desired) save(t *tunnels) {
	d.kept.Save(saved{d.revision, statefile.Fleet(d.node.Running), d.node.Removed, t.from, t.sources.Limited, d.tickets})
}

// file makes a configuration of what controllers say. Removed servers still take part: their connections have not ended.
func (d *desired) file(path string) *config.File {
	fleet := d.node.Running.Clone()
	for _, r := range slices.Backward(d.node.Removed) { // the newest first: connections that live carry its id
		if s := fleet.Service(r.Service); s != nil {
			server := r.Server
			server.State = model.StateDraining
			s.Servers = append(s.Servers, server)
		}
	}
	return &config.File{Path: path, Fleet: fleet}
}
