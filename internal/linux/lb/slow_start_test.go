package lb

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/ballast-lb/ballast/internal/algo/slowstart"
	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

// slowStart is what connections of a service are shared out to while servers start.
type slowStart struct {
	*world
	vip      netip.Addr
	soft     map[uint16]uint16
	starting slowstart.Parts
}

func newSlowStart(t *testing.T, vip netip.Addr, dispatch model.Dispatch, weights ...uint16) *slowStart {
	return &slowStart{world: newWorld(t, serviceOf("web", vip, func(s *model.Service) {
		weighted(weights...)(s)
		s.Dispatch = dispatch
	})), vip: vip}
}

func (s *slowStart) reweigh() {
	s.Helper()
	changes, err := s.tables.Reweigh("web", s.soft, s.starting)
	if err != nil {
		s.Fatal(err)
	}
	if err := s.lb.Apply(changes); err != nil {
		s.Fatal(err)
	}
}

// Promise: A server that starts gets its part of the turns, and others theirs: also where all weights are 1.
func TestTurnsOfServersThatStart(t *testing.T) {
	for dispatch, weights := range map[model.Dispatch][]uint16{model.DispatchRR: {1, 1, 1}, model.DispatchWRR: {1, model.MaxWeight, 60}, model.DispatchAWRR: {8, 20, 6}} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			t.Run(fmt.Sprint(dispatch, vip.Is6()), func(t *testing.T) {
				s := newSlowStart(t, vip, dispatch, weights...)
				if dispatch == model.DispatchAWRR {
					s.soft = map[uint16]uint16{1: weights[0], 2: weights[1], 3: weights[2]}
				}
				for _, tenths := range []uint8{1, 5, 9} {
					s.starting = slowstart.Parts{3: {Tenths: tenths}}
					s.reweigh()
					expectShares(t, s.connectTo(vip, 4000), []uint16{10 * weights[0], 10 * weights[1], uint16(tenths) * weights[2]}, false)
				}
				s.starting = nil
				s.reweigh()
				expectShares(t, s.connectTo(vip, 4000), weights, false)
			})
		}
	}
}

// Promise: Of a policy by open connections a server that starts has its part of what others have open.
func TestOpenConnectionsOfAServerThatStarts(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchP2C, model.DispatchLeast} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			t.Run(fmt.Sprint(dispatch, vip.Is6()), func(t *testing.T) {
				s := newSlowStart(t, vip, dispatch, 1, 1, 1)
				s.update(func(want *plan.Want) { service(want, "web").Starting = slowstart.Parts{3: {Tenths: 1}} })
				served := s.connectTo(vip, 2100)
				for i, want := range []float64{1000, 1000, 100} {
					slack := 4 + 0.1*want
					if dispatch == model.DispatchLeast {
						slack = 2
					}
					if got := float64(served[idAt(uint16(i+1))]); math.Abs(got-want) > slack {
						t.Errorf("server %d has %g, want %g", i+1, got, want)
					}
				}
			})
		}
	}
}

// Promise: Of a policy by classes a server that starts has its part over time, also where it alone has capacity.
func TestClassesOfAServerThatStarts(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchAWFD, model.DispatchLCF} {
		for _, vip := range []netip.Addr{vip4, vip6} {
			t.Run(fmt.Sprint(dispatch, vip.Is6()), func(t *testing.T) {
				s := newSlowStart(t, vip, dispatch, 1, 1, 1)
				s.soft = map[uint16]uint16{1: 1, 2: 1, 3: 4}
				if dispatch == model.DispatchLCF {
					s.soft = map[uint16]uint16{3: 1}
				}
				alone := 0
				for tick := range uint64(10) {
					s.starting = slowstart.Parts{3: {Tenths: 3, Tick: tick}}
					s.reweigh()
					served := s.connectTo(vip, 200)
					switch has := s.starting.Classes([]model.Share{{ID: 1}, {ID: 2}, {ID: 3}}, s.soft)[3]; {
					case has == 0 && served[idAt(3)] > 0:
						t.Errorf("tick %d: it has no class, and got %v", tick, served)
					case has > 0 && served[idAt(3)] == 0:
						t.Errorf("tick %d: it has %d, and got %v", tick, has, served)
					case served[idAt(3)] == 200:
						alone++
					}
				}
				if want := map[model.Dispatch]int{model.DispatchLCF: 3}[dispatch]; alone != want {
					t.Errorf("it got all connections of %d ticks of 10, want %d", alone, want)
				}
			})
		}
	}
}
