// The topic of what nodes measure and controllers compute of services: weights, counts and loads. It is soft: the next update replaces it.
package hub

import (
	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/follow"
)

// softState is the topic of the newest weights, counts and loads of services. It keeps names of what waits for a load balancer, not messages, so
// newer updates replace older ones.
type softState struct {
	metrics *metrics

	weights map[string]*softWeights
	shared  map[string]*shared
	of      map[*subscriber]*softSubscription // load balancers
}

// softSubscription is what waits for a load balancer.
type softSubscription struct {
	weights map[string]uint64 // services whose weights have changed -> number of the last update that it knows
	queue   []string          // the same services in the order in which they changed
	shared  map[string]bool   // services of which there is something newer in shared
}

func newSoftState(m *metrics) softState {
	return softState{metrics: m, weights: map[string]*softWeights{}, shared: map[string]*shared{}, of: map[*subscriber]*softSubscription{}}
}

// setWeights merges an update of a service's weights and queues it for load balancers.
func (t *softState) setWeights(service string, update *follow.Update) {
	w := t.weights[service]
	if w == nil {
		w = newSoftWeights(service)
		t.weights[service] = w
	}
	if !w.take(update) {
		return
	}
	coalesced := 0
	for s, waiting := range t.of {
		if _, waits := waiting.weights[service]; waits {
			coalesced++
			continue
		}
		waiting.addWeights(service, w.count-1)
		s.wakeUp()
	}
	t.metrics.coalesce("weights", coalesced)
}

func (w *softSubscription) addWeights(service string, known uint64) {
	w.weights[service] = known
	w.queue = append(w.queue, service)
}

// setShared takes a service's counts or loads and queues them for the load balancers with a share.
func (t *softState) setShared(service string, now *shared) {
	t.shared[service] = now
	coalesced := 0
	for s, waiting := range t.of {
		if _, dispatches := now.shares[s.identity.Name]; !dispatches {
			continue
		}
		if waiting.shared[service] {
			coalesced++
		}
		waiting.shared[service] = true
		s.wakeUp()
	}
	t.metrics.coalesce(now.kind, coalesced)
}

// drop forgets a service that has gone.
func (t *softState) drop(service string) {
	delete(t.weights, service)
	delete(t.shared, service)
	for _, waiting := range t.of {
		delete(waiting.weights, service)
	}
}

// restart accepts weights of any term: those that come may have a lower one.
func (t *softState) restart() {
	for _, w := range t.weights {
		w.Term, w.Version = 0, 0
	}
}

func (t *softState) join(s *subscriber) {
	if !s.isLB() {
		return
	}
	waiting := &softSubscription{weights: map[string]uint64{}, shared: map[string]bool{}}
	for service := range t.weights {
		waiting.addWeights(service, 0)
	}
	t.of[s] = waiting
}

func (t *softState) leave(s *subscriber) { delete(t.of, s) }

// next returns a node's next update, weights first; nil: none waits.
func (t *softState) next(s *subscriber) *frame {
	waiting := t.of[s]
	if waiting == nil {
		return nil
	}
	for len(waiting.queue) > 0 {
		service := waiting.queue[0]
		waiting.queue = waiting.queue[1:]
		known, waits := waiting.weights[service]
		if w := t.weights[service]; waits && w != nil { // else the service has gone meanwhile
			delete(waiting.weights, service)
			return w.since(known)
		}
	}
	waiting.queue = nil
	for service := range waiting.shared {
		delete(waiting.shared, service)
		if now := t.shared[service]; now != nil {
			return messageFrame(now.message(max(now.shares[s.identity.Name], leastShare)))
		}
	}
	return nil
}

// shared is the newest message about a service whose load balancers compare loads: each is told its part of the connections.
type shared struct {
	kind    string
	message func(share float64) *ballastv1.ToNode
	shares  map[string]float64
}

// leastShare is that of a load balancer which dispatches nothing of late: a share of 0 would say that it is not known.
const leastShare = 1e-6

func sharedCounts(service string, counts *follow.Counts, shares map[string]float64) *shared {
	return &shared{"open", func(share float64) *ballastv1.ToNode {
		return &ballastv1.ToNode{Message: &ballastv1.ToNode_Open{Open: api.CountsToProto(service, counts, share)}}
	}, shares}
}

func sharedLoads(service string, loads *follow.Loads, shares map[string]float64) *shared {
	return &shared{"loads", func(share float64) *ballastv1.ToNode {
		return &ballastv1.ToNode{Message: &ballastv1.ToNode_Loads{Loads: api.LoadsToProto(service, loads, share)}}
	}, shares}
}
