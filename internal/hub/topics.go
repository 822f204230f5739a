// What nodes are sent, by topic.
package hub

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/ballast-lb/ballast/internal/api"
	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/engine"
	"github.com/ballast-lb/ballast/internal/machine/follow"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/pki"
)

// topic is a value that nodes are sent, with the nodes that have not been sent the newest. Topics.mutex guards each.
type topic interface {
	join(s *subscriber)        // it has to be sent all of the value
	leave(s *subscriber)       // it is sent nothing any more
	next(s *subscriber) *frame // the next message to it; nil: none waits
}

// Topics are what nodes are sent: first all of each topic, and then what changes. All methods are safe for concurrent use and return at
// once, whatever nodes do.
type Topics struct {
	setting sync.Mutex // held while a view is encoded; comes before mutex

	mutex       sync.Mutex // guards all topics, in the order in which they are sent
	revocations revocations
	judging     judging
	sources     tunnelSources
	state       desiredState
	ring        ring
	checks      checks
	questions   questions
	soft        softState

	order []topic // all of them; does not change
}

func newTopics(controller string, credentials *pki.Credentials, log *slog.Logger, m *metrics) *Topics {
	t := &Topics{
		revocations: revocations{due: map[*subscriber][]*ballastv1.Revocation{}},
		judging:     judging{subscribers: subscribers{}, able: true},
		sources:     newTunnelSources(controller, log),
		state:       newDesiredState(m),
		ring:        ring{subscribers: subscribers{}, credentials: credentials, log: log},
		checks:      checks{subscribers: subscribers{}},
		questions:   newQuestions(),
		soft:        newSoftState(m),
	}
	t.order = []topic{&t.revocations, &t.judging, &t.sources, &t.state, &t.ring, &t.checks, &t.questions, &t.soft}
	return t
}

// join subscribes a node, whose tunnels come from the addresses if it is a load balancer.
func (t *Topics) join(s *subscriber, addresses []string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, topic := range t.order {
		topic.join(s)
	}
	t.sources.take(s, addresses, nil)
}

// leave ends a node's subscription and returns which revision it had applied.
func (t *Topics) leave(s *subscriber) (applied uint64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	progress := t.state.progress(s)
	for _, topic := range t.order {
		topic.leave(s)
	}
	return progress.applied()
}

// next returns the next message to a node; nil: none waits. Whom it must not believe, where tunnels come from and state come before
// everything else, weights last.
func (t *Topics) next(s *subscriber) *frame {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, topic := range t.order {
		if f := topic.next(s); f != nil {
			return f
		}
		if topic == &t.state && !t.state.known {
			return nil
		}
	}
	return nil
}

// SetState takes the desired state as it is now. Nodes are sent what has changed since what they were sent last.
func (t *Topics) SetState(view *engine.View) {
	t.setting.Lock()
	defer t.setting.Unlock()
	change := t.state.compare(view) // nodes are served meanwhile
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if change.complete {
		t.soft.restart()
	}
	for name, service := range change.services {
		if service.after == nil {
			t.soft.drop(name)
		}
	}
	t.state.set(view, change)
}

// SetWeights takes an update of a service's weights for all load balancers. Those of a service that is not known are dropped: it has gone,
// or comes with the next view.
func (t *Topics) SetWeights(service string, update *follow.Update) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.state.services[service] != nil {
		t.soft.setWeights(service, update)
	}
}

// SetCounts takes what agents have counted of a service's open connections, for the load balancers that dispatch some of them.
func (t *Topics) SetCounts(service string, counts *follow.Counts, shares map[string]float64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.state.services[service] != nil {
		t.soft.setShared(service, sharedCounts(service, counts, shares))
	}
}

// SetLoads takes the loads of a service's servers, for the load balancers that dispatch some of its connections.
func (t *Topics) SetLoads(service string, loads *follow.Loads, shares map[string]float64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.state.services[service] != nil {
		t.soft.setShared(service, sharedLoads(service, loads, shares))
	}
}

// SetChecks takes, by load balancer, the services whose servers it has to check.
func (t *Topics) SetChecks(services map[string][]string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.checks.set(services)
}

// SetJudging takes whether this controller can judge servers; else load balancers that hear no other do it.
func (t *Topics) SetJudging(able bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.judging.set(able)
}

// SetControllers takes the names of the controllers that live, this one included. None: it does not know.
func (t *Topics) SetControllers(names []string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.sources.setControllers(names)
}

// SetRevoked takes the whole list of revoked certificates. Nodes that are connected are sent what is news of it.
func (t *Topics) SetRevoked(all, news []pki.Revocation) {
	list, added := api.RevocationsToProto(all), api.RevocationsToProto(news)
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.revocations.set(list, added)
}

// SetReplicas takes who keeps the replicated table, and which syncs each load balancer has to lead.
func (t *Topics) SetReplicas(view *ballastv1.ReplicaView, starts map[string][]*ballastv1.ReplicaSync) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.ring.set(view, starts)
}

// revision returns that of the desired state; known: there is one.
func (t *Topics) revision() (revision uint64, known bool) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return t.state.revision, t.state.known
}

// applied takes the revision that a node reports to have applied.
func (t *Topics) applied(s *subscriber, revision uint64) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.state.applied(s, revision)
}

// setAddresses takes what a node reports of its addresses, if its certificate is a load balancer's and it has not left.
func (t *Topics) setAddresses(s *subscriber, addresses, own []string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.state.of[s] != nil {
		t.sources.take(s, addresses, own)
	}
}

// addOwners adds the load balancers' own addresses.
func (t *Topics) addOwners(owners map[netip.Addr]string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.sources.addOwners(owners)
}

// forget drops the addresses of a load balancer that has left.
func (t *Topics) forget(lb string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.sources.forget(lb)
}

// standing is how far a node is with what it was sent.
type standing struct {
	applied  uint64 // revision of the desired state
	lag      time.Duration
	hasKeys  bool // it works with the keys as they are now
	problems []string
}

// standings returns those of all nodes, and the keys, of one moment.
func (t *Topics) standings(now time.Time) (keys model.Keys, of map[*subscriber]standing) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	of = make(map[*subscriber]standing, len(t.state.of))
	for s, subscription := range t.state.of {
		p := &subscription.progress
		node := standing{applied: p.applied(), lag: p.lag(now), hasKeys: t.state.known && p.applied() >= t.state.keysRevision}
		for _, problem := range []string{p.behindProblem(now), t.sources.problem(s), p.aheadProblem(now, t.state.revision), t.revocations.problem(s)} {
			if problem != "" {
				node.problems = append(node.problems, problem)
			}
		}
		of[s] = node
	}
	return t.state.keys, of
}
