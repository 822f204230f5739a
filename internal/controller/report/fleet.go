// What clients notice.
package report

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/machine/filtered"
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
	connected := 0
	for _, n := range r.o.Hub.Nodes.List() {
		if n.Role == string(pki.LB) {
			connected++
		}
	}
	if connected == 0 {
		return []string{"no load balancer is connected: nothing says that clients are served"}
	}
	for _, cause := range filtered.Seen(r.o.Engine.Tunnels(r.o.Hub.Nodes.Agents())) {
		problems = append(problems, cause.Problem())
	}
	problems = append(problems, r.mtuProblems(&fleet)...)
	var speakers []string
	for i := range fleet.Nodes {
		if fleet.Nodes[i].Announces() {
			speakers = append(speakers, fleet.Nodes[i].Name)
		}
	}
	by, reporting, known := r.o.Hub.Nodes.Announced(speakers)
	if reporting == 0 || !known {
		return problems
	}
	said := map[string]bool{}
	for i := range fleet.Services {
		s := &fleet.Services[i]
		for _, address := range s.VIPs() {
			if vip := address.String(); !s.Functions() && by[vip] == 0 && !said[vip] {
				said[vip] = true
				problems = append(problems, fmt.Sprintf("VIP %s is announced by no connected load balancer: see `ballast ctl bgp show` or `ballast ctl l2 show` there", vip))
			}
		}
	}
	return problems
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
