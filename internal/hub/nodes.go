// Who is connected, and who was.
package hub

import (
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// behindTime is what a load balancer may take for a state before it is called behind.
const behindTime = 5 * time.Second

// Announced counts, by VIP, the connected load balancers that announce it to a router. speakers is how many of them have BGP; known: each of
// those in names has said what it announces.
func (h *Hub) Announced(names []string) (by map[string]int, speakers int, known bool) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	by, known = map[string]int{}, true
	for _, name := range names {
		p := h.lbs[name]
		if p == nil {
			continue
		}
		speakers++
		known = known && p.vips != nil
		for _, vip := range p.vips.GetVips() {
			by[vip]++
		}
	}
	return by, speakers, known
}

// Nodes returns the load balancers and agents that are connected, by role and name.
func (h *Hub) Nodes() (nodes []*ballastv1.NodeStatus) {
	now := time.Now()
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, p := range h.peers {
		n := p.status(now)
		n.Epochs, n.Epoch = h.epochs(p)
		if p.identity.Role == pki.LB && h.sources.silent(p.identity.Name) {
			n.Problems = append(n.Problems, "it tells no address that its tunnels come from, so agents accept tunnels from every address: upgrade it or, if nobody knows it, see \"Lost key\" in docs/run/operate.md")
		}
		if why := h.ahead(p, now); why != "" {
			n.Problems = append(n.Problems, why)
		}
		if len(h.revoked) > 0 && !p.takesRevocations {
			n.Problems = append(n.Problems, "it accepts revoked certificates of controllers: upgrade it")
		}
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, byRoleAndName)
	return nodes
}

// epochs are those of the keys that a peer has: agents report them, load balancers have those of the state that they have applied.
// The caller holds the lock.
func (h *Hub) epochs(p *peer) (all []uint32, current uint32) {
	switch {
	case p.report != nil:
		return p.report.Epochs, p.report.Current
	case p.identity.Role == pki.LB && h.hasKeys(p):
		return h.keys.Epochs(), h.keys.Current
	}
	return nil, 0
}

// hasKeys tells whether a load balancer works with the keys as they are now. The caller holds the lock.
func (h *Hub) hasKeys(p *peer) bool { return h.known && p.applied() >= h.keyed }

// Forget takes nodes of a name off those that are lost.
func (h *Hub) Forget(name string) (forgotten []string, err error) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	var connected *peer
	for _, role := range []pki.Role{pki.LB, pki.Agent} {
		key := peerKey{role, name}
		if h.lost.remove(key) {
			forgotten = append(forgotten, fmt.Sprintf("%s %s: forgotten", role, name))
		} else if p := h.peers[key]; p != nil {
			connected = p
		}
	}
	switch {
	case len(forgotten) > 0:
		if h.peers[peerKey{pki.LB, name}] == nil {
			delete(h.sources.of, name)
			delete(h.ring.reports, name)
			h.spreadSources()
		}
		return forgotten, nil
	case connected != nil:
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s %s is connected from %s: stop it first or, if nobody knows it, see \"Lost key\" in docs/run/operate.md",
			connected.identity.Role, name, hostOf(connected.address)))
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no node %q is lost: see `ballast ctl node list`", name))
}

// Lost returns those that are not connected, but were within a day.
func (h *Hub) Lost() (nodes []*ballastv1.NodeStatus) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.lost.list()
}

// Remember takes the names of load balancers that have joined this or another controller, now or earlier, and returns those that are to
// be remembered: with those that are connected, without those that were forgotten or are lost for too long. Who is new on the list and
// not connected is lost.
func (h *Hub) Remember(names []string) []string {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return h.lost.remember(names, h.lbs)
}

// status tells of a peer. The caller holds the hub's lock.
func (p *peer) status(now time.Time) *ballastv1.NodeStatus {
	n := &ballastv1.NodeStatus{
		Role: string(p.identity.Role), Name: p.identity.Name, Address: p.address, Version: p.version, Since: timestamppb.New(p.since),
		Revision: p.applied(), Ready: p.ready, LastSeen: timestamppb.New(now), Problems: slices.Concat(p.problems, p.sources),
	}
	if why := p.contested(); why != "" {
		n.Problems = append(n.Problems, why)
	}
	if p.lag(now) > behindTime {
		n.Problems = append(n.Problems, fmt.Sprintf("its tables have revision %d, it was sent %d", p.applied(), p.told))
	}
	return n
}

// takeApplied takes which revision a node says that it has carried out. The caller holds the hub's lock.
func (h *Hub) takeApplied(p *peer, revision uint64) {
	before := p.says
	p.behind, p.says = time.Time{}, revision
	if p.applied() < p.told && p.identity.Role == pki.LB {
		p.behind = time.Now()
	}
	if revision > h.revision && before <= h.revision {
		p.ahead = time.Now()
	}
}

// applied is the revision that a node has carried out. Another controller may have sent a newer one, which is believed once it was sent from
// here, too: a node can name any number. The caller holds the hub's lock.
func (p *peer) applied() uint64 { return min(p.says, p.told) }

// ahead says that a node claims a revision that this controller does not know, empty: it does not. The caller holds the hub's lock.
func (h *Hub) ahead(p *peer, now time.Time) string {
	if p.says <= h.revision || now.Sub(p.ahead) <= behindTime {
		return ""
	}
	return fmt.Sprintf("it reports revision %d, and this controller knows none after %d: this controller does not hear the others, or somebody else has the node's certificate (\"Lost key\" in docs/run/operate.md)",
		p.says, h.revision)
}

// lag is for how long a load balancer has carried out nothing of what it was sent; 0: nothing is left. The caller holds the hub's lock.
func (p *peer) lag(now time.Time) time.Duration {
	if p.behind.IsZero() || p.applied() >= p.told {
		return 0
	}
	return now.Sub(p.behind)
}

// lose remembers a peer whose stream has ended. The caller holds the lock.
func (h *Hub) lose(p *peer) {
	n := p.status(time.Now())
	n.Ready, n.Problems = ReadyLost, []string{NotConnected}
	if p.barred {
		n.Problems = []string{"its certificate is revoked"}
	}
	h.lost.add(p.key(), n)
}

// Agents returns whom the agents that are connected are.
func (h *Hub) Agents() (agents []pki.Identity) {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	for _, p := range h.peers {
		if p.identity.Role == pki.Agent {
			agents = append(agents, p.identity)
		}
	}
	return agents
}
