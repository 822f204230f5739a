package controller

import (
	"github.com/ballast-lb/ballast/internal/machine/pathmtu"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// mtuProblems joins what agents say of their devices with what load balancers know of the paths to them.
func (c *controller) mtuProblems(fleet *model.Fleet) []string {
	var servers []pathmtu.Server
	for _, r := range c.hub.Nodes.Receivers() {
		for _, known := range c.engine.ServersOf(r.Agent) {
			s := fleet.Service(known.Service)
			if s == nil || !s.Forward.Tunnels() || !known.Server.TakesNew() {
				continue
			}
			server := pathmtu.Server{Name: known.Server.Name, Device: r.Device, MTU: int(r.Mtu), Overhead: plan.Overhead(s, known.Server.Address),
				Paths: c.hub.Nodes.PathMTUs(known.Server.Address)}
			if s.Protocol == model.ProtocolTCP {
				server.Headers, server.Segment = plan.ClientHeaders(s.VIP.Is6()), int(r.Segment)
				if s.VIP.Is6() {
					server.Segment = int(r.Segment6)
				}
			}
			servers = append(servers, server)
		}
	}
	return pathmtu.Problems(servers)
}
