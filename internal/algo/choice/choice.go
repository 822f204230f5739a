// Package choice takes the less loaded of a few servers: dispatch p2c and least. It is what bpf/dispatch/two_choices.h and least.h compute, as
// pure functions: the reference of the data path, and what the simulator runs.
package choice

// looks is LEAST_LOOKS of bpf/dispatch/least.h: among so many servers least is exact.
const looks = 16

// MaxRound is the longest round that TwoChoices draws from: it has 16 random bits for each draw.
const MaxRound = 1 << 16

// Turn is a place in a round.
type Turn struct {
	Server uint32 // place of its load
	Price  uint16 // of one connection to it: the lower, the larger its weight
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

// Place is where a CPU is in the rounds of a service. The zero value is their beginning; the data path draws one at random then.
type Place struct {
	Turn uint32 // in the round
	Look uint16 // where the next look at everybody begins
	Last uint16 // of everybody, chosen the last time
}

// Least returns the server of the lowest cost; of equals whose turn it is in the round, then the one looked at first. Exact among up to 16
// servers. Of more it looks at the next 15 of a rotation, at whose turn it is and at the one chosen the last time: load balancing with memory
// (Mitzenmacher, Prabhakar, Shah, FOCS 2002). everybody has each server of the round once. Neither may be empty.
func (p *Place) Least(round, everybody []Turn, loads []int32) (server uint32) {
	members := len(everybody)
	turn := round[p.Turn%uint32(len(round))]
	p.Turn++
	at := int(p.Look)
	if at >= members {
		at = 0
	}
	best, chosen := turn.Cost(loads), -1
	consider := func(place int) {
		if cost := everybody[place].Cost(loads); cost < best {
			best, turn, chosen = cost, everybody[place], place
		}
	}
	most, step := members, 1
	if members > looks {
		most, step = looks-1, looks-1
	}
	for look := range most {
		consider((at + look) % members)
	}
	if members > looks && int(p.Last) < members {
		consider(int(p.Last))
	}
	if chosen >= 0 {
		p.Last = uint16(chosen)
	}
	p.Look = uint16((at + step) % members)
	return turn.Server
}
