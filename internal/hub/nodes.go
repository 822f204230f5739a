// Who is connected, who was, and what nodes report of themselves.
package hub

import (
	"crypto/x509"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/machine/health"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Nodes are those that are connected, with what they report, and those that were. All methods are safe for concurrent use.
type Nodes struct {
	topics *Topics

	mutex    sync.Mutex // guards what follows, and what peers report; comes before Topics.mutex
	peers    map[peerKey]*peer
	lbs      map[string]*peer // those of peers that are load balancers
	lost     *lostNodes       // that were among peers
	replicas replicaReports
}

func newNodes(topics *Topics) *Nodes {
	return &Nodes{topics: topics, peers: map[peerKey]*peer{}, lbs: map[string]*peer{}, lost: newLostNodes(), replicas: replicaReports{}}
}

// enter makes p the one stream of its node, subscribes it, and returns the stream that it replaces; nil: none.
func (n *Nodes) enter(p *peer) (before *peer) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if before = n.peers[p.key()]; before != nil {
		p.displace(before)
		n.topics.leave(&before.subscriber)
	}
	n.peers[p.key()] = p
	if p.isLB() {
		n.lbs[p.identity.Name] = p
	}
	n.lost.remove(p.key(), false)
	n.topics.join(&p.subscriber, p.addresses)
	return before
}

// leave keeps p as lost, unless a newer stream has replaced it.
func (n *Nodes) leave(p *peer) (replaced bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.peers[p.key()] != p {
		return true
	}
	delete(n.peers, p.key())
	if p.isLB() {
		delete(n.lbs, p.identity.Name)
	}
	n.lost.add(p.key(), p.lost(n.topics.leave(&p.subscriber)))
	return false
}

// List returns the load balancers and agents that are connected, by role and name.
func (n *Nodes) List() (nodes []*ballastv1.NodeStatus) {
	now := time.Now()
	n.mutex.Lock()
	defer n.mutex.Unlock()
	keys, standings := n.topics.standings(now)
	for _, p := range n.peers {
		standing := standings[&p.subscriber]
		node := p.status(now, standing.applied)
		if why := p.contested(); why != "" {
			node.Problems = append(node.Problems, why)
		}
		node.Problems = append(node.Problems, standing.problems...)
		switch { // agents report their keys, load balancers have those of the state that they have applied
		case p.keys != nil:
			node.Epochs, node.Epoch = p.keys.Epochs, p.keys.Current
		case p.isLB() && standing.hasKeys:
			node.Epochs, node.Epoch = keys.Epochs(), keys.Current
		}
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, byRoleAndName)
	return nodes
}

// Lost returns those that are not connected, but were within a day.
func (n *Nodes) Lost() (nodes []*ballastv1.NodeStatus) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.lost.list()
}

// LoadBalancers returns the names of those that are connected, ascending.
func (n *Nodes) LoadBalancers() (names []string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Sorted(maps.Keys(n.lbs))
}

// Agents returns the identities of those that are connected.
func (n *Nodes) Agents() (agents []pki.Identity) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, p := range n.peers {
		if p.isAgent() {
			agents = append(agents, p.identity)
		}
	}
	return agents
}

// Certificates returns those of the nodes that are connected.
func (n *Nodes) Certificates() (list []*x509.Certificate) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	for _, p := range n.peers {
		if state := p.call.request.TLS; state != nil {
			list = append(list, state.PeerCertificates[0])
		}
	}
	return list
}

// Forget takes nodes of a name off those that are lost: of one role or, if that is empty, of both. A dry run only tells.
func (n *Nodes) Forget(dryRun bool, name string, only pki.Role) (forgotten []string, err error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	var connected *peer
	for _, role := range []pki.Role{pki.LB, pki.Agent} {
		key := peerKey{role, name}
		if only != "" && role != only {
			continue
		}
		if n.lost.remove(key, dryRun) {
			forgotten = append(forgotten, fmt.Sprintf("%s %s: forgotten", role, name))
		} else if p := n.peers[key]; p != nil {
			connected = p
		}
	}
	switch {
	case len(forgotten) > 0:
		if n.lbs[name] == nil && !dryRun && only != pki.Agent {
			n.topics.forget(name)
			delete(n.replicas, name)
		}
		return forgotten, nil
	case connected != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s %s is connected from %s: stop it first or, if nobody knows it, see \"Lost key\" in docs/run/operate.md",
			connected.identity.Role, name, hostOf(connected.address)))
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no node %q is lost: see `ballast ctl node list`", name))
}

// Remember takes the names of load balancers that have joined this or another controller, now or earlier, and returns those that are to
// be remembered: with those that are connected, without those that were forgotten or are lost for too long. Who is new on the list and
// not connected is lost.
func (n *Nodes) Remember(names []string) []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.lost.remember(names, n.lbs)
}

// Announced counts, by VIP, the connected load balancers among names that announce it. known: each of them has reported what it announces.
func (n *Nodes) Announced(names []string) (by map[string]int, known bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	by, known = map[string]int{}, true
	for _, name := range names {
		p := n.lbs[name]
		if p == nil {
			continue
		}
		known = known && p.vips != nil
		for _, vip := range p.vips.GetVips() {
			by[vip]++
		}
	}
	return by, known
}

// OwnAddresses are those of load balancers, connected or lost within a day, that tunnels come from, and those of connected agents' certificates.
func (n *Nodes) OwnAddresses() map[netip.Addr]string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	owners := map[netip.Addr]string{}
	n.topics.addOwners(owners)
	for _, p := range n.peers {
		if p.isAgent() {
			for _, address := range p.identity.Addresses {
				owners[address] = "agent " + p.identity.Name
			}
		}
	}
	return owners
}

// longestLag is for how long the load balancer that is behind for longest has been.
func (n *Nodes) longestLag(now time.Time) (longest time.Duration) {
	_, standings := n.topics.standings(now)
	for _, s := range standings {
		longest = max(longest, s.lag)
	}
	return longest
}

// recordLoad takes which sources of load an agent has not, and reports whether its report is believed.
func (n *Nodes) recordLoad(p *peer, unavailable []string) (believed bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	p.unavailable = problemsOf(unavailable)
	return p.contested() == ""
}

// recordCondition takes a node's condition, and reports whether what it reports of losses is believed: that of agents.
func (n *Nodes) recordCondition(p *peer, c *ballastv1.Condition) (believed bool) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	p.ready, p.readyAt, p.problems = "no", time.Now(), problemsOf(c.Problems)
	if c.Ready {
		p.ready = "yes"
	}
	p.vips = c.Announcements
	p.recordMTUs(c)
	p.recordPredecessors(c)
	n.topics.setAddresses(&p.subscriber, c.Addresses, c.Own)
	return p.isAgent() && p.contested() == ""
}

// status returns what is listed of a peer, with the revision that it has applied. The caller holds Nodes.mutex.
func (p *peer) status(now time.Time, applied uint64) *ballastv1.NodeStatus {
	silence := max(now.Sub(p.since)-time.Duration(p.heard.Load()), 0)
	n := &ballastv1.NodeStatus{
		Role: string(p.identity.Role), Name: p.identity.Name, Address: p.address, Version: p.version, Since: timestamppb.New(p.since),
		Revision: applied, Ready: p.ready, LastSeen: timestamppb.New(now.Add(-silence)), Silence: durationpb.New(silence),
		Problems: slices.Concat(p.problems, p.unavailable),
	}
	switch age := now.Sub(p.readyAt); {
	case p.alive.Load() && silence >= health.Silent:
		n.Ready, n.Problems = ReadyUnknown, append([]string{"no word for " + silence.Truncate(time.Second).String()}, n.Problems...)
	case p.ready != "" && age >= readyLife:
		n.Ready = ReadyUnknown
		n.Problems = append([]string{fmt.Sprintf("has not reported for %v whether it is ready", age.Truncate(time.Second))}, n.Problems...)
	}
	return n
}

// readyLife is how long what a node has reported of its readiness counts, which it repeats every 5 s.
const readyLife = 15 * time.Second

// ReadyUnknown is NodeStatus.Ready of nodes that are connected and silent.
const ReadyUnknown = "unknown"

// lost returns what is kept of a peer whose stream has ended. The caller holds Nodes.mutex.
func (p *peer) lost(applied uint64) *ballastv1.NodeStatus {
	now := time.Now()
	n := p.status(now, applied)
	n.Ready, n.Problems = ReadyLost, []string{FellSilent}
	if !p.alive.Load() || n.Silence.AsDuration() < health.Silent {
		n.LastSeen, n.Problems = timestamppb.New(now), []string{NotConnected} // it was heard until now
	}
	n.Silence = nil
	if p.revoked {
		n.Problems = []string{"its certificate is revoked"}
	}
	return n
}
