// What nodes measure and controllers compute of services: weights and counts. It is soft: the next update replaces it.
package hub

import (
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
)

// softState has the newest weights and counts of services that the hub knows. Per load balancer it queues names, not messages, so newer
// updates replace older ones. The hub's lock guards it.
type softState struct {
	weights map[string]*softWeights
	counts  map[string]*openCounts
}

func newSoftState() *softState {
	return &softState{weights: map[string]*softWeights{}, counts: map[string]*openCounts{}}
}

// weigh merges an update of a service's weights and queues it for load balancers. It returns for how many of them one waited already.
func (s *softState) weigh(service string, update *follow.Update, lbs map[string]*peer) (coalesced int) {
	w := s.weights[service]
	if w == nil {
		w = newSoftWeights(service)
		s.weights[service] = w
	}
	if !w.take(update) {
		return 0
	}
	for _, p := range lbs {
		if _, waits := p.weights[service]; waits {
			coalesced++
			continue
		}
		p.weights[service] = w.count - 1
		p.queue = append(p.queue, service)
		p.wakeUp()
	}
	return coalesced
}

// count takes a service's counts and queues them for the load balancers with a share. It returns for how many of them some waited already.
func (s *softState) count(service string, counts *openCounts, lbs map[string]*peer) (coalesced int) {
	s.counts[service] = counts
	for name, p := range lbs {
		if _, dispatches := counts.shares[name]; !dispatches {
			continue
		}
		if p.counts[service] {
			coalesced++
		}
		p.counts[service] = true
		p.wakeUp()
	}
	return coalesced
}

// drop forgets a service that has gone.
func (s *softState) drop(service string) {
	delete(s.weights, service)
	delete(s.counts, service)
}

// restart accepts weights of any term: those that come may have a lower one.
func (s *softState) restart() {
	for _, w := range s.weights {
		w.Term, w.Version = 0, 0
	}
}

// enter queues all weights for a load balancer that has joined.
func (s *softState) enter(p *peer) {
	for name := range s.weights {
		p.weights[name] = 0
		p.queue = append(p.queue, name)
	}
}

// next returns the peer's next update, weights first; nil: none waits.
func (s *softState) next(p *peer) *frame {
	for len(p.queue) > 0 {
		name := p.queue[0]
		p.queue = p.queue[1:]
		known, waits := p.weights[name]
		if w := s.weights[name]; waits && w != nil { // else the service has gone meanwhile
			delete(p.weights, name)
			return w.since(known)
		}
	}
	p.queue = nil
	for service := range p.counts {
		delete(p.counts, service)
		if c := s.counts[service]; c != nil {
			return c.frame(service, p.identity.Name)
		}
	}
	return nil
}

// openCounts are the newest counts of a service, and the part of its connections that each load balancer dispatches.
type openCounts struct {
	*follow.Counts
	shares map[string]float64
}

// leastShare is that of a load balancer which dispatches nothing of late: a share of 0 would say that it is not known.
const leastShare = 1e-6

func (c *openCounts) frame(service, lb string) *frame {
	share := max(c.shares[lb], leastShare)
	return messageFrame(&ballastv1.ToNode{Message: &ballastv1.ToNode_Open{Open: api.CountsToProto(service, c.Counts, share)}})
}
