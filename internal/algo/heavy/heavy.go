// Package heavy finds what is most frequent in a stream with bounded memory (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements
// in Data Streams, ICDT 2005: Space-Saving).
package heavy

import (
	"cmp"
	"slices"
)

// Counts counts at most so many keys. The zero value is not usable: call New.
type Counts struct {
	most   int
	counts map[string]*Count
	total  uint64
}

// A Count says that there was between Weight - Over and Weight of a key.
type Count struct {
	Key    string
	Weight uint64
	Over   uint64 // may be of keys that were counted in its place before
}

// AtLeast is what there was of the key for certain.
func (c Count) AtLeast() uint64 { return c.Weight - c.Over }

// New counts at most so many keys.
func New(most int) *Counts {
	return &Counts{most: max(most, 1), counts: map[string]*Count{}}
}

// Add counts a key. Who weighs more than 1/most of all is never forgotten.
func (c *Counts) Add(key string, weight uint64) {
	c.total += weight
	count := c.counts[key]
	if count == nil {
		count = &Count{Key: key}
		if len(c.counts) >= c.most {
			least := c.least()
			delete(c.counts, least.Key)
			count.Weight, count.Over = least.Weight, least.Weight
		}
		c.counts[key] = count
	}
	count.Weight += weight
}

func (c *Counts) least() (least *Count) {
	for _, count := range c.counts {
		if least == nil || count.Weight < least.Weight {
			least = count
		}
	}
	return least
}

// Full reports whether there may have been more keys than are counted.
func (c *Counts) Full() bool { return len(c.counts) == c.most }

// Total is the weight of all.
func (c *Counts) Total() uint64 { return c.total }

// Top are the n that there was most of for certain, the heaviest first.
func (c *Counts) Top(n int) []Count {
	all := make([]Count, 0, len(c.counts))
	for _, count := range c.counts {
		all = append(all, *count)
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Or(cmp.Compare(b.AtLeast(), a.AtLeast()), cmp.Compare(a.Key, b.Key)) })
	return all[:min(n, len(all))]
}
