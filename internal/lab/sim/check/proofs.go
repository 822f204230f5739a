package check

import (
	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/machine/replica"
)

// Proofs returns small fleets all of whose states can be visited: together about a million.
func Proofs() []Small {
	tenth := func(n uint64) ring.Key { return ring.Key(n * (1 << 32) / 10 << 32) }
	anywhere := []uint16{0, 0}
	fails := func(node uint16) []replica.Change { return []replica.Change{{Fail: []uint16{node}}} }
	comes := func(node uint16, at ring.Key) replica.Change {
		return replica.Change{AddAt: []ring.Member{{Node: node, At: at.Position()}}}
	}
	return []Small{
		{Name: "one node keeps a key", Nodes: 3, Chain: 1, Key: tenth(4), Packets: []uint16{0, 0, 0}, Repeats: 2},
		{Name: "nothing changes", Nodes: 4, Chain: 3, Key: tenth(6), Packets: anywhere, Repeats: 1},
		{Name: "the tail fails", Nodes: 3, Chain: 2, Key: tenth(4), Packets: anywhere, Changes: fails(2)},
		{Name: "the head fails", Nodes: 3, Chain: 2, Key: tenth(4), Packets: anywhere, Changes: fails(1)},
		{Name: "the head fails after an answer", Nodes: 3, Chain: 2, Key: tenth(4), Packets: []uint16{3, 1, 3}, Changes: fails(1), Slow: true},
		{Name: "one fails after the other", Nodes: 4, Chain: 2, Key: tenth(4), Packets: []uint16{3, 4}, SameViews: true,
			Changes: append(fails(2), fails(1)...)},
		{Name: "a tail comes", Nodes: 3, Chain: 2, Key: tenth(4), Packets: anywhere, Changes: []replica.Change{comes(4, tenth(4))}},
		{Name: "a tail comes and goes", Nodes: 3, Chain: 2, Key: tenth(7), Packets: []uint16{1, 2}, SameViews: true,
			Changes: append([]replica.Change{comes(4, tenth(6))}, fails(4)...), Slow: true},
		{Name: "any node starts again", Nodes: 3, Chain: 2, Key: tenth(4), Packets: anywhere, Crashes: 1, Restarts: 1},
		{Name: "the middle of three fails", Nodes: 4, Chain: 3, Key: tenth(6), Packets: []uint16{4}, Changes: fails(2), Slow: true},
		{Name: "the head of all fails", Nodes: 3, Chain: 3, Key: tenth(4), Packets: anywhere, Changes: fails(1), Slow: true,
			Without: []string{"MoreNodesThanChain"}},
	}
}
