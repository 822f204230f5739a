// Package speed has worlds to measure the simulator by. The clock is with who measures.
package speed

import (
	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Implementation constants.
const (
	connectionsPerServer = 1000
	maxServers           = 100_000
	bucketsPerServer     = 100
	updatesPerServer     = 80.0 / 60 / 468 // per second: the most of figure 2a of Cheetah
	seed                 = 1
)

// World is a kind of world.
type World struct {
	Name      string
	depth     int // of the table; 0: connections carry their server
	chooser   func(servers int) flows.Chooser
	imbalance bool
}

// Worlds returns what is measured.
func Worlds() []World {
	turns := func(servers int) flows.Chooser { return &dispatch.Turns{Round: dispatch.Everybody(servers)} }
	twoChoices := func(servers int) flows.Chooser {
		round, _ := dispatch.Rounds(dispatch.Alike(dispatch.Everybody(servers)))
		return &dispatch.TwoChoices{Round: round, Numbers: random.Keyed(seed, "choices")}
	}
	return []World{
		{Name: "hash", depth: 1}, {Name: "beamer", depth: 2},
		{Name: "cookie-rr", chooser: turns}, {Name: "cookie-p2c", chooser: twoChoices}, {Name: "cookie-p2c-imbalance", chooser: twoChoices, imbalance: true},
	}
}

// Run is a world that goes on.
type Run struct {
	world   *flows.World
	servers int
	table   *buckets.Table // nil: servers do not come and go
	updates random.Stream
	gapNS   int64 // between updates
	next    int64 // when the next update is
}

// Make fills a world with about as many connections.
func (k World) Make(connections int64) *Run {
	most := int64(maxServers)
	if k.chooser != nil {
		most = model.MaxRoundServers
	}
	r := &Run{updates: random.New(seed, "updates"), servers: int(min(max(connections/connectionsPerServer, 10), most))}
	r.gapNS = int64(1e9 / updatesPerServer / float64(r.servers))
	r.next = r.gapNS
	config := flows.Config{Seed: seed, Servers: r.servers, Durations: data.WebDurations().Scaled(1e-6), Imbalance: k.imbalance}
	config.Rate = float64(connections) / config.Durations.Mean()
	if k.depth > 0 {
		r.table = buckets.New(r.servers, bucketsPerServer)
		config.Table = &flows.Table{Owners: r.table.Owners(), Depth: k.depth}
	} else {
		config.Chooser = k.chooser(r.servers)
	}
	r.world = flows.New(config)
	r.world.Fill()
	r.world.Reset()
	return r
}

// Continue goes on for about as many events.
func (r *Run) Continue(events int64) {
	for until := r.Events() + events; r.Events() < until; {
		left := float64(until-r.Events()) / 2 / r.world.Rate()
		r.world.RunUntil(min(r.next, r.world.Now()+int64(left*1e9)+1))
		if r.world.Now() >= r.next {
			r.update()
			r.next += r.gapNS
		}
	}
}

// update lets a server leave, or come back.
func (r *Run) update() {
	if r.table == nil {
		return
	}
	server := uint32(r.updates.Intn(r.servers))
	moves := r.table.Return
	if r.table.Present(server) {
		moves = r.table.Remove
	}
	for _, move := range moves(server) {
		r.world.Place(move.Bucket, move.Owner)
	}
}

// Events returns how many arrivals and ends there were since the world was filled.
func (r *Run) Events() int64 {
	stats := r.world.Stats()
	return stats.Arrived + stats.Ended
}

// Broken returns how many of the connections that ended were led to a second server.
func (r *Run) Broken() int64 { return r.world.Stats().Broken }

// Servers returns the number of servers.
func (r *Run) Servers() int { return r.servers }
