// Package awfd is adaptive weighted flow dispatching (Aghdai et al., "Spotlight: Scalable Transport Layer Load Balancing for Data
// Center Networks", section IV-B): servers get new connections in proportion to their available capacity, in a few classes.
package awfd

import (
	"math"

	"github.com/ballast-lb/ballast/internal/model"
)

// Available is what a server could still take, in any unit that is the same for all servers of the service.
type Available struct {
	ID       uint16
	Capacity float64
}

// Weights returns floor(m * A / max A) for every server, in the order of available: its priority class, 0 for those with little or
// nothing left. All weights are 1 where m is 0 (ECMP) or nobody has any capacity. m = 1 is least congested first.
//
// A capacity below 0 or that is not a number counts as none; beside an infinite one all finite ones are none.
func Weights(available []Available, m uint8) []model.Share {
	largest := 0.0
	for _, a := range available {
		largest = max(largest, clean(a.Capacity))
	}
	weights := make([]model.Share, len(available))
	for i, a := range available {
		weights[i] = model.Share{ID: a.ID, Weight: 1}
		if m > 0 && largest > 0 {
			weights[i].Weight = class(clean(a.Capacity), largest, float64(m))
		}
	}
	return weights
}

func clean(capacity float64) float64 {
	if math.IsNaN(capacity) {
		return 0
	}
	return max(capacity, 0)
}

func class(capacity, largest, m float64) uint16 {
	if capacity == largest { // also where both are infinite
		return uint16(m)
	}
	exact := m * capacity / largest
	if math.IsInf(m*capacity, 1) {
		exact = m * (capacity / largest)
	}
	return uint16(min(exact, m)) // what is in no way above 0 is cut off: floor
}
