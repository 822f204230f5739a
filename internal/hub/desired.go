// The topic of the desired state: services, nodes, keys and keys of session tickets.
package hub

import (
	"bytes"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// manyChanges are not searched for each node to find its priority.
const manyChanges = 16

// desiredState is the topic of the desired state. It keeps names of what waits for a node, so newer values take the place of older ones. All
// but tickets and subscriptions changes under Topics.setting as well.
type desiredState struct {
	metrics *metrics

	known        bool // there has been a view
	revision     uint64
	keys         model.Keys
	keysRevision uint64 // in which keys became what they are
	nodes        *ballastv1.Nodes
	services     map[string]*service

	tickets serviceTickets
	of      map[*subscriber]*stateSubscription
}

// stateSubscription is what waits for a node, and how far it is.
type stateSubscription struct {
	progress progress
	complete bool // it has to be sent everything
	keys     bool
	tickets  bool            // agents
	draining bool            // agents
	nodes    bool            // load balancers
	services map[string]bool // that it has to be sent
}

// stateChange is what a new view changes.
type stateChange struct {
	complete bool // nodes are sent everything
	keys     bool
	nodes    *ballastv1.Nodes // the new ones
	newNodes bool
	encoded  map[string]*service // all of the view
	services map[string]serviceChange
}

// serviceChange is what a service was and is; nil: it is not there.
type serviceChange struct {
	before, after *service
	skipped       bool // it was something else in between
}

func newDesiredState(m *metrics) desiredState {
	return desiredState{metrics: m, services: map[string]*service{}, of: map[*subscriber]*stateSubscription{}}
}

// compare returns what a view changes. The caller holds Topics.setting.
func (d *desiredState) compare(view *engine.View) *stateChange {
	change := &stateChange{nodes: nodesOf(view), encoded: make(map[string]*service, len(view.Services)), services: map[string]serviceChange{}}
	change.complete = view.Whole || view.Revision < d.revision // the store was restored from a copy
	change.keys = !d.known || !proto.Equal(api.KeysToProto(&view.Keys), api.KeysToProto(&d.keys))
	change.newNodes = !proto.Equal(change.nodes, d.nodes)
	for i := range view.Services {
		v := &view.Services[i]
		before := d.services[v.Service.Name]
		after := before
		if before == nil || v.Revision == 0 || before.revision != v.Revision {
			after = encodeService(v)
		}
		change.encoded[v.Service.Name] = after
		if before == nil || !bytes.Equal(before.lbs, after.lbs) || !bytes.Equal(before.agents, after.agents) {
			change.services[v.Service.Name] = serviceChange{before: before, after: after}
		}
	}
	for name, before := range d.services {
		if change.encoded[name] == nil {
			change.services[name] = serviceChange{before: before}
		}
	}
	for _, name := range view.Skipped {
		if name == model.SecondTierName {
			change.newNodes = true
			continue
		}
		change.services[name] = serviceChange{d.services[name], change.encoded[name], true}
	}
	return change
}

// set takes a view and publishes what it changes.
func (d *desiredState) set(view *engine.View, change *stateChange) {
	if change.keys || change.complete {
		d.keysRevision = view.Revision
	}
	d.known, d.revision, d.keys, d.nodes, d.services = true, view.Revision, view.Keys, change.nodes, change.encoded
	newTickets := d.tickets.set(view.Tickets)
	for _, s := range d.byPriority(change.services) {
		waiting := d.of[s]
		waiting.complete = waiting.complete || change.complete
		waiting.keys = waiting.keys || change.keys
		waiting.nodes = waiting.nodes || change.newNodes && s.isLB()
		waiting.tickets = waiting.tickets || newTickets && s.isAgent()
		d.publish(s, waiting, change.services)
	}
}

// byPriority returns the subscribers in the order in which they are sent changes: agents that a service is new to, so that they take its
// packets; load balancers, which may send some; the other agents, whose number times that of their servers is what there is most of to send.
func (d *desiredState) byPriority(changes map[string]serviceChange) []*subscriber {
	var priorities [3][]*subscriber
	for s := range d.of {
		priority := 2
		if s.isLB() {
			priority = 1
		} else if len(changes) < manyChanges {
			for _, change := range changes {
				if !change.before.concerns(&s.identity) && change.after.concerns(&s.identity) {
					priority = 0
				}
			}
		}
		priorities[priority] = append(priorities[priority], s)
	}
	return slices.Concat(priorities[:]...)
}

// publish marks which services a subscriber has to be sent.
func (d *desiredState) publish(s *subscriber, waiting *stateSubscription, changes map[string]serviceChange) {
	for name, change := range changes {
		before, after := change.before, change.after
		waiting.tickets = waiting.tickets || before.grants(&s.identity) != after.grants(&s.identity) || change.skipped && after.grants(&s.identity)
		waiting.draining = waiting.draining || s.isAgent() && (change.skipped || !slices.Equal(before.drains(&s.identity), after.drains(&s.identity)))
		same := before != nil && after != nil && bytes.Equal(before.agents, after.agents)
		if !change.skipped && (!before.concerns(&s.identity) && !after.concerns(&s.identity) || s.isAgent() && same) {
			continue
		}
		if waiting.services[name] {
			d.metrics.coalesce("state", 1)
		}
		waiting.services[name] = true
	}
	s.wakeUp()
}

func (d *desiredState) join(s *subscriber) {
	d.of[s] = &stateSubscription{complete: true, services: map[string]bool{}}
}

func (d *desiredState) leave(s *subscriber) { delete(d.of, s) }

// next returns what is new to a node in one message, with every change up to the newest revision.
func (d *desiredState) next(s *subscriber) *frame {
	waiting := d.of[s]
	if waiting == nil || !d.known || !waiting.any() {
		return nil
	}
	rest := &ballastv1.State{Revision: d.revision, Complete: waiting.complete}
	if waiting.complete || waiting.keys {
		rest.Keys = api.KeysToProto(&d.keys)
	}
	if s.isLB() && (waiting.complete || waiting.nodes) {
		rest.Nodes = d.nodes
	}
	if s.isAgent() && (waiting.complete || waiting.tickets) {
		rest.Tickets = d.tickets.of(&s.identity, d.services)
	}
	if s.isAgent() && (waiting.complete || waiting.draining || len(waiting.services) > 0) { // a service that is sent says nothing of it
		rest.Draining = drainingOf(&s.identity, d.services)
	}
	names := maps.Keys(waiting.services)
	if waiting.complete {
		names = maps.Keys(d.services)
	}
	var services [][]byte
	for _, name := range slices.Sorted(names) {
		if service := d.services[name]; service.concerns(&s.identity) {
			services = append(services, service.encoded(s.identity.Role))
		} else if !waiting.complete {
			rest.Gone = append(rest.Gone, name)
		}
	}
	waiting.sent()
	waiting.progress.send(d.revision, s.isLB())
	return stateFrame(rest, services)
}

// drainingOf are the servers of an agent's host that are given no new connections.
func drainingOf(who *pki.Identity, services map[string]*service) *ballastv1.Draining {
	list := &ballastv1.Draining{}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		for _, id := range services[name].drains(who) {
			list.Servers = append(list.Servers, &ballastv1.ServerKey{Service: name, Id: uint32(id)})
		}
	}
	return list
}

// any reports whether something waits.
func (w *stateSubscription) any() bool {
	return w.complete || w.keys || w.tickets || w.draining || w.nodes || len(w.services) > 0
}

// sent notes that nothing waits any more.
func (w *stateSubscription) sent() {
	w.complete, w.keys, w.tickets, w.draining, w.nodes = false, false, false, false, false
	clear(w.services)
}

// applied takes the revision that a node reports to have applied.
func (d *desiredState) applied(s *subscriber, revision uint64) {
	if subscription := d.of[s]; subscription != nil {
		subscription.progress.report(revision, d.revision, s.isLB())
	}
}

// progress returns that of a node; the zero value if it has left.
func (d *desiredState) progress(s *subscriber) progress {
	if subscription := d.of[s]; subscription != nil {
		return subscription.progress
	}
	return progress{}
}
