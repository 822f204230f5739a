package lb

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/choice"
	"github.com/ballast-lb/ballast/internal/algo/rounds"
	"github.com/ballast-lb/ballast/internal/model"
)

// loaded is a service whose servers have loads, for the data path and for internal/algo/choice.
type loaded struct {
	*world
	round, everybody []choice.Turn // their servers are ids
	loads            []int32       // by id
}

func newLoaded(t *testing.T, random *rand.Rand, dispatch model.Dispatch, servers, heaviest int) *loaded {
	t.Helper()
	weights := make([]uint16, servers)
	for i := range weights {
		weights[i] = uint16(1 + random.IntN(heaviest))
	}
	l := &loaded{world: newWorld(t, policy(dispatch, weights...)), loads: make([]int32, servers+1)}
	shares := service(&l.want, "web").Shares()
	prices := choice.Prices(shares)
	for i, id := range rounds.Equal(shares) {
		l.everybody = append(l.everybody, choice.Turn{Server: uint32(id), Price: prices[id], Group: uint8(i % choice.Groups)})
	}
	for _, id := range rounds.Weighted(shares) {
		l.round = append(l.round, l.everybody[id-1])
	}
	return l
}

// load gives the servers of the data path the loads.
func (l *loaded) load() {
	l.setOpen("web", func(id uint16) int32 { return l.loads[id] })
}

// setOpen sets the estimates of open connections.
func (w *world) setOpen(service string, open func(id uint16) int32) {
	place := w.tables.Places()[service]
	for id, counter := range place.Counters {
		w.lb.tables.loads[counter].value = open(id)
	}
	w.lb.writeLoads(w.lb.ServiceRow(place.Number))
}

// connectOne sends one SYN and returns who got it.
func (l *loaded) connectOne() (id uint32) {
	for server := range l.connect(1) {
		id = uint32(server - idAt(0))
	}
	return id
}

// Connections begin and end at random.
func TestLeastChoosesWhatTheReferenceSays(t *testing.T) {
	random := seeded(t)
	for _, servers := range []int{1, 2, 7, 15, 16, 17, 18, 31, 32, 60} {
		l := newLoaded(t, random, model.DispatchLeast, servers, 4)
		number := l.tables.Places()["web"].Number
		for id := range l.loads {
			l.loads[id] = random.Int32N(6)
		}
		l.load()
		leastLoaded, turn := choice.NewLeastLoaded(l.everybody, l.loads), 1+random.Uint32N(1<<20)
		tell := func(id uint32, change int32) {
			l.loads[id] += change
			leastLoaded.Report(l.everybody[id-1], l.everybody[id-1].Cost(l.loads))
		}
		ended := 0
		for range 200 {
			mustSet(l.lb.objects.Turns.Put(number, lbCursor{Turn: turn}))
			have, want := l.connectOne(), leastLoaded.Least(l.round[turn%uint32(len(l.round))], l.loads)
			if have != want {
				t.Fatalf("%d servers, loads %v, turn %d: server %d instead of %d", servers, l.loads, turn, have, want)
			}
			tell(have, 1)
			turn++
			for range random.IntN(3) {
				if id := uint32(1 + random.IntN(servers)); l.loads[id] > 0 {
					f := flowTo(vip4, 80, ended)
					l.check(f.frame(f.tcp(rst, timestamps(1, l.cookieFor("web", f, uint16(id), 1)), nil)))
					tell(id, -1)
					ended++
				}
			}
		}
	}
}

// The data path's random numbers are its own, so shares are compared: those of the reference are exact, over all pairs that can be drawn.
func TestTwoChoicesShareAsTheReferenceDoes(t *testing.T) {
	random := seeded(t)
	for range 5 {
		l := newLoaded(t, random, model.DispatchP2C, 2+random.IntN(4), 3)
		for id := range l.loads {
			l.loads[id] = random.Int32N(5)
		}
		t.Run(fmt.Sprint(l.loads[1:]), func(t *testing.T) {
			count := uint32(len(l.round))
			times := make([]float64, len(l.loads))
			for a := range count {
				for b := range count {
					drawn := func(i uint32) uint32 { return (i<<16 + count - 1) / count } // the first number that draws i
					times[choice.TwoChoices(l.round, drawn(a)|drawn(b)<<16, l.loads)]++
				}
			}
			var shares []uint16
			for _, n := range times[1:] {
				shares = append(shares, uint16(n))
			}
			served := map[uint16]int{}
			for range 4000 {
				l.load()
				served[idAt(uint16(l.connectOne()))]++
			}
			expectShares(t, served, shares, true)
		})
	}
}
