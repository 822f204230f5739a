// Package rotation decides when a cookie key may be used, and when an old one may be dropped, without breaking a connection; and the same of keys of session
// tickets (tickets.go).
//
// It goes by what nodes say: each step of a rotation needs all of them to have taken the one before. Departs from Cheetah, which has
// one salt for ever.
package rotation

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ballast-lb/ballast/internal/model"
)

// ReportLife is how old an agent's report may be to count; agents report several times as often.
const ReportLife = 30 * time.Second

// A Node is a load balancer or an agent that is connected, or of Nodes.Lost was.
type Node struct {
	Agent     bool
	Name      string
	Addresses []netip.Addr // of an agent's host, besides its name: which servers it speaks for
	HasKeys   bool         // it has said that it works with the keys as they are now; agents say it in their report
	Report    *Report      // of an agent; nil: there was none yet
	Contested string       // who else says that it is this node; empty: nobody does
}

// A Report is what an agent says of keys and connections.
type Report struct {
	Age         time.Duration
	Epochs      []uint32
	Current     uint32
	Connections map[uint32]uint64 // that live, by the epoch that their client has echoed last; 0: of a key that is gone
	Unavailable string            // why they could not be counted; empty: they were

	Fingerprints map[uint32][]byte // of its keys, by epoch; none of an older agent's
	Placement    []byte            // the same of its placement key

	Tickets    map[uint32][]byte // fingerprints of the keys by which its applications read session tickets, by epoch
	OwnTickets bool              // these keys are no controllers': it was given others (--ticket-key)
}

// FingerprintSize is short: it tells keys apart, and nobody finds a key by it.
const FingerprintSize = 8

// Fingerprint tells a key from others without telling the key.
func Fingerprint(key [16]byte) []byte {
	sum := sha256.Sum256(append([]byte("ballast key fingerprint\x00"), key[:]...))
	return sum[:FingerprintSize]
}

// Nodes are all that are known of.
type Nodes struct {
	// Blind says why nothing is known of other nodes; empty: the rest is.
	Blind string
	// BlindUnused is said instead of a key that is newer than the current one.
	BlindUnused string
	// Keys are those that nodes were told last.
	Keys model.Keys
	List []Node
	// Lost are those that are not connected any more. What they have pinned may go on with the keys that they had.
	Lost []Node
}

// speaksFor reports whether an agent's host is a server.
func (n *Node) speaksFor(s *model.Server) bool {
	return n.Agent && (n.Name == s.Name || slices.Contains(n.Addresses, s.Address))
}

// Compare orders load balancers before agents, and each by name.
func Compare(a, b Node) int {
	if a.Agent != b.Agent {
		if b.Agent {
			return -1
		}
		return 1
	}
	return strings.Compare(a.Name, b.Name)
}

func (n *Node) String() string {
	if n.Agent {
		return "agent " + n.Name
	}
	return "load balancer " + n.Name
}

// UseRefused says why cookies should not be written with an epoch's key yet; nil: they may.
func (n *Nodes) UseRefused(fleet *model.Fleet, epoch uint32) []string {
	if epoch == fleet.Keys.Current || n.Blind != "" {
		return nil // what a node writes by itself, others know or do not: it is told who asks
	}
	found := n.absent(fleet)
	for i := range n.List {
		node := &n.List[i]
		if node.Agent {
			if report := node.Report; report == nil {
				found = append(found, node.String()+" has not reported which keys it has")
			} else if !slices.Contains(report.Epochs, epoch) {
				found = append(found, fmt.Sprintf("%s does not have the key of epoch %d yet", node, epoch))
			}
		} else if !node.HasKeys {
			found = append(found, fmt.Sprintf("%s does not have the key of epoch %d yet", node, epoch))
		}
	}
	return found
}

// DropRefused says why an epoch's key should not be dropped yet; nil: it may.
func (n *Nodes) DropRefused(fleet *model.Fleet, epoch uint32) []string {
	if epoch == fleet.Keys.Current {
		return nil // it cannot be dropped at all: model.Fleet.Validate
	}
	if n.BlindUnused != "" && epoch > fleet.Keys.Current {
		return []string{n.BlindUnused}
	}
	if n.Blind != "" {
		return []string{n.Blind}
	}
	found := n.absent(fleet)
	for i := range n.List {
		node := &n.List[i]
		if !node.Agent {
			if !node.HasKeys {
				found = append(found, node.String()+" does not have the keys as they are now yet")
			}
			continue
		}
		found = append(found, node.Report.holds(node, fleet.Keys.Current, epoch)...)
	}
	return append(found, carriedUncounted(fleet, epoch)...)
}

// carriedUncounted names the services whose connections keep an epoch's key as long as they live, and nobody sees it. A newer key than the one in
// use may have been in use before: a rotation was aborted.
func carriedUncounted(fleet *model.Fleet, epoch uint32) []string {
	var names []string
	for i := range fleet.Services {
		if s := &fleet.Services[i]; s.Affinity == model.AffinityQUIC {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	what := "service %s has affinity quic"
	if len(names) > 1 {
		what = "services %s have affinity quic"
	}
	return []string{fmt.Sprintf(what+": connections that began with ids of epoch %d keep them: `ballast ctl key drop %d --force` when forwarded_by_older_key of each has stood still for as long as its connections may be silent",
		strings.Join(names, ", "), epoch, epoch)}
}

// holds says what an agent's report has against dropping an epoch's key.
func (r *Report) holds(node *Node, current, epoch uint32) []string {
	switch {
	case r == nil:
		return []string{node.String() + " has not reported its connections"}
	case r.Age > ReportLife:
		return []string{fmt.Sprintf("%s has not reported its connections for %v", node, r.Age.Round(time.Second))}
	case r.Unavailable != "":
		return []string{fmt.Sprintf("%s cannot count its connections: %s", node, r.Unavailable)}
	case r.Current != current:
		return []string{fmt.Sprintf("%s still writes cookies of epoch %d", node, r.Current)}
	case r.Connections[epoch] > 0:
		return []string{fmt.Sprintf("%s has %s epoch %d", node,
			model.Counted(r.Connections[epoch], "living connection whose client still echoes", "living connections whose clients still echo"), epoch)}
	}
	return nil
}

// absent names who would have to be heard and is not there.
func (n *Nodes) absent(fleet *model.Fleet) (found []string) {
	if !sameKeys(&n.Keys, &fleet.Keys) {
		found = append(found, "nodes have not been sent the keys as they are now yet: try again in a second")
	}
	balancers, lost := map[string]bool{}, map[string]bool{}
	for i := range n.List {
		if !n.List[i].Agent {
			balancers[n.List[i].Name] = true
		}
		if why := n.List[i].Contested; why != "" {
			found = append(found, why)
		}
	}
	for i := range n.Lost {
		node := &n.Lost[i]
		where := "or, if its host is gone, `ballast ctl node forget " + node.Name + "`"
		if !node.Agent {
			lost[node.Name] = true
			where = "or take it out of the routers and `ballast ctl node forget " + node.Name + "`"
		}
		found = append(found, fmt.Sprintf("%s is lost, and what it has pinned goes on with the keys that it had: start it again, ask another controller if it is connected to that one, %s", node, where))
	}
	for i := range fleet.Nodes {
		if node := &fleet.Nodes[i]; !balancers[node.Name] && !lost[node.Name] {
			found = append(found, fmt.Sprintf("load balancer %s is not connected", node.Name))
		}
	}
	cookies := false
	for i := range fleet.Services {
		s := &fleet.Services[i]
		if !s.Affinity.Cookies() {
			continue
		}
		cookies = true
		for j := range s.Servers {
			server := &s.Servers[j]
			if s.Return == model.ReturnThrough || server.State == model.StateOff || slices.ContainsFunc(n.List, func(n Node) bool { return n.speaksFor(server) }) {
				continue
			}
			found = append(found, fmt.Sprintf("server %s of service %s: no agent of it is connected", server.Name, s.Name))
		}
	}
	if cookies && len(balancers) == 0 {
		found = append(found, "no load balancer is connected")
	}
	return found
}

// Uncounted names the services whose connections no agent counts.
func Uncounted(fleet *model.Fleet) (names []string) {
	for i := range fleet.Services {
		if s := &fleet.Services[i]; s.Affinity.Cookies() && s.Return == model.ReturnThrough || s.Affinity == model.AffinityQUIC {
			names = append(names, s.Name)
		}
	}
	return names
}

// Connections adds up what agents have reported of an epoch.
func (n *Nodes) Connections(epoch uint32) (sum uint64) {
	for i := range n.List {
		if r := n.List[i].Report; r != nil {
			sum += r.Connections[epoch]
		}
	}
	return sum
}

// Orphans says why a fleet that has no keys should not get new ones; nil: it may. Nodes go on with those of a store that was lost.
func (n *Nodes) Orphans() []string {
	var sum uint64
	for i := range n.List {
		sum += n.List[i].Report.living()
	}
	if sum == 0 {
		return nil
	}
	return []string{carrying(sum) + " keys that the store does not have. If it was lost, apply the file with the `keys:` in a load balancer's state file (docs/run/operate.md, \"Backup and restore\")"}
}

func carrying(connections uint64) string {
	return model.Counted(connections, "living connection carries", "living connections carry")
}

// Unnamed says which agents have connections but are no server of a fleet that a lost store is given: load balancers would forget the ids of such
// servers, which had been removed before.
func (n *Nodes) Unnamed(next *model.Fleet) (found []string) {
	for i := range n.List {
		node := &n.List[i]
		named := slices.ContainsFunc(next.Services, func(s model.Service) bool {
			return slices.ContainsFunc(s.Servers, func(server model.Server) bool { return node.speaksFor(&server) })
		})
		if living := node.Report.living(); living > 0 && !named {
			found = append(found, fmt.Sprintf("%s has %s. Name it with its id as draining (`removed` in a load balancer's state file)", node,
				model.Counted(living, "living connection and is no server of this fleet: it breaks", "living connections and is no server of this fleet: they break")))
		}
	}
	return found
}

// OldestReport is the age of the oldest; ok: there is one.
func (n *Nodes) OldestReport() (age time.Duration, ok bool) {
	for i := range n.List {
		if r := n.List[i].Report; r != nil {
			age, ok = max(age, r.Age), true
		}
	}
	return age, ok
}

// Risks says why replacing keys as a whole should be refused: what use and drop would say, keys that change under their epoch, and keys of
// living connections that are not there.
func (n *Nodes) Risks(fleet *model.Fleet, next *model.Keys) (found []string) {
	now := &fleet.Keys
	found = n.strange(now, next)
	if len(now.Cookie) == 0 {
		return found
	}
	add := func(what string, why []string) {
		if len(why) > 0 {
			found = append(found, what+": "+strings.Join(why, "; "))
		}
	}
	if next.Placement != now.Placement {
		add("the placement key changes", []string{"all connections without a cookie move to other servers"})
	}
	for _, epoch := range slices.Sorted(maps.Keys(now.Cookie)) {
		key, kept := next.Cookie[epoch]
		switch {
		case !kept && epoch == now.Current:
			add(fmt.Sprintf("the key of epoch %d is removed", epoch), []string{"cookies are written with it"})
		case !kept:
			add(fmt.Sprintf("the key of epoch %d is removed", epoch), n.DropRefused(fleet, epoch))
		case key != now.Cookie[epoch]:
			add(fmt.Sprintf("the key of epoch %d becomes another one", epoch), []string{"every connection that carries its cookie breaks"})
		}
	}
	if next.Current != now.Current {
		if _, known := now.Cookie[next.Current]; !known {
			add(fmt.Sprintf("cookies are written with epoch %d", next.Current), []string{"no node has its key yet: add it first, and make it current later"})
		} else {
			add(fmt.Sprintf("cookies are written with epoch %d", next.Current), n.UseRefused(fleet, next.Current))
		}
	}
	return found
}

// strange says which keys of living connections that the store does not have are not among the next ones: those of a store that was lost,
// or that is another fleet's.
func (n *Nodes) strange(now, next *model.Keys) (found []string) {
	if sameKeys(now, next) {
		return nil
	}
	missing, others := map[uint32]uint64{}, map[uint32]uint64{}
	placement, current := "", ""
	for i := range n.List {
		node := &n.List[i]
		if node.Report.living() == 0 {
			continue
		}
		for epoch, connections := range node.Report.Connections {
			key, given := next.Cookie[epoch]
			print := node.Report.Fingerprints[epoch]
			if _, known := now.Cookie[epoch]; known || epoch == 0 || connections == 0 {
				continue // Risks tells of those that are known
			}
			if !given {
				missing[epoch] += connections
			} else if len(print) > 0 && !bytes.Equal(print, Fingerprint(key)) {
				others[epoch] += connections
			}
		}
		if print := node.Report.Placement; len(print) > 0 && !bytes.Equal(print, Fingerprint(next.Placement)) {
			placement = node.String()
		}
		if !slices.Contains(node.Report.Epochs, next.Current) {
			current = node.String()
		}
	}
	for _, epoch := range slices.Sorted(maps.Keys(missing)) {
		found = append(found, fmt.Sprintf("%s a key of epoch %d, which is not among these", carrying(missing[epoch]), epoch))
	}
	for _, epoch := range slices.Sorted(maps.Keys(others)) {
		found = append(found, fmt.Sprintf("%s another key of epoch %d than this one", carrying(others[epoch]), epoch))
	}
	if len(now.Cookie) > 0 {
		return found
	}
	if placement != "" {
		found = append(found, placement+" has another placement key: all connections without a cookie move to other servers")
	}
	if current != "" && len(missing) == 0 {
		found = append(found, fmt.Sprintf("cookies are written with epoch %d, whose key %s does not have", next.Current, current))
	}
	return found
}

// living adds up the connections of a report.
func (r *Report) living() (sum uint64) {
	if r == nil {
		return 0
	}
	for _, connections := range r.Connections {
		sum += connections
	}
	return sum
}

func sameKeys(a, b *model.Keys) bool {
	return a.Current == b.Current && a.Placement == b.Placement && maps.Equal(a.Cookie, b.Cookie)
}
