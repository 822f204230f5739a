package awfd

import (
	"cmp"
	"slices"

	"github.com/ballast-lb/ballast/internal/model"
)

// Classes choose servers in two stages, as the data path does (bpf/lb/dispatch/classes.h). The zero value chooses nobody.
type Classes struct {
	everybody []uint16
	ranges    []classRange // of the classes that have members, the heaviest first
}

// classRange is a class and the last of the 2^32 numbers that lead to it: Spotlight IV-B, algorithm 1.
type classRange struct {
	last    uint32
	members []uint16
}

// NewClasses sorts the servers into classes of equal weight. Where every weight is 0, all are alike.
func NewClasses(shares []model.Share) Classes {
	c := Classes{}
	sorted := slices.SortedFunc(slices.Values(shares), func(a, b model.Share) int {
		return cmp.Or(-cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.ID, b.ID))
	})
	sum, weight := uint64(0), uint16(0)
	for _, share := range sorted {
		c.everybody = append(c.everybody, share.ID)
		if share.Weight == 0 {
			continue
		}
		if len(c.ranges) == 0 || share.Weight != weight {
			c.ranges, weight = append(c.ranges, classRange{}), share.Weight
		}
		last := &c.ranges[len(c.ranges)-1]
		last.members = append(last.members, share.ID)
		sum += uint64(share.Weight)
	}
	part := uint64(0)
	for i := range c.ranges {
		members := c.ranges[i].members
		part += uint64(len(members)) * uint64(weightOf(shares, members[0]))
		c.ranges[i].last = uint32((part<<32+sum-1)/sum - 1)
	}
	return c
}

func weightOf(shares []model.Share, id uint16) uint16 {
	return shares[slices.IndexFunc(shares, func(s model.Share) bool { return s.ID == id })].Weight
}

// Choose returns the server that a uniformly distributed number leads to; 0: there is none. One number serves both stages.
func (c *Classes) Choose(random uint32) uint16 {
	members := c.everybody
	for _, class := range c.ranges {
		if members = class.members; random <= class.last {
			break
		}
	}
	if len(members) == 0 {
		return 0
	}
	const golden = 0x9e3779b1 // numbers that lie together lead everywhere
	return members[uint64(random*golden)*uint64(len(members))>>32]
}
