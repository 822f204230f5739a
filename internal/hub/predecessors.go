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

// PredecessorConnections adds up what connected load balancers count of a service, but for those that send its packets to other load balancers.
// known: there is one, all of them tell, and nobody else joins as one of them.
func (n *Nodes) PredecessorConnections(service string, sendsToNodes func(name string) bool) (count uint64, known bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	all := 0
	known = true
	for name, p := range n.lbs {
		if sendsToNodes(name) {
			continue
		}
		one, tells := p.predecessors[service]
		all, count, known = all+1, count+one, known && tells && p.contested() == ""
	}
	return count, known && all > 0
}
