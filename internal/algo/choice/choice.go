// Package choice takes the less loaded of a few servers: dispatch p2c and least. It is what bpf/lb/dispatch/two_choices.h and least.h compute, as
// pure functions: the reference of the data path, and what the simulator runs.
package choice

import "math"

// Groups is LOAD_GROUPS of bpf/lb/state/least_loaded.h: among so many servers least is exact.
const Groups = 16

// MaxRound is the longest round that TwoChoices draws from: it has 16 random bits for each draw.
const MaxRound = 1 << 16

// Turn is a place in a round.
type Turn struct {
	Server uint32 // place of its load
	Price  uint16 // of one connection to it: the lower, the larger its weight
	Group  uint8  // least: below Groups
}

// Cost is what the policies keep low: a server's open connections for its weight.
func (t Turn) Cost(loads []int32) int64 { return int64(loads[t.Server]) * int64(t.Price) }

// TwoChoices returns the one with the lower cost of two servers that are drawn from a round by 16 random bits each; of equals the first
// (Mitzenmacher 1996, Cheetah II). The round must not be empty, nor longer than MaxRound. In it servers have turns by their weights
// (internal/algo/rounds): drawn alike, the heaviest of many could never get more than 2/n (Wieder 2007).
func TwoChoices(round []Turn, random uint32, loads []int32) (server uint32) {
	count := uint32(len(round))
	a, b := round[(random&0xffff)*count>>16], round[(random>>16)*count>>16]
	server = a.Server
	if b.Cost(loads) < a.Cost(loads) {
		server = b.Server
	}
	return server
}

// LeastLoaded are what least remembers: of each group of servers the one with the lowest cost known. It stays until another of its group
// tells less, at the end of a connection or when its turn comes: of a group of one the cost is exact. Among more servers that is load balancing
// with memory (Mitzenmacher, Prabhakar, Shah, FOCS 2002).
type LeastLoaded [Groups]Known

// Known is a server and its cost. Server 0 and MaxCost: there is none.
type Known struct {
	Cost   int64
	Server uint32
}

// MaxCost is above the cost of any server.
const MaxCost = math.MaxInt64 >> 17

// NewLeastLoaded returns those of all servers. everybody has each of them once.
func NewLeastLoaded(everybody []Turn, loads []int32) *LeastLoaded {
	var least LeastLoaded
	for i := range least {
		least[i].Cost = MaxCost
	}
	for _, turn := range everybody {
		least.Report(turn, turn.Cost(loads))
	}
	return &least
}

// Tell is to be called when the cost of a server has changed.
func (l *LeastLoaded) Report(turn Turn, cost int64) {
	reported, known := Known{cost, turn.Server}, &l[turn.Group]
	if reported.below(*known) || known.Server == turn.Server {
		*known = reported
	}
}

func (l Known) below(o Known) bool {
	return l.Cost < o.Cost || l.Cost == o.Cost && l.Server < o.Server
}

// Least returns the server of the lowest cost that is known; of equals the one whose turn it is, then the first. Its load is not counted yet.
func (l *LeastLoaded) Least(turn Turn, loads []int32) (server uint32) {
	cost := turn.Cost(loads)
	l.Report(turn, cost)
	best := l[0]
	for _, known := range l[1:] {
		if known.below(best) {
			best = known
		}
	}
	if best.Cost < cost {
		return best.Server
	}
	return turn.Server
}
