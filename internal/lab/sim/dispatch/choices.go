package dispatch

import (
	"maps"
	"slices"

	"github.com/ballast-lb/ballast/internal/algo/choice"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Rounds returns what p2c and least choose from: turns by weight, and everybody once. The id of server s is s+1.
func Rounds(shares []model.Share) (round, everybody []choice.Turn) {
	prices, turns := choice.Prices(shares), map[uint16]choice.Turn{}
	for i, id := range rounds.Equal(shares) {
		turns[id] = choice.Turn{Server: uint32(id) - 1, Price: prices[id], Group: uint8(i % choice.Groups)}
		everybody = append(everybody, turns[id])
	}
	for _, id := range rounds.Weighted(shares) {
		round = append(round, turns[id])
	}
	return round, everybody
}

// TwoChoices is p2c. Round must neither be empty nor longer than choice.MaxRound.
type TwoChoices struct {
	Round   []choice.Turn
	Numbers random.Key // a flow's number draws the two
}

// Choose implements flows.Chooser.
func (t *TwoChoices) Choose(flow uint64, loads []int32) uint32 {
	return choice.TwoChoices(t.Round, uint32(t.Numbers.At(flow)>>32), loads)
}

// Least is least as the data plane has it, of one CPU or more that see the same. Make one by NewLeast.
type Least struct {
	Step        int32 // what a connection adds to a load; 0: 1
	round       []choice.Turn
	next        int
	of          map[uint32]choice.Turn // servers that may be chosen
	leastLoaded *choice.LeastLoaded    // nil: nobody has asked since the servers were others
}

// NewLeast returns the policy for servers of the weights: server s has the id s+1. Somebody's weight must be above 0.
func NewLeast(shares []model.Share) *Least {
	l := &Least{}
	l.Weigh(shares)
	return l
}

// Weigh implements Policy.
func (l *Least) Weigh(shares []model.Share) {
	round, everybody := Rounds(shares)
	*l = Least{Step: l.Step, round: round, next: l.next, of: map[uint32]choice.Turn{}}
	for _, turn := range everybody {
		l.of[turn.Server] = turn
	}
}

// Choose implements flows.Chooser.
func (l *Least) Choose(_ uint64, loads []int32) uint32 {
	if l.leastLoaded == nil {
		l.leastLoaded = choice.NewLeastLoaded(slices.Collect(maps.Values(l.of)), loads)
	}
	server := l.leastLoaded.Least(l.round[l.next%len(l.round)], loads)
	l.next++
	l.tell(server, loads[server]+max(l.Step, 1))
	return server
}

// Ended implements flows.Follower.
func (l *Least) Ended(server uint32, load int32) { l.tell(server, load-max(l.Step, 1)) }

func (l *Least) tell(server uint32, load int32) {
	if turn, may := l.of[server]; may && l.leastLoaded != nil {
		l.leastLoaded.Report(turn, int64(load)*int64(turn.Price))
	}
}

// Fewest takes a server with the fewest connections of all of them: what least approaches, and what papers mean by it. It has to be told of
// every connection that ends, at once, which no data plane is. A connection costs O(1). Make one by NewFewest.
type Fewest struct {
	order []uint32 // servers, rising by load
	place []uint32 // of every server in order
	upTo  []uint32 // by load: servers that have no more
}

// NewFewest returns the policy for servers without connections.
func NewFewest(servers int) *Fewest {
	f := &Fewest{order: make([]uint32, servers), place: make([]uint32, servers), upTo: []uint32{uint32(servers)}}
	for server := range f.order {
		f.order[server], f.place[server] = uint32(server), uint32(server)
	}
	return f
}

// Choose implements flows.Chooser.
func (f *Fewest) Choose(_ uint64, loads []int32) uint32 {
	server := f.order[0]
	load := loads[server]
	if int(load)+1 == len(f.upTo) {
		f.upTo = append(f.upTo, f.upTo[load])
	}
	f.upTo[load]--
	f.move(server, f.upTo[load])
	return server
}

// Ended implements flows.Follower.
func (f *Fewest) Ended(server uint32, load int32) {
	f.move(server, f.upTo[load-1])
	f.upTo[load-1]++
}

// move has a server change places with the one at a place.
func (f *Fewest) move(server, to uint32) {
	other, from := f.order[to], f.place[server]
	f.order[from], f.order[to] = other, server
	f.place[other], f.place[server] = from, to
}
