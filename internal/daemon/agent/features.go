// What follows the services of this host besides maps and devices.
package agent

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/daemon/agent/acceptance"
	"github.com/ballast-lb/ballast/internal/daemon/agent/appfiles"
	"github.com/ballast-lb/ballast/internal/daemon/agent/connectionids"
	"github.com/ballast-lb/ballast/internal/daemon/agent/gateways"
	"github.com/ballast-lb/ballast/internal/daemon/agent/keys"
	"github.com/ballast-lb/ballast/internal/daemon/agent/loadreport"
	"github.com/ballast-lb/ballast/internal/daemon/agent/mptcp"
	"github.com/ballast-lb/ballast/internal/daemon/agent/probes"
	"github.com/ballast-lb/ballast/internal/daemon/agent/serving"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tickets"
	"github.com/ballast-lb/ballast/internal/daemon/agent/tracking"
	"github.com/ballast-lb/ballast/internal/linux/netdev"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/machine/rotation"
	"github.com/ballast-lb/ballast/internal/plan"
)

// features follow the services of this host: each has its own files, tables, endpoints or reports.
type features struct {
	path    *server.Server
	keys    *keys.Reporter
	load    *loadreport.Reporter
	accepts *acceptance.Loads
	ids     *appfiles.Files
	tickets *tickets.Tickets
	joins   *mptcp.Joins
	tracked *tracking.Tracking
	probes  *probes.Probes
}

func newFeatures(o *Options, path *server.Server) (f features, err error) {
	f = features{path: path, keys: keys.New(path, o.Log), load: loadreport.New(o.Cgroup), accepts: acceptance.New(path, o.Cgroup, o.Log),
		joins: mptcp.New(o.RunDir, o.Instance, o.Log), tracked: tracking.New(o.Instance, o.KeepTracking, o.Log), probes: probes.New(path, netdev.TrackedTo, netdev.RouteDevice)}
	if f.ids, err = connectionids.New(o.RunDir, o.Instance, o.QUICGroup, o.Log); err != nil {
		return f, err
	}
	f.tickets, err = tickets.New(&tickets.Options{RunDir: o.RunDir, StateDir: o.StateDir, Instance: o.Instance, Group: o.TicketGroup, Key: o.TicketKey, Log: o.Log})
	return f, err
}

// set takes what the host serves. changed: its maps have.
func (f *features) set(s *serving.Serving, ticketKeys map[string]rotation.ServiceTickets, changed bool) {
	fleetKeys := &s.Applied.Fleet.Keys
	f.accepts.Set(s.Wanted.Choices)
	f.ids.Set(fleetKeys, s.Wanted.QUIC)
	f.tickets.Set(fleetKeys, ticketKeys, s.Wanted.Sessions, s.Wanted.Begun)
	f.joins.Set(joinsOf(&s.Wanted, plan.JoinAnnounced), joinsOf(&s.Wanted, plan.JoinKept))
	f.keys.Set(fleetKeys, s.Wanted.Joins, changed)
	f.keys.SetTickets(f.tickets.Written())
}

func joinsOf(wanted *plan.Agent, role plan.JoinRole) (list []netip.AddrPort) {
	for _, join := range wanted.Joins {
		if join.Role == role {
			list = append(list, join.At)
		}
	}
	return list
}

// follow repairs what failed or what somebody has changed, and sees what the kernel refuses. It is to be called once a second.
func (f *features) follow(now time.Time) {
	f.ids.Retry()
	f.tickets.Retry()
	f.keys.SetTickets(f.tickets.Written())
	f.tickets.Observe(f.path, now)
	f.joins.Follow()
	f.tracked.Follow()
	f.tracked.Observe(f.path, now)
}

func (f *features) problems() []string {
	return slices.Concat(f.accepts.Problems(), f.ids.Unwritten, f.tickets.Problems(), f.joins.Problems, f.tracked.Problems())
}

// describe adds what the services have to a status.
func (f *features) describe(s *serving.Serving, status *api.AgentStatus) {
	for _, service := range s.Wanted.QUIC {
		status.IDFiles = append(status.IDFiles, f.ids.Path(service.Service))
	}
	for _, service := range s.Wanted.Sessions {
		status.TicketFiles = append(status.TicketFiles, f.tickets.Path(service.Service))
	}
	status.TicketKeys = f.tickets.Status()
	status.Joins = slices.Clone(f.joins.Wanted)
	status.Untracked = slices.Clone(f.tracked.Untracked)
	status.Probes = f.probes.Status(time.Now())
}

// detachFeatures removes what features keep in the kernel.
func detachFeatures(runDir, instance string, log *slog.Logger) error {
	return errors.Join(mptcp.New(runDir, instance, log).Leave(), tracking.New(instance, false, log).Leave(), gateways.Leave(runDir, instance))
}
