package flows

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/lab/sim/random"
)

// dumbWorld has every connection in a list and looks at all of them after every change.
type dumbWorld struct {
	table     Table
	histories [][]uint32 // by cell: distinct owners, the latest first
	living    []*dumbFlow
	broken    int64
	ended     int64
}

type dumbFlow struct {
	cell, server, ends int
	node               int
	nodes              []uint32 // that know it
	broken             bool
}

func newDumbWorld(table Table) *dumbWorld {
	d := &dumbWorld{table: table}
	d.table.Nodes = slices.Clone(table.Nodes)
	for _, owner := range table.Owners {
		d.histories = append(d.histories, []uint32{owner})
	}
	return d
}

func (d *dumbWorld) place(cell int, owner uint32) {
	others := slices.DeleteFunc(d.histories[cell], func(s uint32) bool { return s == owner })
	d.histories[cell] = append([]uint32{owner}, others...)
	if d.table.Nodes == nil {
		d.look(func(*dumbFlow) bool { return true })
	}
}

func (d *dumbWorld) placeNode(cell int, node uint32) {
	d.table.Nodes[cell] = node
	d.look(func(f *dumbFlow) bool {
		if f.node != cell || slices.Contains(f.nodes, node) {
			return false
		}
		f.nodes = append(f.nodes, node)
		return true
	})
}

// look sends a packet of every connection that must be looked up.
func (d *dumbWorld) look(lookedUp func(*dumbFlow) bool) {
	for _, f := range d.living {
		led := d.histories[f.cell][:min(len(d.histories[f.cell]), max(d.table.Depth, 1))]
		if lookedUp(f) && !slices.Contains(led, uint32(f.server)) {
			f.broken = true
		}
	}
}

func (d *dumbWorld) end(which func(*dumbFlow) bool) {
	d.living = slices.DeleteFunc(d.living, func(f *dumbFlow) bool {
		if !which(f) {
			return false
		}
		if d.ended++; f.broken {
			d.broken++
		}
		return true
	})
}

func (d *dumbWorld) fail(server uint32) {
	d.end(func(f *dumbFlow) bool {
		f.broken = f.broken || f.server == int(server)
		return f.server == int(server)
	})
}

func (d *dumbWorld) loads(servers int) []int32 {
	loads := make([]int32, servers)
	for _, f := range d.living {
		loads[f.server]++
	}
	return loads
}

// One connection at a time: the world is given its arrivals by hand, so that both see the same.
func TestWhatIsAskedAtTheEndEqualsLookingAtEveryChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const servers, buckets, nodeCells = 4, 3, 2
		table := Table{
			Choices: rapid.IntRange(1, 3).Draw(t, "choices"), Depth: rapid.IntRange(0, 4).Draw(t, "depth"),
		}
		table.Owners = rapid.SliceOfN(rapid.Uint32Range(0, servers-1), buckets*table.Choices, buckets*table.Choices).Draw(t, "owners")
		if rapid.Bool().Draw(t, "local tables") {
			table.Nodes = rapid.SliceOfN(rapid.Uint32Range(0, 2), nodeCells, nodeCells).Draw(t, "nodes")
		}
		if rapid.Bool().Draw(t, "by load") {
			table.Accepts = func(_ uint32, load int32) bool { return load < 3 }
		}
		w := New(Config{Seed: rapid.Uint64().Draw(t, "seed"), Servers: servers, Durations: exponentialLives(), Table: &table})
		s, dumb := w.steer.(*tableSteerer), newDumbWorld(table)
		if rapid.Bool().Draw(t, "numbers wrap") {
			w.flow = maxAge // not too many at a time
			s.forget()
			w.flow = 2 * maxAge
			s.forget()
			w.flow = 3 * maxAge
			s.forget()
			w.flow = 1<<32 - 10
			s.forget()
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now := int(w.Now())
			switch rapid.IntRange(0, 7).Draw(t, "what") {
			case 0, 1, 2:
				life := rapid.IntRange(0, 40).Draw(t, "life")
				cell, node := int(s.cell(w.flow, 0)), int(random.Below(s.nodeOf.At(w.flow), nodeCells))
				if table.Accepts != nil {
					for last := cell + table.Choices - 1; cell < last && w.Load(w.Owner(cell)) >= 3; {
						cell++
					}
				}
				f := &dumbFlow{cell: cell, server: int(dumb.histories[cell][0]), ends: now + life, node: node}
				if table.Nodes != nil {
					f.nodes = []uint32{dumb.table.Nodes[node]}
				}
				dumb.living = append(dumb.living, f)
				w.admit(w.Now(), int64(life))
			case 3, 4:
				cell, server := rapid.IntRange(0, len(table.Owners)-1).Draw(t, "cell"), rapid.Uint32Range(0, servers-1).Draw(t, "server")
				w.Place(cell, server)
				dumb.place(cell, server)
			case 5:
				if table.Nodes != nil {
					cell, node := rapid.IntRange(0, nodeCells-1).Draw(t, "cell"), rapid.Uint32Range(0, 2).Draw(t, "node")
					w.PlaceNode(cell, node)
					dumb.placeNode(cell, node)
				}
			case 6:
				server := rapid.Uint32Range(0, servers-1).Draw(t, "fails")
				w.Fail(server)
				dumb.fail(server)
			case 7:
				later := now + rapid.IntRange(1, 20).Draw(t, "later")
				w.RunUntil(int64(later))
				dumb.end(func(f *dumbFlow) bool { return f.ends < later })
			}
			if w.Now()-s.forgotAt > 40 && rapid.Bool().Draw(t, "forget") {
				s.forget()
			}
			if stats := w.Stats(); stats.Broken != dumb.broken || stats.Ended != dumb.ended {
				t.Fatalf("%+v; want %d broken of %d", stats, dumb.broken, dumb.ended)
			}
			if want := dumb.loads(servers); rapid.IntRange(0, 4).Draw(t, "loads") == 0 && !slices.Equal(w.Loads(), want) {
				t.Fatalf("loads %v instead of %v", w.Loads(), want)
			}
		}
	})
}
