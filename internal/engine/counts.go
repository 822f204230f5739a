// When load balancers are sent what agents have counted.
package engine

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/ballast-lb/ballast/internal/machine/follow"
)

// Implementation constants.
const (
	countPeriod = 2 * time.Second  // as agents report that nobody asks for more
	idlePeriod  = 10 * time.Second // of counts that have not changed
	// idleAfter is how many times unchanged counts are published in a row before that: estimates follow them step by step.
	idleAfter    = 16
	shareChanges = 0.01
)

// countUpdates is what was published last of a service. serviceState.mutex guards it.
type countUpdates struct {
	at      time.Time
	version uint64
	same    int // times in a row
	counts  map[uint16]uint32
	shares  map[string]float64
}

// next returns what is to be published now, nil: nothing.
func (c *countUpdates) next(now time.Time, term uint64, counts map[uint16]uint32, shares map[string]float64) (*follow.Counts, map[string]float64) {
	since := now.Sub(c.at)
	if since < countPeriod || len(counts) == 0 || len(shares) == 0 {
		return nil, nil
	}
	same := maps.Equal(counts, c.counts) && maps.EqualFunc(shares, c.shares, func(a, b float64) bool { return math.Abs(a-b) < shareChanges })
	if same && c.same >= idleAfter && since < idlePeriod {
		return nil, nil
	}
	if !same {
		c.counts, c.shares, c.same = counts, shares, 0
	}
	c.same++
	c.at = now
	c.version++
	update := &follow.Counts{Term: term, Version: c.version}
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		update.Servers = append(update.Servers, follow.Count{ID: id, Open: counts[id]})
	}
	return update, shares
}
