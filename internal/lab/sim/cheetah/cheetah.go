// Package cheetah repeats what can be simulated of Barbette et al., "Cheetah: A High-Speed Programmable Load-Balancer Framework with
// Guaranteed Per-Connection-Consistency", at the level of connections: figures 2a, 2b, 2c and 9.
package cheetah

import (
	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
)

const second = int64(1e9) // ns

// Section II of the paper, as far as its figures share it.
const (
	servers          = 468
	connections      = 70_000 // alive on average, where the paper does not vary them (figure 2c)
	bucketsPerServer = 100    // not in the paper
	longestLife      = 151 * second
)

// Experiments returns the package's experiments.
func Experiments() []sim.Experiment {
	return []sim.Experiment{brokenByUpdates(), imbalanceOfPolicies(), brokenByRebalancing(), brokenByScaling()}
}

// lives are how long connections last, in seconds.
func lives() data.Distribution { return data.WebDurations().Scaled(1e-6) }

// worldOf is the world of section II with so many connections on average.
func worldOf(seed uint64, active float64) flows.Config {
	lives := lives()
	return flows.Config{Seed: seed, Servers: servers, Durations: lives, Rate: active / lives.Mean()}
}

// place makes moves of buckets known to a world.
func place(w *flows.World, moves []buckets.Move) {
	for _, move := range moves {
		w.Place(move.Bucket, move.Owner)
	}
}

// meter tells how far a run is, over all its worlds: arrivals and ends, as many as there are on average.
type meter struct {
	run         *sim.Run
	done, total float64
}

// expect counts what will be simulated: at so many arrivals per second, for so long.
func (m *meter) expect(rate float64, ns int64) { m.total += 2 * rate * float64(ns) / float64(second) }

// runUntil lets a world go on. Long ways are gone in steps, so that the run can be cancelled.
func (m *meter) runUntil(w *flows.World, until int64) {
	const step = 10 * second
	for w.Now() < until {
		next := min(until, w.Now()+step)
		m.done += 2 * w.Rate() * float64(next-w.Now()) / float64(second)
		w.RunUntil(next)
		m.run.Progress(int64(m.done), int64(m.total))
	}
}
