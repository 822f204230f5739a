// Which part of the packets is traced.
package tracing

import (
	"math"
	"time"
)

// A sample is one of so many packets, by chance. The zero sample: all packets, until the limit of the second is reached.
type sample struct {
	oneOf uint32
	auto  bool // it is adjusted, so that about sampledRate events a second come
}

// sampleFor is the adjusted sample to begin with where so many packets came in a time.
func sampleFor(packets uint64, in time.Duration) sample {
	return sample{auto: true, oneOf: share(float64(packets) / in.Seconds())}
}

// events is how many may come in a second.
func (s sample) events() int32 {
	if s.oneOf == 0 {
		return rate
	}
	return sampledRateMost
}

// adjust takes in how many events there were in the last second, reported or not. One is no sample of others: what was rare may be many soon, so that it only
// halves what it is, and never below 1.
func (s *sample) adjust(events uint32) {
	if s.auto {
		s.oneOf = max(share(float64(events)*float64(s.oneOf)), s.oneOf/2)
	}
}

func share(packetsPerSecond float64) uint32 {
	return uint32(min(max(math.Ceil(packetsPerSecond/sampledRate), 1), math.MaxUint32))
}
