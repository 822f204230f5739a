// Connections that go on to predecessors, as load balancers count them.
package hub

import "github.com/ballast-lb/ballast/internal/api/ballastv1"

// predecessorsMost bounds of how many services a load balancer may tell: one that tells of more has told nothing.
const predecessorsMost = 65536

// recordPredecessors takes what a load balancer counts. The caller holds Nodes.mutex.
func (p *peer) recordPredecessors(c *ballastv1.Condition) {
	p.predecessors = nil
	if p.isLB() && len(c.Predecessors) <= predecessorsMost {
		p.predecessors = c.Predecessors
	}
}

// PredecessorConnections adds up what connected load balancers count of a service. known: one of them at least does, and nobody else joins as it.
func (n *Nodes) PredecessorConnections(service string) (count uint64, known bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, p := range n.lbs {
		if one, tells := p.predecessors[service]; tells && p.contested() == "" {
			count, known = count+one, true
		}
	}
	return count, known
}
