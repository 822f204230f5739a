package spotlight

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim/event"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Specification constants of the synthesized trace (Spotlight VI-A, table II).
const (
	meanDurationNS = 10e9
	meanRate       = 2000 // bytes/s: table II gives "Avg. Flow Size" as a rate
	rateShape      = 2    // alpha of Pareto
)

// maxServices is how many bits a chain has.
const maxServices = 4

// traffic is how much of it there is: flows with exponential gaps and durations.
type traffic struct {
	services, flows int
	gapNS           float64                            // mean time between flows
	durationNS      float64                            // mean
	rate            float64                            // mean, bytes/s
	draw            func(rates *random.Stream) float64 // of a rate, bytes/s
}

// synthesized is traffic as in the synthesized trace.
func synthesized(services, flows int, gapNS float64) traffic {
	return traffic{services: services, flows: flows, gapNS: gapNS, durationNS: meanDurationNS, rate: meanRate, draw: func(rates *random.Stream) float64 {
		return rates.Pareto(rateShape, meanRate*(rateShape-1)/rateShape)
	}}
}

// trace is the traffic of a seed: flows that ask every service of their chain for their rate as long as they live. It is the same
// whoever dispatches them, and whatever they get.
type trace struct {
	traffic
	seed    uint64
	made    []flow
	changes []change // arrivals and ends in the order of time, up to the last arrival
}

type flow struct {
	rate  int64 // bytes/s; whole numbers add up without rounding
	chain uint8 // bit s: service s is in it
}

// change is a flow that arrives or ends.
type change struct {
	atNS int64
	flow uint32
	ends bool
}

// newTrace draws the traffic of a seed.
func newTrace(seed uint64, t traffic) *trace {
	gaps, durations := random.New(seed, "arrivals"), random.New(seed, "durations")
	rates, chains := random.New(seed, "rates"), random.New(seed, "chains")
	result := &trace{traffic: t, seed: seed, made: make([]flow, t.flows), changes: make([]change, 0, 2*t.flows)}
	ends := event.New(int64(t.gapNS))
	now := int64(0)
	for i := range result.made {
		now += int64(gaps.Exp(t.gapNS))
		for at, ended, ok := ends.PopBefore(now); ok; at, ended, ok = ends.PopBefore(now) {
			result.changes = append(result.changes, change{at, ended, true})
		}
		result.changes = append(result.changes, change{now, uint32(i), false})
		ends.Push(now+int64(durations.Exp(t.durationNS)), uint32(i))
		result.made[i] = flow{rate: int64(math.Round(t.draw(&rates))), chain: chain(&chains, t.services)}
	}
	return result
}

// chain draws how many services a flow asks, from 1 to all, and which.
func chain(stream *random.Stream, services int) (bits uint8) {
	for left := 1 + stream.Intn(services); left > 0; {
		if bit := uint8(1) << stream.Intn(services); bits&bit == 0 {
			bits, left = bits|bit, left-1
		}
	}
	return bits
}

// demand is the rate that each service is asked for in equilibrium, in bytes/s: an expected value.
func (t traffic) demand() float64 {
	part := float64(1+t.services) / 2 / float64(t.services) // of all flows
	return part * t.durationNS / t.gapNS * t.rate
}
