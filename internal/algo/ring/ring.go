// Package ring places the keys of connections on chains of nodes: Anolis ("Anolis: A Scalable, Fault-Tolerant Load Balancer for
// Stateful Network Functions", section 4.2). Nodes have ids on a circle; the tail of a key's chain is the node that its hash leads to,
// the head the (L-1)-th node before the tail.
//
// Departs from Anolis, where the tail is the next node after the key or the paper does not say: here it is the last node at or before
// it. The nodes of a chain are then always in the order of their distance from the key, whoever comes or goes; with the next node
// after the key they change their order as soon as the chain reaches around the circle.
package ring

import (
	"math"
	"slices"
)

// circle is the number of positions.
const circle = 1 << 32

// Key is the hash of a connection, 64 bits that look random. The upper half is its position.
type Key uint64

// Position is a place on the circle.
type Position uint32

// Position returns where a key is.
func (k Key) Position() Position { return Position(k >> 32) }

// Member is a node on the circle. A node that has lost what it knew comes back with another life: for all that matters here it is
// another node.
type Member struct {
	Node uint16 // 0: none
	Life uint32
	At   Position // id of the node in the words of the paper
}

// Same reports whether two members are the same node in the same life, wherever they stand.
func (m Member) Same(other Member) bool { return m.Node == other.Node && m.Life == other.Life }

// List is a peer list: members by rising position, no position and no node twice.
type List []Member

// Even returns the nodes at equal distances.
func Even(nodes []uint16, life uint32) List {
	list := make(List, len(nodes))
	for i, node := range nodes {
		list[i] = Member{Node: node, Life: life, At: Position(uint64(i) * circle / uint64(len(nodes)))}
	}
	return list
}

// Add returns the list with one more node, in the middle of the longest arc (the first of them).
func (l List) Add(node uint16, life uint32) List {
	at, longest := Position(0), uint64(0)
	for arc := range l {
		if length := l.arcLength(arc); length > longest {
			longest, at = length, l[arc].At+Position(length/2)
		}
	}
	return l.AddAt(Member{Node: node, Life: life, At: at})
}

// AddAt returns the list with one more member. It panics when the position or the node is taken.
func (l List) AddAt(member Member) List {
	for _, other := range l {
		if other.At == member.At || other.Node == member.Node {
			panic("ring.AddAt: taken")
		}
	}
	after, _ := slices.BinarySearchFunc(l, member.At, byPosition)
	return slices.Insert(slices.Clone(l), after, member)
}

// Remove returns the list without a node.
func (l List) Remove(node uint16) List {
	return slices.DeleteFunc(slices.Clone(l), func(m Member) bool { return m.Node == node })
}

// Find returns the member that a node is.
func (l List) Find(node uint16) (Member, bool) {
	for _, member := range l {
		if member.Node == node {
			return member, true
		}
	}
	return Member{}, false
}

// Arc returns the index of the last member at or before a position: that of the arc from it to the next member. The list must not be
// empty.
func (l List) Arc(at Position) int {
	i, exact := slices.BinarySearchFunc(l, at, byPosition)
	if exact {
		return i
	}
	return (i + len(l) - 1) % len(l)
}

func byPosition(m Member, at Position) int {
	switch {
	case m.At < at:
		return -1
	case m.At > at:
		return 1
	}
	return 0
}

// Share returns the share of the circle whose keys have a node as their tail, 0..1.
func (l List) Share(node uint16) float64 {
	for arc, member := range l {
		if member.Node == node {
			return float64(l.arcLength(arc)) / circle
		}
	}
	return 0
}

// Imbalance returns the largest share over the mean: 1 is even. NaN for an empty list.
func (l List) Imbalance() float64 {
	if len(l) == 0 {
		return math.NaN()
	}
	var longest uint64
	for arc := range l {
		longest = max(longest, l.arcLength(arc))
	}
	return float64(longest) * float64(len(l)) / circle
}

// arcLength is the number of positions from a member to the next.
func (l List) arcLength(arc int) uint64 {
	next := l[(arc+1)%len(l)].At
	if len(l) == 1 {
		return circle
	}
	return uint64(next - l[arc].At)
}

// Level returns the list with its members moved towards equal distances, in the same order, and whether anything moved. No member moves
// to or past where a neighbour was, so the chain of a key shifts by one node at most: it keeps all nodes but one, in their order, as long as
// there are more nodes than a chain has. Repeated, it ends with even shares; one step is enough after one node was added to an even list, or removed.
//
// Beyond Anolis, whose node ids never change: if they stay, a list that has grown from N to 2N-1 nodes has shares of almost twice the mean.
func (l List) Level() (List, bool) {
	n := len(l)
	if n < 2 {
		return l, false
	}
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i, member := range l {
		ahead := int64(member.At) - evenly(i, n)
		least, most = min(least, ahead), max(most, ahead)
	}
	if most-least <= 1 { // apart by rounding only
		return l, false
	}
	base := least + (most-least)/2
	moved := slices.Clone(l)
	for i := range moved {
		before, after := int64(l[(i+n-1)%n].At), int64(l[(i+1)%n].At)
		if i == 0 {
			before -= circle
		}
		if i == n-1 {
			after += circle
		}
		moved[i].At = Position(min(max(base+evenly(i, n), before+1), after-1))
	}
	slices.SortFunc(moved, func(a, b Member) int { return byPosition(a, b.At) })
	return moved, true
}

func evenly(i, n int) int64 { return int64(i) * circle / int64(n) }
