package controller

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/daemon/periodic"
	"github.com/ballast-lb/ballast/internal/fleettest"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/nodeclient"
	"github.com/ballast-lb/ballast/internal/pki"
)

// fleetNode is a load balancer or an agent, as far as controllers see it.
type fleetNode struct {
	joined *nodeclient.Streams
	stop   func()

	mutex    sync.Mutex
	follower follow.Follower
	states   map[string]*ballastv1.ServiceState
	nodes    *ballastv1.Nodes
	weights  map[string]*follow.Weights
	from     map[string]uint64 // service -> term of its last weights
	checks   map[string][]string
	sources  map[string]*ballastv1.TunnelSources
	ring     *ballastv1.ReplicaView // the newest
	synced   []uint32               // syncs that it was to lead
}

// joinAll keeps streams to controllers until the test ends.
func joinAll(t testing.TB, credentials *pki.Credentials, controllers ...*running) *fleetNode {
	var addresses []string
	for _, c := range controllers {
		addresses = append(addresses, c.address)
	}
	return joinAt(t, credentials, nil, addresses...)
}

func joinAt(t testing.TB, credentials *pki.Credentials, dial func(context.Context, string, string) (net.Conn, error), addresses ...string) *fleetNode {
	n := &fleetNode{states: map[string]*ballastv1.ServiceState{}, weights: map[string]*follow.Weights{}, from: map[string]uint64{}, checks: map[string][]string{}, sources: map[string]*ballastv1.TunnelSources{}}
	ctx, cancel := context.WithCancel(context.Background())
	n.joined = nodeclient.New(nodeclient.Options{
		Controllers: addresses, Credentials: credentials, Dial: dial, Log: fleettest.Log(t).With("node", credentials.Identity().Name),
		Hello: func() *ballastv1.Hello {
			hello := fleettest.Hello(credentials)
			hello.Addresses = []string{"203.0.113.1"}
			n.locked(func() bool { hello.Revision = n.follower.Revision; return true })
			return hello
		},
		OnState: n.onState, OnWeights: n.onWeights,
		OnChecks: func(controller string, services []string) {
			n.mutex.Lock()
			defer n.mutex.Unlock()
			n.checks[controller] = services
		},
		OnSources: func(controller string, list *ballastv1.TunnelSources) {
			n.mutex.Lock()
			defer n.mutex.Unlock()
			n.sources[controller] = list
		},
		OnReplicas: func(_ string, view *ballastv1.ReplicaView) {
			n.mutex.Lock()
			defer n.mutex.Unlock()
			if n.ring == nil || view.Version > n.ring.Version || view.Version == n.ring.Version && view.Revision >= n.ring.Revision {
				n.ring = view
			}
			if view.Version == n.ring.Version { // the leader alone tells of syncs
				for _, sync := range view.Starts {
					n.synced = append(n.synced, sync.Id)
				}
			}
		},
		OnLeft: func(controller string) {
			n.mutex.Lock()
			defer n.mutex.Unlock()
			n.follower.Forget(controller)
			delete(n.checks, controller)
		},
	})
	var running sync.WaitGroup
	running.Go(func() { n.joined.Run(ctx) })
	running.Go(func() { periodic.Every(ctx, 100*time.Millisecond, n.resync) })
	n.stop = func() { cancel(); running.Wait() }
	t.Cleanup(n.stop)
	return n
}

func (n *fleetNode) onState(controller string, state *ballastv1.State) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if !n.follower.Offer(controller, state.Revision, state.Complete) {
		return
	}
	n.follower.Take(state.Revision)
	if state.Complete {
		clear(n.states)
	}
	for _, s := range state.Services {
		n.states[s.Service.Name] = s
	}
	for _, name := range state.Gone {
		delete(n.states, name)
	}
	if state.Nodes != nil {
		n.nodes = state.Nodes
	}
}

func (n *fleetNode) onWeights(service string, update *follow.Update) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.weights[service] == nil {
		n.weights[service] = &follow.Weights{}
	}
	if newer, _ := n.weights[service].Merge(update); newer {
		n.from[service] = update.Term
	}
}

// resync asks for everything where changes alone do not lead to the controllers' state, as nodes do (nodeclient.Client.ResyncIfNeeded).
func (n *fleetNode) resync(now time.Time) {
	if n.locked(func() bool {
		ahead := n.follower.AheadOfAllControllers(now)
		if ahead {
			n.follower.Yield()
		}
		return ahead || n.follower.NeedsFullState(now)
	}) {
		n.joined.Rejoin()
	}
}

// has reports whether the node knows the services with that many servers each, and no other.
func (n *fleetNode) has(servers map[string]int) bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for name, count := range servers {
		if s := n.states[name]; s == nil || len(s.Service.Servers) != count {
			return false
		}
	}
	return len(n.states) == len(servers)
}

func (n *fleetNode) locked(f func() bool) bool {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return f()
}
