// The outbox of open connections, as agents count them.
package hub

import (
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
)

// openCounts are the newest counts of a service, and the part of its connections that each load balancer dispatches.
type openCounts struct {
	*follow.Counts
	shares map[string]float64
}

// Count takes what agents have counted of a service's open connections, for the load balancers that dispatch some of them. Counts that a
// peer was not sent yet are replaced.
func (h *Hub) Count(service string, counts *follow.Counts, shares map[string]float64) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if h.services[service] == nil {
		return
	}
	h.counts[service] = &openCounts{counts, shares}
	for name, p := range h.lbs {
		if _, dispatches := shares[name]; !dispatches {
			continue
		}
		if p.counts[service] {
			h.metrics.coalesced.WithLabelValues("open").Inc()
		}
		p.counts[service] = true
		p.wakeUp()
	}
}

// nextCounts returns the counts of one service that the peer was not sent yet; nil: there are none. The caller holds the lock.
func (h *Hub) nextCounts(p *peer) *frame {
	for service := range p.counts {
		delete(p.counts, service)
		if c := h.counts[service]; c != nil {
			// A share of 0 would say that it is not known.
			share := max(c.shares[p.identity.Name], leastShare)
			return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Open{Open: api.CountsToProto(service, c.Counts, share)}})
		}
	}
	return nil
}

// leastShare is that of a load balancer which dispatches nothing of late.
const leastShare = 1e-6
