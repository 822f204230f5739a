// Nodes that were connected, and are not.
package hub

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ballast-lb/ballast/internal/api/ballastv1"
	"github.com/ballast-lb/ballast/internal/pki"
)

// Implementation constants of lost nodes.
const (
	lostMax  = 1024           // that are kept: those that were lost last
	LostLife = 24 * time.Hour // and for so long
)

// ReadyLost is NodeStatus.Ready of nodes that were lost.
const ReadyLost = "lost"

// NotConnected is the problem of a node that was lost for a reason that nobody knows.
const NotConnected = "not connected any more"

// FellSilent is that of a node whose connection ended because nothing came from it: it or its network hangs, and does not just start again.
const FellSilent = "silent, and then not connected any more"

// lostNodes are at most lostMax, none of them connected. Nodes.mutex guards them.
type lostNodes struct {
	nodes  map[peerKey]*ballastv1.NodeStatus
	listed []string // load balancers that remember was given last
}

func newLostNodes() *lostNodes { return &lostNodes{nodes: map[peerKey]*ballastv1.NodeStatus{}} }

// add adds a node that is not connected, in place of the one that was lost first if there are too many.
func (l *lostNodes) add(key peerKey, n *ballastv1.NodeStatus) {
	l.nodes[key] = n
	if len(l.nodes) > lostMax {
		oldest := key
		for key, n := range l.nodes {
			if n.LastSeen.AsTime().Before(l.nodes[oldest].LastSeen.AsTime()) {
				oldest = key
			}
		}
		delete(l.nodes, oldest)
	}
}

// remove removes a node and reports whether it was there.
func (l *lostNodes) remove(key peerKey, dryRun bool) (found bool) {
	if found = l.nodes[key] != nil; dryRun {
		return found
	}
	delete(l.nodes, key)
	return found
}

// expire removes nodes that nobody has seen for LostLife.
func (l *lostNodes) expire() {
	maps.DeleteFunc(l.nodes, func(_ peerKey, n *ballastv1.NodeStatus) bool { return time.Since(n.LastSeen.AsTime()) > LostLife })
}

// list returns the nodes by role and name.
func (l *lostNodes) list() []*ballastv1.NodeStatus {
	l.expire()
	return slices.SortedFunc(maps.Values(l.nodes), byRoleAndName)
}

// remember is Nodes.Remember.
func (l *lostNodes) remember(names []string, connected map[string]*peer) []string {
	l.expire()
	next := slices.Collect(maps.Keys(connected))
	for _, name := range names {
		key := peerKey{pki.LB, name}
		if connected[name] != nil {
			continue
		}
		if l.nodes[key] == nil && !slices.Contains(l.listed, name) {
			l.add(key, &ballastv1.NodeStatus{Role: string(pki.LB), Name: name, LastSeen: timestamppb.Now(), Ready: ReadyLost,
				Problems: []string{"not connected since this controller started: it joined earlier, or another controller"}})
		}
		if l.nodes[key] != nil {
			next = append(next, name)
		}
	}
	l.listed = slices.Clone(names)
	slices.Sort(next)
	return next
}

func byRoleAndName(a, b *ballastv1.NodeStatus) int {
	return cmp.Or(-cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name))
}
