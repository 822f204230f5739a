package hub

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/pathmtu"
	"github.com/ballast-lb/ballast/internal/pki"
)

const deviceName = 15 // IFNAMSIZ without the end

// takeMTUs takes what a node says of what it sends or takes in one packet. The caller holds the hub's lock.
func (p *peer) takeMTUs(c *ballastv1.Condition) {
	p.paths, p.receiver = nil, nil
	if p.identity.Role == pki.LB && len(c.Paths.GetOthers()) <= pathmtu.OthersMax {
		p.paths = c.Paths
	}
	if r := c.Receiver; p.identity.Role == pki.Agent && r != nil && len(r.Device) <= deviceName {
		r.Device = legible(r.Device)
		p.receiver = r
	}
}

// A Receiver is what an agent says of the device that tunnels come in by.
type Receiver struct {
	Agent pki.Identity
	*ballastv1.Receiver
}

// Receivers are those of agents that are connected, and that nobody else joins as.
func (h *Hub) Receivers() (list []Receiver) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, p := range h.peers {
		if p.receiver != nil && p.contested() == "" {
			list = append(list, Receiver{p.identity, p.receiver})
		}
	}
	return list
}

// PathMTUs are, by load balancer, those of the paths to a server. Who has not said it is left out.
func (h *Hub) PathMTUs(server netip.Addr) map[string]int {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	mtus := map[string]int{}
	for name, p := range h.lbs {
		mtu, told := p.paths.GetOthers()[server.String()]
		if !told {
			mtu = p.paths.GetMost()
		}
		if mtu != 0 {
			mtus[name] = int(min(mtu, 1<<16-1))
		}
	}
	return mtus
}
