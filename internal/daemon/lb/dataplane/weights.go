// Soft weights: they change often, and in place.
package dataplane

import (
	"github.com/ballast-lb/ballast/internal/daemon/lb/desired"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
)

// weighs reports whether this node shares the service's connections out by load.
func weighs(state *desired.State, s *model.Service) bool {
	return s.Dispatch.FollowsLoad() && !state.SendsToNodes(s)
}

// Reweigh takes soft weights of one service. What it cannot write is forgotten: newer ones come soon.
func (t *Tables) Reweigh(service string, update *follow.Update) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := t.Now()
	weights := t.weights[service]
	if weights == nil {
		s := now.Running.Service(service)
		if s == nil || !weighs(now.State, s) {
			return
		}
		weights = &follow.Weights{}
		t.weights[service] = weights
	}
	if _, changed := weights.Merge(update); changed {
		t.reweigh(service)
	}
}

// reweigh writes what is known of a service's weights. Its caller holds mutex.
func (t *Tables) reweigh(service string) {
	var soft map[uint16]uint16
	if weights := t.weights[service]; weights != nil {
		soft = weights.Values
	}
	changes, err := t.tables.Reweigh(service, soft, t.starts[service].parts)
	if err == nil && len(changes) > 0 {
		err = t.write(changes, nil)
	}
	if err != nil {
		t.options.Log.Error("weights not applied, the old ones go on", "service", service, "error", err)
	}
}

// Weights are a service's soft weights that the tables should say, nil: none are known.
func (t *Tables) Weights(service string) map[uint16]uint16 {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if weights := t.weights[service]; weights != nil {
		return weights.Values
	}
	return nil
}

// ForgetTerms lets weights, counts and loads of lower terms in.
func (t *Tables) ForgetTerms() {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, weights := range t.weights {
		weights.Term, weights.Version = 0, 0
	}
	for _, counted := range t.counted {
		counted.term, counted.version = 0, 0
	}
	for _, reported := range t.reported {
		reported.term, reported.version = 0, 0
	}
}
