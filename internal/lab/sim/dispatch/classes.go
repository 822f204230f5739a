package dispatch

import (
	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// Classes is awfd, from weights that whoever follows the load sets: server s has the id s+1.
type Classes struct {
	Classes awfd.Classes
	Numbers random.Key // a flow's number chooses for it
}

// Choose implements flows.Chooser. Some server must be in the classes.
func (c *Classes) Choose(flow uint64, _ []int32) uint32 {
	return uint32(c.Classes.Choose(uint32(c.Numbers.At(flow)>>32))) - 1
}

// ChooseAll implements flows.Oblivious.
func (c *Classes) ChooseAll(first uint64, servers []uint32) {
	for i := range servers {
		servers[i] = c.Choose(first+uint64(i), nil)
	}
}
