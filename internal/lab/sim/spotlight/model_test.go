package spotlight

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

func TestATraceIsAsTableIISaysIt(t *testing.T) {
	const seed = 11
	world := newTrace(seed, paper.traffic)
	chains, sum, logs := [maxServices + 1]float64{}, 0.0, 0.0
	for _, f := range world.made {
		services := 0
		for s := range maxServices {
			if f.asks(s) {
				services++
			}
		}
		chains[services]++
		sum += float64(f.rate)
		logs += math.Log(float64(f.rate) / (meanRate / 2))
	}
	n := float64(paper.flows)
	for services, have := range chains {
		if want := n / maxServices; services > 0 && math.Abs(have-want) > 5*math.Sqrt(want) || services == 0 && have != 0 {
			t.Errorf("%g chains of %d services", have, services)
		}
	}
	if mean := sum / n; math.Abs(mean-meanRate) > 0.06*meanRate {
		t.Errorf("mean rate %g", mean)
	}
	if inverse := logs / n; math.Abs(inverse-1.0/rateShape) > 5*inverse/math.Sqrt(n) { // the estimator of maximum likelihood
		t.Errorf("alpha %g", 1/inverse)
	}
	if end := float64(world.changes[len(world.changes)-1].atNS); math.Abs(end-n*paper.gapNS) > 5*math.Sqrt(n)*paper.gapNS {
		t.Errorf("the last flow arrives after %g s", end/1e9)
	}
}

func TestATraceIsInOrderAndFlowsEndOnceAfterTheyBegin(t *testing.T) {
	world := newTrace(3, small.traffic)
	begun, last, alive, sum := map[uint32]int64{}, int64(0), 0, 0.0
	for _, c := range world.changes {
		if c.atNS < last {
			t.Fatal("time goes back")
		}
		sum += float64(alive) * float64(c.atNS-last)
		last = c.atNS
		began, there := begun[c.flow]
		switch {
		case c.ends != there || c.ends && began < 0:
			t.Fatalf("flow %d at %d: ends %v, began at %d", c.flow, c.atNS, c.ends, began)
		case c.ends:
			begun[c.flow] = -1
			alive--
		default:
			begun[c.flow] = c.atNS
			alive++
		}
	}
	filling := 1 - meanDurationNS/float64(last) // Little's law, less what the beginning lacks
	if mean, want := sum/float64(last), filling*meanDurationNS/small.gapNS; math.Abs(mean-want) > 0.05*want {
		t.Errorf("%g flows live on average, want %g", mean, want)
	}
}

// The dumb pool looks at all instances at every change.
func TestAPoolCarriesWhatADumbOneDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 5).Draw(t, "instances")
		p, load := newPool(n, 1000*float64(n)), make([]int64, n)
		now, carried, total := int64(0), 0.0, 0.0
		for _, capacity := range p.capacity {
			total += float64(capacity)
		}
		for range rapid.IntRange(1, 30).Draw(t, "changes") {
			gap := rapid.Int64Range(0, 1e9).Draw(t, "gap")
			for i := range load {
				carried += min(float64(load[i]), float64(p.capacity[i])) * float64(gap)
			}
			now += gap
			i := rapid.IntRange(0, n-1).Draw(t, "instance")
			rate := rapid.Int64Range(-load[i], 2000).Draw(t, "rate")
			load[i] += rate
			p.add(now, i, rate)
			if left := p.left()[i].Capacity; left != float64(max(p.capacity[i]-load[i], 0)) {
				t.Fatalf("instance %d has %g left", i, left)
			}
		}
		if now == 0 {
			return
		}
		if have, want := p.utilization(now, now), carried/total/float64(now); math.Abs(have-want) > 1e-9 {
			t.Errorf("utilisation %g, want %g", have, want)
		}
	})
}

// The dumb host takes from every request what it got, at every event.
func TestAHostEndsRequestsWhenADumbOneDoes(t *testing.T) {
	type work struct {
		left    float64
		startNS int64
	}
	rapid.Check(t, func(t *rapid.T) {
		overhead := rapid.SampledFrom([]float64{0, 0.01, 1}).Draw(t, "overhead")
		h := newHost(0.5, overhead)
		var dumb []work
		var ends []float64
		now, served := 0.0, 0.0
		advance := func(to float64) {
			for len(dumb) > 0 {
				speed := 0.5 / (1 + overhead*float64(len(dumb))) / float64(len(dumb))
				first := 0
				for i := range dumb {
					if dumb[i].left < dumb[first].left {
						first = i
					}
				}
				until := min(to, now+dumb[first].left/speed)
				for i := range dumb {
					dumb[i].left -= (until - now) * speed
					served += (until - now) * speed
				}
				if now = until; now == to {
					break
				}
				ends = append(ends, now-float64(dumb[first].startNS))
				dumb = append(dumb[:first:first], dumb[first+1:]...)
			}
			now = to
		}
		var took []int64
		at := int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "requests") {
			at += rapid.Int64Range(0, 1e5).Draw(t, "gap")
			bytes := rapid.Float64Range(1000, 1e5).Draw(t, "bytes")
			for h.dueNS <= at {
				took = append(took, h.end())
			}
			h.begin(at, bytes)
			advance(float64(at))
			dumb = append(dumb, work{bytes, at})
		}
		for h.dueNS != never {
			took = append(took, h.end())
		}
		advance(math.Inf(1))
		if len(took) != len(ends) || math.Abs(h.served-served) > 1e-6*served+100 {
			t.Fatalf("%d requests ended and %g bytes were served, want %d and %g", len(took), h.served, len(ends), served)
		}
		sum, want := 0.0, 0.0
		for i := range took {
			sum, want = sum+float64(took[i]), want+ends[i]
		}
		if off := float64(100 * len(took) * len(took)); math.Abs(sum-want) > off {
			t.Errorf("they took %g ns together, want %g", sum, want)
		}
	})
}

// M/G/1 with processor sharing: the mean time is that of the work alone by 1 - load, whatever the distribution of the work.
func TestAHostIsAProcessorSharingQueue(t *testing.T) {
	const seed, load, mean, requests = 7, 0.6, 1000.0, 60_000
	gaps, works := random.New(seed, "gaps"), random.New(seed, "works")
	h, at, took := newHost(1, 0), int64(0), 0.0
	for range requests {
		at += int64(gaps.Exp(1e6 * mean / load))
		for h.dueNS <= at {
			took += float64(h.end())
		}
		h.begin(at, 1e6*works.Pareto(3, mean*2/3))
	}
	queue := h.tell(at, at)
	for h.dueNS != never {
		took += float64(h.end())
	}
	want := 1e6 * mean / (1 - load)
	if have := took / requests; math.Abs(have-want) > 0.05*want {
		t.Errorf("a request takes %g ns, want %g", have, want)
	}
	if want := load / (1 - load); math.Abs(queue-want) > 0.05*want { // Little's law
		t.Errorf("%g requests on average, want %g", queue, want)
	}
}

func TestHalfTheRateAtAHundredRequests(t *testing.T) {
	h := newHost(fastRate, fittedOverhead)
	for range 100 {
		h.begin(0, 1)
	}
	if have := h.speed(); have != fastRate/2 {
		t.Errorf("%g of %g", have, fastRate)
	}
}

func TestLognormalRatesHaveTheirMeanAndSpread(t *testing.T) {
	const seed, mean, sigma, n = 3, 50_700.0, 1.0, 200_000
	rates, draw := random.New(seed, "rates"), lognormal(mean, sigma)
	sum, logs, squares := 0.0, 0.0, 0.0
	for range n {
		rate := draw(&rates)
		sum, logs, squares = sum+rate, logs+math.Log(rate), squares+math.Log(rate)*math.Log(rate)
	}
	if have := sum / n; math.Abs(have-mean) > 0.02*mean {
		t.Errorf("seed %d: mean %g, want %g", seed, have, mean)
	}
	if have := math.Sqrt(squares/n - logs/n*logs/n); math.Abs(have-sigma) > 0.01 {
		t.Errorf("seed %d: the logarithms have a standard deviation of %g, want %g", seed, have, sigma)
	}
}
