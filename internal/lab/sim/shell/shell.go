// Package shell has the experiments of SHELL's section VI (Pit-Claudel et al., "Stateless Load-Aware Load Balancing in P4", ICNP 2018): which
// connections are reset when servers come and go, and how far a history of owners helps.
package shell

import (
	"math"

	"github.com/ballast-lb/ballast/internal/lab/sim"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
	"github.com/ballast-lb/ballast/internal/model"
)

// Parameters of section VI.
const (
	paper   = `SHELL (Pit-Claudel et al., ICNP 2018)`
	servers = 500
	buckets = 35591
	choices = 2
)

// why explains claims about algorithm 1.
const why = "Algorithm 1 moves rows back before it takes duplicates out, so h rows remember only h-1 servers until the next reconfiguration. The paper's curves are " +
	"those of the last h distinct servers."

// whyColumns explains claims about the table of Ballast.
const whyColumns = "Tested by the paper's table, which gives its curve: Ballast's is another (candidates.Columns). With 35591 buckets it resets fewer for h = 1 and 2, " +
	"more from 4 on; for h = 3 more with 17791 buckets, fewer with 284803."

// Experiments returns them.
func Experiments() []sim.Experiment {
	return []sim.Experiment{figure6(), realistic(), figure7()}
}

// shown is a claim that is not judged: the paper has no number for it.
func shown(id, what string) sim.Claim {
	return sim.Claim{ID: id, What: what, Unit: "%", Low: math.Inf(-1), High: math.Inf(1)}
}

// near is a claim that a value is within 10 % of another.
func near(id, what string, percent float64) sim.Claim {
	return sim.Claim{ID: id, What: what, Unit: "%", Low: 0.9 * percent, High: 1.1 * percent}
}

// builder makes a table of candidates: package candidates.
type builder func(slots uint32, choices int, shares []model.Share) []uint16

// tables are the owners of all cells, and what becomes of them when, in turns, one random server is removed and a new one inserted.
type tables struct {
	build  builder
	size   int // servers
	slots  uint32
	owners []uint16 // of cells bucket*choices + choice
	shares []model.Share
	unused []uint16      // ids
	choice random.Stream // of who is removed
}

// newTables returns the table of the paper's servers.
func newTables(seed uint64, slots uint32, build builder) *tables {
	return newTablesOf(seed, servers, slots, build)
}

// newTablesOf returns the table of servers with random ids, which give them random permutations of the buckets.
func newTablesOf(seed uint64, size int, slots uint32, build builder) *tables {
	t := &tables{build: build, size: size, slots: slots, choice: random.New(seed, "updates")}
	for id := range math.MaxUint16 {
		t.unused = append(t.unused, uint16(id+1))
	}
	ids := random.New(seed, "server ids")
	ids.Shuffle(len(t.unused), func(i, j int) { t.unused[i], t.unused[j] = t.unused[j], t.unused[i] })
	for range size {
		t.insert()
	}
	t.owners = build(slots, choices, t.shares)
	return t
}

func (t *tables) insert() {
	t.shares = append(t.shares, model.Share{ID: t.unused[0], Weight: 1})
	t.unused = t.unused[1:]
}

func (t *tables) remove() {
	i, last := t.choice.Intn(len(t.shares)), len(t.shares)-1
	t.shares[i] = t.shares[last]
	t.shares = t.shares[:last]
}

// reconfigure makes the next table.
func (t *tables) reconfigure() {
	if len(t.shares) == t.size {
		t.remove()
	} else {
		t.insert()
	}
	t.owners = t.build(t.slots, choices, t.shares)
}
