package scenario

import (
	"slices"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// pool knows which servers there are. Their numbers are those of the world.
type pool struct {
	weights []uint16 // by server
	groups  []int    // by server: number of the group
	active  []bool   // by server: gets new connections
	away    []uint32 // in the order in which they went
	slowed  []uint32
	draws   random.Stream
}

func newPool(s *Scenario, seed uint64) *pool {
	p := &pool{draws: random.New(seed, "events")}
	for i, group := range s.Servers {
		for range group.Count {
			p.append(i, group)
		}
	}
	return p
}

func (p *pool) append(number int, group Group) {
	p.weights = append(p.weights, uint16(group.Weight))
	p.groups = append(p.groups, number)
	p.active = append(p.active, true)
}

// member reports whether a server is of a group; -1 is all of them.
func (p *pool) member(server uint32, group int) bool { return group < 0 || p.groups[server] == group }

// take lets some servers of a group go, drawn at random, and returns them. One stays, whatever is asked for.
func (p *pool) take(count, group int) (gone []uint32) {
	var candidates []uint32
	all := 0
	for server, active := range p.active {
		if !active {
			continue
		}
		all++
		if p.member(uint32(server), group) {
			candidates = append(candidates, uint32(server))
		}
	}
	count = min(count, len(candidates), all-1)
	for range count {
		i := p.draws.Intn(len(candidates))
		server := candidates[i]
		candidates[i] = candidates[len(candidates)-1]
		candidates = candidates[:len(candidates)-1]
		p.active[server] = false
		gone = append(gone, server)
	}
	p.away = append(p.away, gone...)
	return gone
}

// slow draws active servers of a group that are slowed down now, and tells which were before.
func (p *pool) slow(count, group int) (slowed, before []uint32) {
	var candidates []uint32
	for server, active := range p.active {
		if active && p.member(uint32(server), group) {
			candidates = append(candidates, uint32(server))
		}
	}
	before = p.slowed
	p.slowed = nil
	for range min(count, len(candidates)) {
		i := p.draws.Intn(len(candidates))
		p.slowed = append(p.slowed, candidates[i])
		candidates = slices.Delete(candidates, i, i+1)
	}
	return p.slowed, before
}

// put brings servers of a group: those that are away first, then fresh ones of the group (of the first, if it is -1).
func (p *pool) put(s *Scenario, count, group int) (back []uint32, fresh int) {
	for count > 0 {
		i := slices.IndexFunc(p.away, func(server uint32) bool { return p.member(server, group) })
		if i < 0 {
			break
		}
		server := p.away[i]
		p.away = slices.Delete(p.away, i, i+1)
		p.active[server] = true
		back = append(back, server)
		count--
	}
	for range count {
		p.append(max(group, 0), s.Servers[max(group, 0)])
	}
	return back, count
}

// shares are the active servers with their weights. A share's id is the server's number and one: 0 means none there.
func (p *pool) shares() (shares []model.Share) {
	for server, active := range p.active {
		if active {
			shares = append(shares, model.Share{ID: uint16(server + 1), Weight: p.weights[server]})
		}
	}
	return shares
}

// imbalance returns how far the load of the most loaded active server is above its fair part, for its weight; 0.1 is a tenth.
func (p *pool) imbalance(loads []int32) float64 {
	most, sum, weights := 0.0, 0.0, 0.0
	for server, active := range p.active {
		if active {
			weight := float64(p.weights[server])
			most = max(most, float64(loads[server])/weight)
			sum += float64(loads[server])
			weights += weight
		}
	}
	if sum == 0 {
		return 0
	}
	return most*weights/sum - 1
}
