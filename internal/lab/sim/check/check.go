// Package check looks for schedules under which the machines of package replica break what Anolis promises ("Anolis: A Scalable,
// Fault-Tolerant Load Balancer for Stateful Network Functions", section 4.4).
//
// Messages are lost, repeated and overtaken, nodes crash and come back empty, the controller starts again, nodes have different views,
// and the list changes while an earlier change is not yet synced. What must hold, as long as every chain keeps a node that was in it since
// the last sync:
//
//   - PROPERTY 1: all answers about a key are the same, as long as it gets one every keep-alive interval, and no old answer comes back;
//   - good tuples: once all is synced, the nodes of a chain say the same from the head up to some node, and the others nothing;
//   - the end: a fleet that is left alone becomes synced and quiet;
//   - answers: then every node that has had a list gets one, also a node that was taken off the list and has not learned it, as long as those
//     that it asks have the newest list and room.
//
// Assumed beyond the paper: what the controller says to a node does not outlive the node's process; a node that starts again has a new
// life in the list before it does anything; and, with expiry, messages live for less than a period, and who does not get a view within one
// is given up. The checker keeps its own account of who has crashed: the controller may not know.
//
// Two engines play the same steps. Random plays one schedule for a seed, of any size. Search visits all states of a small fleet.
// Mutants says of each rule whether they find what is missed without it, and if not, why.
package check

import (
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Setup is what a schedule is played on.
type Setup struct {
	Config    replica.Config
	Nodes     int // at the beginning: 1 to Nodes
	Keys      []ring.Key
	KeepAlive int // periods within which a connection gets an answer; 0: time stands still, and nothing expires

	// LoseCommon switches the assumption off that every chain keeps a common node.
	LoseCommon bool
}

// Kind is which promise is broken.
type Kind string

// All kinds of violation.
const (
	Affinity Kind = "another answer"
	Tuple    Kind = "no good tuple"
	Endless  Kind = "messages without end"
	Unsynced Kind = "never synced"
	Unheard  Kind = "no answer"
)

// Violation is a promise that was broken.
type Violation struct {
	Kind Kind
	Text string
}
