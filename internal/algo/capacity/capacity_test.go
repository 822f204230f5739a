package capacity

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestCapacityIsTheLimitOverTheMeanQueue(t *testing.T) {
	for _, c := range []struct{ q, limit, want float64 }{{4, 128, 32}, {128, 128, 1}, {256, 128, 0.5}, {0, 128, 128}, {0.3, 128, 128}, {math.NaN(), 128, 128}} {
		if have := FromQueue(c.q, c.limit); have != c.want {
			t.Errorf("queue %v of %v: have %v, want %v", c.q, c.limit, have, c.want)
		}
	}
}

func TestCapacityByCPUIsWhatIsNotInUse(t *testing.T) {
	for _, c := range []struct {
		permille uint16
		cpus     float64
		weight   uint16
		want     float64
	}{{250, 4, 1, 3}, {0, 4, 2, 8}, {1000, 64, 9, 0}, {1001, 64, 9, 0}, {500, 0.25, 1, 0.125}} {
		if have := FromCPU(c.permille, c.cpus, c.weight); have != c.want {
			t.Errorf("%d per mille of %v CPUs, weight %d: have %v, want %v", c.permille, c.cpus, c.weight, have, c.want)
		}
	}
}

func TestNothingIsLessAvailableWithALongerQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		short, long := rapid.Float64Range(0, 1e6).Draw(t, "short"), rapid.Float64Range(0, 1e6).Draw(t, "long")
		short, long = min(short, long), max(short, long)
		limit := rapid.Float64Range(1, 1e9).Draw(t, "limit")
		if FromQueue(long, limit) > FromQueue(short, limit) {
			t.Errorf("queue %v has more left than %v", long, short)
		}
	})
}

// The queue of a server that fails at once the part f of its requests is 1-f of that of its like: it must not gain by that.
func TestFailingFastNeverGains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		requests := rapid.Float64Range(1000, 1e6).Draw(t, "requests")
		failing := rapid.Float64Range(0.01, 1).Draw(t, "failing")
		queue := rapid.Float64Range(1, 1000).Draw(t, "queue")
		honest := FromQueue(queue, 128) * Penalty(requests, 0)
		hasty := FromQueue(queue*(1-failing), 128) * Penalty(requests*(1-failing), requests*failing)
		if hasty >= honest {
			t.Errorf("failing %v of %v requests: %v instead of %v", failing, requests, hasty, honest)
		}
	})
}

func TestPenaltyIsAFactor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		penalty := Penalty(rapid.Float64().Draw(t, "answered"), rapid.Float64().Draw(t, "failed"))
		if !(penalty >= 0 && penalty <= 1) {
			t.Errorf("have %v", penalty)
		}
	})
	if Penalty(0, 0) != 1 || Penalty(5, 0) != 1 {
		t.Error("a server that failed nothing is penalised")
	}
	if have := Penalty(0, 1); have != 0.25 {
		t.Errorf("the first failure costs %v", have)
	}
}
