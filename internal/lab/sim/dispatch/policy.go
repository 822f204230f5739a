package dispatch

import (
	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/algo/maglev"
	"github.com/ballast-lb/ballast/internal/algo/modulo"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/algo/wcmp"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Policy is the dispatch policy of a service. It chooses nobody before Weigh has been called. Not safe for concurrent use.
type Policy interface {
	// Choose returns the server of a flow: flows.Chooser. loads are what every server has open, to look at only.
	Choose(flow uint64, loads []int32) (server uint32)

	// Weigh says who may get flows from now on, and by which weights. Server s has the id s+1. Somebody's weight must be above 0. Where the
	// policy follows loads, its weights are what became of them.
	Weigh(shares []model.Share)
}

// Counting is a policy that takes turns by counters: rr, wrr and awrr.
type Counting interface {
	Policy
	// SetCounters has new flows meet so many counters from now on; a new policy has one.
	SetCounters(counters int)
}

// New returns the policy of a name: rr, wrr, awrr, p2c, least, awfd, lcf, hash, maglev or wcmp. A flow's number draws for those that leave
// something to chance. slots are of a table.
func New(name string, slots uint32, numbers random.Key) Policy {
	switch name {
	case "rr":
		return &rotation{Turns{Numbers: numbers}, rounds.Equal}
	case "wrr", "awrr":
		return &rotation{Turns{Numbers: numbers}, rounds.Weighted}
	case "p2c":
		return &twoChoices{TwoChoices{Numbers: numbers}}
	case "least":
		return &Least{}
	case "awfd", "lcf":
		return &classes{Classes{Numbers: numbers}}
	}
	return &placement{name: name, slots: slots, numbers: numbers}
}

// rotation is rr, wrr and awrr.
type rotation struct {
	Turns
	lay func([]model.Share) []uint16
}

func (r *rotation) Weigh(shares []model.Share) { r.Round = servers(r.Round[:0], r.lay(shares)) }

type twoChoices struct{ TwoChoices }

func (t *twoChoices) Weigh(shares []model.Share) { t.Round, _ = Rounds(shares) }

type classes struct{ Classes }

func (c *classes) Weigh(shares []model.Share) { c.Classes.Classes = awfd.NewClasses(shares) }

// placement is hash, maglev and wcmp, asked once for each flow: where affinity hash would lead it at this moment.
type placement struct {
	name    string
	slots   uint32
	numbers random.Key
	owners  []uint32
}

func (p *placement) Choose(flow uint64, _ []int32) uint32 {
	return p.owners[random.Below(p.numbers.At(flow), uint32(len(p.owners)))]
}

func (p *placement) Weigh(shares []model.Share) { p.owners = Owners(p.name, p.slots, shares) }

// Owners returns the server of every slot of a table: of hash, maglev or wcmp.
func Owners(name string, slots uint32, shares []model.Share) []uint32 {
	fill := map[string]func(uint32, []model.Share) []uint16{"maglev": maglev.Table, "hash": modulo.Table, "wcmp": wcmp.Table}[name]
	return Servers(fill(slots, shares))
}
