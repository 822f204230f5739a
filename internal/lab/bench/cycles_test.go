package bench

import "testing"

func TestCyclesComeAtTheRateOfAProcessor(t *testing.T) {
	if rate := Cycles(); rate.Of != "" && (rate.PerNS < 0.02 || rate.PerNS > 10) {
		t.Errorf("%.2f cycles of the %s in a ns", rate.PerNS, rate.Of)
	}
}
