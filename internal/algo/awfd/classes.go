package awfd

import (
	"cmp"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// Classes choose servers in two stages, as the data path does (bpf/dispatch/classes.h). The zero value chooses nobody.
type Classes struct {
	everybody []uint16
	ranges    []classRange // of the classes that have members, the heaviest first
}

// classRange is a class and the end of its range of (0, sum of weights): Spotlight IV-B, algorithm 1.
type classRange struct {
	bound   uint32
	members []uint16
}

// NewClasses sorts the servers into classes of equal weight. Where every weight is 0, all are alike.
func NewClasses(shares []model.Share) Classes {
	c := Classes{}
	sorted := slices.SortedFunc(slices.Values(shares), func(a, b model.Share) int {
		return cmp.Or(-cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.ID, b.ID))
	})
	bound, weight := uint32(0), uint16(0)
	for _, share := range sorted {
		c.everybody = append(c.everybody, share.ID)
		if share.Weight == 0 {
			continue
		}
		if len(c.ranges) == 0 || share.Weight != weight {
			c.ranges, weight = append(c.ranges, classRange{}), share.Weight
		}
		bound += uint32(share.Weight)
		last := &c.ranges[len(c.ranges)-1]
		last.bound, last.members = bound, append(last.members, share.ID)
	}
	return c
}

// Choose returns the server that a uniformly distributed number leads to; 0: there is none. One number serves both stages: the
// first takes its high bits, the second what they leave, so that a member's chance is off by at most sum of weights * members /
// 2^32 of itself.
func (c *Classes) Choose(random uint32) uint16 {
	members, rest := c.everybody, random
	if len(c.ranges) > 0 {
		product := uint64(random) * uint64(c.ranges[len(c.ranges)-1].bound)
		rest = uint32(product)
		i := 0
		for uint32(product>>32) >= c.ranges[i].bound {
			i++
		}
		members = c.ranges[i].members
	}
	if len(members) == 0 {
		return 0
	}
	return members[uint64(rest)*uint64(len(members))>>32]
}
