package compare

import (
	"testing"
	"time"
)

func TestVarianceIsBetweenServersInEachWindow(t *testing.T) {
	counts := newWindows(2*evenWindow + evenWindow/2) // what is left of a window does not count
	for at, servers := range map[time.Duration][]string{
		-time.Millisecond:       {"s1"}, // during the warm-up
		0:                       {"s1", "s1", "s1"},
		evenWindow - 1:          {"s2"}, // 3 and 1 of two servers: 1
		evenWindow:              {"s1", "s2"},
		2*evenWindow - 1:        {"s1", "s2"}, // 2 and 2: 0
		2 * evenWindow:          {"s1"},
		time.Hour + time.Second: {"s1"},
	} {
		for _, server := range servers {
			counts.add(at, server)
		}
	}
	if got := counts.variance(2); got != 0.5 {
		t.Errorf("variance %v, want 0.5", got)
	}
	idle := newWindows(evenWindow)
	idle.add(0, "s1")
	idle.add(0, "s1")
	if got := idle.variance(2); got != 1 {
		t.Errorf("variance %v with a server that had no request, want 1", got)
	}
}

func TestPoliciesAreComparedRunByRun(t *testing.T) {
	above := []evenCell{{p99MS: 10, variance: 8}, {p99MS: 90, variance: 6}, {p99MS: 40, variance: 2}}
	below := []evenCell{{p99MS: 5, variance: 2}, {p99MS: 30, variance: 2}, {p99MS: 10, variance: 2}}
	if got := ratios(above, below, p99s); got != 3 {
		t.Errorf("p99s differ by a factor of %v, want 3", got)
	}
	if got := ratios(above, below, variances); got != 3 {
		t.Errorf("variances differ by a factor of %v, want 3", got)
	}
	if above[0].p99MS != 10 {
		t.Errorf("the measurements were changed: %v", above)
	}
}

func TestTheSimulatorPlaysTheMeasurement(t *testing.T) {
	const load, warmup = 0.6, 2 * time.Second
	for seed := range uint64(5) {
		hash := simulateEven("hash", seed, load, evenShort, warmup)
		rr := simulateEven("rr", seed, load, evenShort, warmup)
		if again := simulateEven("rr", seed, load, evenShort, warmup); again != rr {
			t.Errorf("seed %d: %v, and again %v", seed, rr, again)
		}
		if rr.p99MS < milliseconds(evenWork) || hash.p99MS < evenTimes*rr.p99MS {
			t.Errorf("seed %d: p99 of rr %.0f ms, of hash %.0f ms", seed, rr.p99MS, hash.p99MS)
		}
		// Requests a second of a server by hash are Poisson.
		if perServer := load / evenWork.Seconds(); hash.variance < perServer/2 || hash.variance > 2*perServer || rr.variance > hash.variance/2 {
			t.Errorf("seed %d: variance of rr %.3g, of hash %.3g, of Poisson arrivals %.3g", seed, rr.variance, hash.variance, perServer)
		}
	}
}
