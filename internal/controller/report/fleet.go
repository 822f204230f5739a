// What clients notice.
package report

import (
	"fmt"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/hub"
	"github.com/ballast-lb/ballast/internal/machine/filtered"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/machine/pathmtu"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
	"github.com/ballast-lb/ballast/internal/plan"
)

// FleetProblems are what clients notice, whatever each node says of itself.
func (r *Reporter) FleetProblems() (problems []string) {
	fleet, _, err := r.o.Mirror.Fleet()
	if err != nil || len(fleet.Services) == 0 {
		return nil
	}
	nodes, lost := r.o.Hub.Nodes.List(), r.o.Hub.Nodes.Lost()
	connected, seen := 0, map[string]bool{}
	for _, n := range slices.Concat(nodes, lost) {
		if n.Role == string(pki.LB) {
			seen[n.Name] = true
			if n.Ready != hub.ReadyLost {
				connected++
			}
		}
	}
	if connected == 0 {
		balancers := slices.DeleteFunc(lost, func(n *ballastv1.NodeStatus) bool { return n.Role != string(pki.LB) })
		return append([]string{"no load balancer is connected: nothing says that clients are served"}, unheard(&fleet, nil, balancers, time.Now())...)
	}
	explained := map[string]bool{} // servers
	for _, cause := range filtered.Seen(r.o.Engine.Tunnels(r.o.Hub.Nodes.Agents())) {
		problems = append(problems, cause.Problem())
		for _, name := range cause.Servers {
			explained[name] = true
		}
	}
	problems = append(problems, unhealthy(r.o.Engine.Servers(""), explained)...)
	problems = append(problems, notReady(nodes)...)
	problems = append(problems, unheard(&fleet, nodes, lost, time.Now())...)
	problems = append(problems, r.mtuProblems(&fleet)...)
	var speakers []string
	for i := range fleet.Nodes {
		if fleet.Nodes[i].Announces() {
			name := fleet.Nodes[i].Name
			speakers = append(speakers, name)
			if !seen[name] {
				problems = append(problems, fmt.Sprintf("node %s announces nothing: no load balancer of this name has connected for a day, or since this controller started: start it with --name %s, or correct the name under nodes (`ballast ctl node list`)", name, name))
			}
		}
	}
	by, known := r.o.Hub.Nodes.Announced(speakers)
	if len(speakers) == 0 || !known {
		return problems
	}
	said, announcements := map[string]bool{}, fleet.Announcements()
	for i := range fleet.Services {
		s := &fleet.Services[i]
		for _, address := range s.VIPs() {
			if vip := address.String(); !s.Functions() && by[vip] == 0 && !said[vip] && announcements[address].How != model.VIPOff {
				said[vip] = true
				problems = append(problems, fmt.Sprintf("VIP %s is announced by no connected load balancer: start one whose node has bgp or l2 (`ballast ctl node list`); why one that runs does not, `ballast ctl bgp show` or `ballast ctl l2 show` says there", vip))
			}
		}
	}
	return problems
}

// unhealthy names the servers that fail their checks though they are to take connections, those of a service at once.
func unhealthy(servers []engine.ServerStatus, explained map[string]bool) (problems []string) {
	failing, why, order := map[string][]string{}, map[string]string{}, []string{}
	for i := range servers {
		s := &servers[i]
		if s.Removed || !s.Server.TakesNew() || s.Health != string(health.Unhealthy) || explained[s.Server.Name] {
			continue
		}
		if failing[s.Service] == nil {
			order, why[s.Service] = append(order, s.Service), s.HealthDetail
		}
		failing[s.Service] = append(failing[s.Service], s.Server.Name)
	}
	for _, service := range order {
		names := failing[service]
		text := fmt.Sprintf("%s of service %s (%s) fail%s health checks", model.Counted(len(names), "server", "servers"), service, model.Some(names), map[bool]string{true: "s"}[len(names) == 1])
		if why[service] != "" {
			text += ": " + why[service]
		}
		problems = append(problems, text+": see `ballast ctl server list`, and run `ballast doctor` there")
	}
	return problems
}

// notReady names the connected nodes that say so of themselves.
func notReady(nodes []*ballastv1.NodeStatus) (problems []string) {
	for _, n := range nodes {
		if n.Ready != "no" {
			continue
		}
		text := n.Role + " " + n.Name + " is not ready"
		if len(n.Problems) > 0 {
			text += ": " + n.Problems[0]
		}
		problems = append(problems, text+": run `ballast doctor` there")
	}
	return problems
}

// restarts is how long a node may be gone while it starts again. One that fell silent before its connection ended does not.
const restarts = 15 * time.Second

// unheard names the nodes that the fleet has and that say nothing: changes do not reach them, and what they were last known to be is old.
func unheard(fleet *model.Fleet, nodes, lost []*ballastv1.NodeStatus, now time.Time) (problems []string) {
	for _, n := range slices.Concat(nodes, lost) {
		since := n.LastSeen.AsTime()
		starting := now.Sub(since) < restarts && !slices.Contains(n.Problems, hub.FellSilent)
		if n.Ready != hub.ReadyUnknown && (n.Ready != hub.ReadyLost || starting || !has(fleet, n)) {
			continue
		}
		why := ""
		if len(n.Problems) > 0 {
			why = " (" + n.Problems[0] + ")"
		}
		remedy := "look at its log (`journalctl -u ballast-" + n.Role + "` there)"
		if n.Ready == hub.ReadyLost {
			remedy = "start it, or take it off the list: `ballast ctl node forget " + n.Name + "`"
		}
		problems = append(problems, fmt.Sprintf("%s %s has not reported since %s%s: changes do not reach it, and its programs, if its machine runs, keep the state of that time: %s",
			n.Role, n.Name, since.UTC().Format(time.RFC3339), why, remedy))
	}
	return problems
}

// has tells whether the fleet's configuration names a node: load balancers that only routers choose come and go without it.
func has(fleet *model.Fleet, n *ballastv1.NodeStatus) bool {
	if n.Role == string(pki.LB) {
		return fleet.Node(n.Name) != nil
	}
	return slices.ContainsFunc(fleet.Services, func(s model.Service) bool {
		return slices.ContainsFunc(s.Servers, func(server model.Server) bool { return server.Name == n.Name && server.State != model.StateOff })
	})
}

// mtuProblems joins what agents say of their devices with what load balancers know of the paths to them.
func (r *Reporter) mtuProblems(fleet *model.Fleet) []string {
	var servers []pathmtu.Server
	for _, receiver := range r.o.Hub.Nodes.Receivers() {
		for _, known := range r.o.Engine.ServersOf(receiver.Agent) {
			s := fleet.Service(known.Service)
			if s == nil || !s.Forward.Tunnels() || !known.Server.TakesNew() {
				continue
			}
			server := pathmtu.Server{Name: known.Server.Name, Device: receiver.Device, MTU: int(receiver.Mtu), Overhead: plan.Overhead(s, known.Server.Address),
				Paths: r.o.Hub.Nodes.PathMTUs(known.Server.Address)}
			if s.Protocol == model.ProtocolTCP {
				server.Headers, server.Segment = plan.ClientHeaders(s.HasIPv6()), int(receiver.Segment)
				if s.HasIPv6() {
					server.Segment = int(receiver.Segment6)
				}
			}
			servers = append(servers, server)
		}
	}
	return pathmtu.Problems(servers)
}
