// Package speed has worlds to measure the simulator by. The clock is with who measures.
package speed

import (
	"github.com/ballast-lb/ballast/internal/data"
	"github.com/ballast-lb/ballast/internal/sim/dispatch"
	"github.com/ballast-lb/ballast/internal/sim/flows"
	"github.com/ballast-lb/ballast/internal/sim/random"
)

// Implementation constants.
const (
	connectionsPerServer = 1000
	mostServers          = 100_000
	bucketsPerServer     = 100
	updatesPerSecond     = 80.0 / 60 // the most of figure 2a of Cheetah
	seed                 = 1
)

// World is a kind of world.
type World struct {
	Name string
	make func(servers int) (flows.Config, bool)
}

// Worlds returns what is measured.
func Worlds() []World {
	table := func(depth int) func(int) (flows.Config, bool) {
		return func(servers int) (flows.Config, bool) {
			return flows.Config{Table: &flows.Table{Owners: buckets(servers), Depth: depth}}, true
		}
	}
	turns := func(imbalance bool) func(int) (flows.Config, bool) {
		return func(servers int) (flows.Config, bool) {
			return flows.Config{Chooser: &dispatch.Turns{Round: round(servers)}, Imbalance: imbalance}, false
		}
	}
	return []World{{"hash", table(1)}, {"beamer", table(2)}, {"cookie-rr", turns(false)}, {"cookie-rr-imbalance", turns(true)}}
}

func buckets(servers int) []uint32 {
	owners := make([]uint32, servers*bucketsPerServer)
	for i := range owners {
		owners[i] = uint32(i % servers)
	}
	return owners
}

func round(servers int) []uint32 {
	round := make([]uint32, servers)
	for i := range round {
		round[i] = uint32(i)
	}
	return round
}

// Run is a world that goes on.
type Run struct {
	world   *flows.World
	servers int
	table   bool
	updates random.Stream
	gapNS   int64 // between updates
}

// Make fills a world with about as many connections.
func (k World) Make(connections int64) *Run {
	r := &Run{updates: random.New(seed, "updates"), servers: int(min(max(connections/connectionsPerServer, 10), mostServers))}
	r.gapNS = int64(1e9 / updatesPerSecond)
	config, table := k.make(r.servers)
	r.table = table
	config.Seed, config.Servers, config.Durations = seed, r.servers, data.WebDurations().Scaled(1e-6)
	config.Rate = float64(connections) / config.Durations.Mean()
	r.world = flows.New(config)
	r.world.Fill()
	r.world.Reset()
	return r
}

// Continue goes on for about as many events.
func (r *Run) Continue(events int64) {
	until := r.Events() + events
	for r.Events() < until {
		if r.table {
			r.update()
		}
		left := float64(until-r.Events()) / 2 / r.world.Rate()
		r.world.RunUntil(r.world.Now() + min(r.gapNS, int64(left*1e9)+1))
	}
}

// update moves the buckets of a server that leaves to others.
func (r *Run) update() {
	for range bucketsPerServer {
		r.world.Place(r.updates.Intn(r.servers*bucketsPerServer), uint32(r.updates.Intn(r.servers)))
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
