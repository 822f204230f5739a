package spotlight

import (
	"fmt"

	"github.com/ballast-lb/ballast/internal/algo/awfd"
	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// game is a trace that is dispatched by a policy.
type game struct {
	*trace
	policy   policy
	pools    []*pool // by service
	choosers []chooser
	numbers  []random.Key          // a flow's hash at each service
	assigned [][maxServices]uint16 // by flow: the instance at each service of its chain
	pollNS   int64                 // when the next one is due
}

// play dispatches the flows of a trace among instances whose capacity is as given for each service, in bytes/s, and returns the mean
// utilisation of the services from warmNS to the last arrival.
func (t *trace) play(p policy, instances int, capacity float64, warmNS int64) float64 {
	g := &game{trace: t, policy: p, choosers: make([]chooser, t.services), assigned: make([][maxServices]uint16, t.flows)}
	for s := range t.services {
		g.pools = append(g.pools, newPool(instances, capacity))
		g.numbers = append(g.numbers, random.Keyed(t.seed, fmt.Sprint("dispatch ", s)))
		g.choosers[s].table = p.table
	}
	warm := false
	for _, c := range t.changes {
		if !warm && c.atNS >= warmNS {
			warm = true
			for _, pool := range g.pools {
				pool.restart(warmNS)
			}
		}
		g.poll(c)
		if c.ends {
			g.end(c)
		} else {
			g.begin(c)
		}
	}
	end, sum := t.changes[len(t.changes)-1].atNS, 0.0
	for _, pool := range g.pools {
		sum += pool.utilization(end, end-warmNS)
	}
	return sum / float64(len(g.pools))
}

func (f flow) asks(service int) bool { return f.chain>>service&1 != 0 }

// begin dispatches a flow at every service of its chain. What one of them carries of it does not change what the next is asked for.
func (g *game) begin(c change) {
	f := g.made[c.flow]
	for s, pool := range g.pools {
		if f.asks(s) {
			i := g.choosers[s].choose(uint32(g.numbers[s].At(uint64(c.flow)) >> 32))
			g.assigned[c.flow][s] = uint16(i)
			pool.add(c.atNS, i, f.rate)
		}
	}
}

// poll looks at the instances if that was due since the change before, when they were as they are now. Whoever polls before every flow
// looks at those of its chain.
func (g *game) poll(c change) {
	always := g.policy.intervalNS == 0
	if g.policy.table != nil || c.atNS < g.pollNS || always && c.ends {
		return
	}
	if !always {
		g.pollNS = c.atNS - c.atNS%g.policy.intervalNS + g.policy.intervalNS
	}
	for s, pool := range g.pools {
		if !always || g.made[c.flow].asks(s) {
			g.choosers[s].classes = awfd.NewClasses(g.policy.weigh(pool.left()))
		}
	}
}

func (g *game) end(c change) {
	f := g.made[c.flow]
	for s, pool := range g.pools {
		if f.asks(s) {
			pool.add(c.atNS, int(g.assigned[c.flow][s]), -f.rate)
		}
	}
}
