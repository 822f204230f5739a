// How much nodes send and take in one packet.
package hub

import (
	"net/netip"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/pathmtu"
	"github.com/ballast-lb/ballast/internal/pki"
)

const deviceName = 15 // IFNAMSIZ without the end

// recordMTUs takes what a node reports of what it sends or takes in one packet. The caller holds Nodes.mutex.
func (p *peer) recordMTUs(c *ballastv1.Condition) {
	p.paths, p.receiver = nil, nil
	if p.isLB() && len(c.Paths.GetOthers()) <= pathmtu.OthersMax {
		p.paths = c.Paths
	}
	if r := c.Receiver; p.isAgent() && r != nil && len(r.Device) <= deviceName {
		r.Device = legible(r.Device)
		p.receiver = r
	}
}

// A Receiver is what an agent reports of the device that tunnels come in by.
type Receiver struct {
	Agent pki.Identity
	*ballastv1.Receiver
}

// Receivers returns those of agents that are connected, and that nobody else joins as.
func (n *Nodes) Receivers() (list []Receiver) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, p := range n.peers {
		if p.receiver != nil && p.contested() == "" {
			list = append(list, Receiver{p.identity, p.receiver})
		}
	}
	return list
}

// PathMTUs returns, by load balancer, those of the paths to a server. Who has not reported it, or is on the server's host, is left out.
func (n *Nodes) PathMTUs(server netip.Addr) map[string]int {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	mtus := map[string]int{}
	for name, p := range n.lbs {
		mtu, reported := p.paths.GetOthers()[server.String()]
		if !reported {
			mtu = p.paths.GetMost()
		}
		if mtu != 0 {
			mtus[name] = int(min(mtu, 1<<16-1))
		}
	}
	return mtus
}
