// Package beyond has experiments that no paper has: sizes, and changes at the same time, that no test bed can be asked for.
package beyond

import (
	"math"

	"github.com/ballast-lb/ballast/internal/algo/buckets"
	"github.com/ballast-lb/ballast/internal/lab/data"
	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/flows"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

const (
	second      = int64(1e9) // ns
	millisecond = second / 1000
	source      = "beyond the papers"
)

// Experiments returns them.
func Experiments() []sim.Experiment {
	return []sim.Experiment{scaleExperiment(fullScale, candidateScale), bothExperiment(), rackExperiment(), reweighExperiment(),
		choicesExperiment(100, "30s"), choicesExperiment(1000, "12s"),
		aimExperiment(), synsExperiment(synsConnections), idleExperiment()}
}

// webDurations are how long connections last, in seconds, and the longest.
func webDurations() (lives data.Distribution, longestNS int64) {
	lives = data.WebDurations().Scaled(1e-6)
	return lives, int64(math.Ceil(lives.At(1))) * second
}

// pool is who is there, of servers or load balancers.
type pool struct {
	present []uint32
	place   []int // in present; away: not there
}

const away = -1

func newPool(n int) *pool {
	p := &pool{}
	for i := range n {
		p.present, p.place = append(p.present, uint32(i)), append(p.place, i)
	}
	return p
}

// set takes one out, or puts one in.
func (p *pool) set(who uint32, there bool) {
	if there {
		p.place[who] = len(p.present)
		p.present = append(p.present, who)
		return
	}
	last := p.present[len(p.present)-1]
	p.present[p.place[who]], p.place[last] = last, p.place[who]
	p.present, p.place[who] = p.present[:len(p.present)-1], away
}

// follow makes a world's table what stable hashing makes of it when a server leaves or comes back.
func follow(w *flows.World, table *buckets.Table, who uint32, back bool) {
	moves := table.Remove
	if back {
		moves = table.Return
	}
	for _, move := range moves(who) {
		w.Place(move.Bucket, move.Owner)
	}
}

// turnover has members of a pool leave and come back.
type turnover struct {
	pool
	back   *event.Queue // who comes back when
	leaves int64        // when the next one does
	choice *random.Stream
	gapNS  func() int64 // between two that leave
	downNS func() int64 // how long one is away
}

func newTurnover(n int, choice *random.Stream, gapNS, downNS func() int64) *turnover {
	return &turnover{pool: *newPool(n), back: event.New(second), choice: choice, gapNS: gapNS, downNS: downNS, leaves: gapNS()}
}

// next returns when who leaves, or comes back. Half of them always stay.
func (t *turnover) next() (at int64, who uint32, back bool) {
	for {
		if at, who, back = t.back.PopBefore(t.leaves); back {
			t.set(who, true)
			return at, who, true
		}
		at = t.leaves
		t.leaves += t.gapNS()
		if len(t.present) > len(t.place)/2 {
			who = t.present[t.choice.Intn(len(t.present))]
			t.set(who, false)
			t.back.Push(at+t.downNS(), who)
			return at, who, false
		}
	}
}
