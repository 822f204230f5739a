// When load balancers are told what agents have counted.
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
	// idleAfter is how many times unchanged counts are told in a row before that: estimates follow them step by step.
	idleAfter    = 16
	shareChanges = 0.01
)

// countsTold is what was told last of a service. Its fields are protected by the account's lock.
type countsTold struct {
	at      time.Time
	version uint64
	same    int // times in a row
	counts  map[uint16]uint32
	shares  map[string]float64
}

// next returns what is to be told now, nil: nothing.
func (c *countsTold) next(now time.Time, term uint64, counts map[uint16]uint32, shares map[string]float64) (*follow.Counts, map[string]float64) {
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
	told := &follow.Counts{Term: term, Version: c.version}
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		told.Servers = append(told.Servers, follow.Count{ID: id, Open: counts[id]})
	}
	return told, shares
}
