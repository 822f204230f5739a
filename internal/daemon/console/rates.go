package console

import (
	"maps"
	"time"
)

// ratesOver is how many looks rates are over: what load balancers report comes unevenly.
const ratesOver = 4

// rates makes rates of counters.
type rates[K comparable] struct{ past []counted[K] }

type counted[K comparable] struct {
	at     time.Time
	counts map[K]uint64
}

// add returns how much each counter grew by in a second. One that is new or has fallen has no rate yet.
func (r *rates[K]) add(at time.Time, counts map[K]uint64) map[K]float64 {
	grown := make(map[K]float64, len(counts))
	if len(r.past) > 0 {
		oldest := r.past[0]
		seconds := at.Sub(oldest.at).Seconds()
		for key, now := range counts {
			if before, known := oldest.counts[key]; known && now >= before && seconds > 0 {
				grown[key] = float64(now-before) / seconds
			}
		}
	}
	r.past = append(r.past, counted[K]{at, maps.Clone(counts)})
	r.past = r.past[max(0, len(r.past)-ratesOver):]
	return grown
}
