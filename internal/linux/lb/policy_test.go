package lb

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/model"
	"github.com/ballast-lb/ballast/internal/plan"
)

var policies = model.Dispatches()

// seeded is a source of numbers that BALLAST_SEED repeats.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("BALLAST_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("BALLAST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// policy is a service of that dispatch whose servers have the weights.
func policy(dispatch model.Dispatch, weights ...uint16) model.Service {
	return serviceOf("web", vip4, func(s *model.Service) {
		weighted(weights...)(s)
		s.Dispatch, s.TableSlots = dispatch, 8191
	})
}

// reweigh gives soft weights to servers 1, 2, ... as a controller would while packets pass.
func (w *world) reweigh(weights ...uint16) []plan.Change {
	w.Helper()
	soft := map[uint16]uint16{}
	for i, weight := range weights {
		soft[uint16(i+1)] = weight
	}
	changes, err := w.tables.Reweigh("web", soft, nil)
	if err != nil {
		w.Fatal(err)
	}
	if err := w.lb.Apply(changes); err != nil {
		w.Fatal(err)
	}
	service(&w.want, "web").Weights = soft
	return changes
}

// expectShares compares what servers 1, 2, ... got with their shares: by chi-square where they were drawn, with a limit that chance
// passes once in 10^9; where they took turns, each is off by less than a turn and CPU.
func expectShares(t *testing.T, served map[uint16]int, shares []uint16, drawn bool) {
	t.Helper()
	total, sum, value, freedom := 0, 0, 0.0, -1.0
	for _, count := range served {
		total += count
	}
	for _, share := range shares {
		sum += int(share)
	}
	for i, share := range shares {
		expected := float64(total) * float64(share) / float64(sum)
		got := float64(served[idAt(uint16(i+1))])
		if share == 0 && got > 0 || !drawn && math.Abs(got-expected) > float64(int(share)*runtime.NumCPU()) {
			t.Errorf("server %d of share %d of %d got %g, want %.1f", i+1, share, sum, got, expected)
		}
		if share > 0 {
			value += (got - expected) * (got - expected) / expected
			freedom++
		}
	}
	if limit := freedom * math.Pow(1-2/(9*freedom)+6*math.Sqrt(2/(9*freedom)), 3); drawn && freedom > 0 && value > limit {
		t.Errorf("chi-square %.1f, at most %.1f for %.0f degrees of freedom: %v", value, limit, freedom, served)
	}
}

func TestSharesFollowTheConfiguredWeights(t *testing.T) {
	random := seeded(t)
	for _, dispatch := range []model.Dispatch{model.DispatchRR, model.DispatchWRR, model.DispatchAWRR, model.DispatchWCMP, model.DispatchMaglev, model.DispatchHash} {
		t.Run(fmt.Sprint(dispatch), func(t *testing.T) {
			weights := make([]uint16, 2+random.IntN(15))
			for i := range weights {
				weights[i] = uint16(1 + random.IntN(6))
			}
			w := newWorld(t, policy(dispatch, weights...))
			if dispatch == model.DispatchRR || dispatch == model.DispatchHash {
				for i := range weights {
					weights[i] = 1
				}
			}
			expectShares(t, w.connect(3000), weights, dispatch.Placed())
		})
	}
}

func TestSharesFollowTheSoftWeights(t *testing.T) {
	random := seeded(t)
	for _, dispatch := range []model.Dispatch{model.DispatchAWRR, model.DispatchAWFD, model.DispatchLCF} {
		t.Run(fmt.Sprint(dispatch), func(t *testing.T) {
			servers := make([]uint16, 2+random.IntN(30))
			for i := range servers {
				servers[i] = 1
			}
			s := policy(dispatch, servers...)
			s.Load.Classes = uint8(1 + random.IntN(model.MaxClasses))
			w := newWorld(t, s)
			expectShares(t, w.connect(1000), servers, dispatch != model.DispatchAWRR) // nothing is known: all alike
			for range 4 {
				weights := make([]uint16, len(servers))
				for i := range weights {
					weights[i] = uint16(random.IntN(int(s.Load.Classes) + 1))
				}
				weights[random.IntN(len(weights))] = 1 // somebody has
				w.reweigh(weights...)
				if dispatch == model.DispatchLCF {
					for i := range weights {
						weights[i] = min(weights[i], 1)
					}
				}
				expectShares(t, w.connect(3000), weights, dispatch != model.DispatchAWRR)
			}
			w.reweigh(make([]uint16, len(servers))...)
			expectShares(t, w.connect(1000), servers, dispatch != model.DispatchAWRR) // everybody overloaded: all alike again
		})
	}
}

// Spotlight IV-B, the example of figure 3: 2, 1, 0 and 0 available, m = 2.
func TestTheExampleOfSpotlight(t *testing.T) {
	s := policy(model.DispatchAWFD, 1, 1, 1, 1)
	s.Load.Classes = 2
	w := newWorld(t, s)
	w.reweigh(2, 1, 0, 0)
	expectShares(t, w.connect(6000), []uint16{2, 1, 0, 0}, true)
	s = policy(model.DispatchAWFD, 1, 1, 1, 1)
	s.Load.Classes = 0 // ECMP
	w = newWorld(t, s)
	w.reweigh(2, 1, 0, 0)
	expectShares(t, w.connect(6000), []uint16{1, 1, 1, 1}, true)
}

func TestOpenConnectionsFollowTheWeights(t *testing.T) {
	for _, dispatch := range []model.Dispatch{model.DispatchLeast, model.DispatchP2C} {
		for _, weights := range [][]uint16{{1, 1, 1, 1}, {1, 2, 5}, {7, 100, 200}, slices.Repeat([]uint16{1, 2}, 20)} {
			t.Run(fmt.Sprint(dispatch, len(weights)), func(t *testing.T) {
				w := newWorld(t, policy(dispatch, weights...))
				served, sum := w.connect(3000), 0
				for _, weight := range weights {
					sum += int(weight)
				}
				for i, weight := range weights {
					exact := 3000 * float64(weight) / float64(sum)
					slack := 2.0
					if dispatch == model.DispatchP2C || len(weights) > 16 {
						slack = 4 + 0.06*exact
					}
					if got := float64(served[idAt(uint16(i+1))]); math.Abs(got-exact) > slack {
						t.Errorf("server %d of weight %d of %d has %g, want %.1f", i+1, weight, sum, got, exact)
					}
				}
			})
		}
	}
}

func TestLeastFindsTheLeastLoaded(t *testing.T) {
	random := seeded(t)
	w := newWorld(t, policy(model.DispatchLeast, slices.Repeat([]uint16{1, 2, 3, 4}, 4)...))
	s := &service(&w.want, "web").Service
	for range 300 {
		least := math.Inf(1)
		cost := map[uint16]float64{}
		w.setOpen("web", func(id uint16) int32 {
			load := random.Int32N(8)
			cost[idAt(id)] = float64(load) / float64(s.Servers[id-1].Weight)
			least = min(least, cost[idAt(id)])
			return load
		})
		for chosen := range w.connect(1) {
			if cost[chosen] != least {
				t.Fatalf("server %d of cost %g was chosen, the least is %g", chosen&255, cost[chosen], least)
			}
		}
	}
}

func TestLeastOfEqualsTakesTurnsByWeight(t *testing.T) {
	w := newWorld(t, policy(model.DispatchLeast, 1, 3))
	served := map[uint16]int{}
	for range 400 {
		for id, count := range w.connect(1) {
			served[id] += count
		}
		w.setOpen("web", func(uint16) int32 { return 0 }) // it is over at once
	}
	expectShares(t, served, []uint16{1, 3}, false)
}

// Among more servers than there are groups an idle one gets connections: at once if one of its own has ended, else when its turn comes.
func TestLeastMeetsAnIdleServerAmongMany(t *testing.T) {
	const servers = 60
	w := newWorld(t, policy(model.DispatchLeast, slices.Repeat([]uint16{1}, servers)...))
	for _, idle := range []uint16{1, 16, 17, 33, 60} {
		w.setOpen("web", func(uint16) int32 { return 100 })
		w.lb.tables.loads[w.tables.Places()["web"].Counters[idle]].value = 0 // nobody is told
		if served := w.connect((servers + 8) * runtime.NumCPU()); served[idAt(idle)] < 8 {
			t.Errorf("idle server %d got %d: %v", idle, served[idAt(idle)], served)
		}
		w.setOpen("web", func(uint16) int32 { return 100 })
		f := flowTo(vip4, 80, int(idle))
		w.check(f.frame(f.tcp(rst, timestamps(1, w.cookieFor("web", f, idle, 1)), nil)))
		for id := range w.connect(1) {
			if id != idAt(idle) {
				t.Errorf("the connection went to server %d, %d has one less than the others", id-idAt(0), idle)
			}
		}
	}
}

// A server that leaves and comes back has the connections that it kept, and none goes to it meanwhile.
func TestLeastForgetsServersThatLeave(t *testing.T) {
	w := newWorld(t, policy(model.DispatchLeast, slices.Repeat([]uint16{1}, 20)...))
	for _, state := range []model.ServerState{model.StateDraining, model.StateActive} {
		w.setOpen("web", func(id uint16) int32 { return 100 * int32(id) })
		w.update(func(want *plan.Want) { service(want, "web").Server("s1").State = state })
		f := flowTo(vip4, 80, 1)
		w.check(f.frame(f.tcp(rst, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
		best := idAt(1)
		if state == model.StateDraining {
			best = idAt(2)
		}
		if served := w.connect(50); served[best] != 50 {
			t.Errorf("server 1 is %s: %v", state, served)
		}
	}
}

// onCPU runs f on one CPU.
func onCPU(t *testing.T, cpu int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, only unix.CPUSet
	mustSet(unix.SchedGetaffinity(0, &before))
	only.Set(cpu)
	mustSet(unix.SchedSetaffinity(0, &only))
	defer func() { mustSet(unix.SchedSetaffinity(0, &before)) }()
	f()
}

// Each of these takes a server out of dispatch.
var takenOut = map[string]func(want *plan.Want, s *plan.Service, server *model.Server){
	"draining":    func(_ *plan.Want, _ *plan.Service, server *model.Server) { server.State = model.StateDraining },
	"off":         func(_ *plan.Want, _ *plan.Service, server *model.Server) { server.State = model.StateOff },
	"weight 0":    func(_ *plan.Want, _ *plan.Service, server *model.Server) { server.Weight = 0 },
	"down":        func(_ *plan.Want, s *plan.Service, server *model.Server) { s.Down = map[uint16]bool{server.ID: true} },
	"unreachable": func(want *plan.Want, _ *plan.Service, server *model.Server) { want.Paths[server.Address] = plan.Path{} },
}

// Promise: No policy chooses a server that is drained, unhealthy, off or without next hop.
func TestNoPolicyChoosesAServerThatIsTakenOut(t *testing.T) {
	for _, dispatch := range policies {
		for name, takeOut := range takenOut {
			if name == "unreachable" && dispatch.Placed() {
				continue // every node must place alike: there its packets are dropped
			}
			t.Run(fmt.Sprint(dispatch, " ", name), func(t *testing.T) {
				w := newWorld(t, policy(dispatch, 1, 2, 1, 3))
				w.reweigh(4, 3, 4, 1)
				if served := w.connect(200); served[idAt(3)] == 0 && dispatch != model.DispatchLCF {
					t.Fatalf("server 3 got nothing before: %v", served)
				}
				w.update(func(want *plan.Want) {
					s := service(want, "web")
					takeOut(want, s, s.Server("s3"))
				})
				if served := w.connect(200); served[idAt(3)] > 0 || served[idAt(1)] == 0 {
					t.Errorf("served %v", served)
				}
				w.reweigh(0, 0, 9, 0) // a weight cannot bring it back
				if served := w.connect(200); served[idAt(3)] > 0 || served[idAt(1)] == 0 {
					t.Errorf("after its weight came: %v", served)
				}
			})
		}
	}
}

func TestEveryPolicyCountsWhatCloses(t *testing.T) {
	for _, dispatch := range policies {
		w := newWorld(t, policy(dispatch, 1))
		w.connect(5)
		for i := range 3 {
			f := flowTo(vip4, 80, i)
			w.check(f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
			w.check(f.frame(f.tcp(rst, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
		}
		if got := w.serverTraffic("web")[1]; got.Connections != 5 || got.Closed != 3 || got.Open() != 2 {
			t.Errorf("%s: %+v", dispatch, got)
		}
	}
}

func TestEveryAffinityWithAMemoryCountsWhatCloses(t *testing.T) {
	for _, affinity := range []model.Affinity{model.AffinityTable, model.AffinityLocal} {
		for _, dispatch := range policies[:model.DispatchChoices] { // by the servers' choices
			s := policy(dispatch, 1)
			if s.Affinity = affinity; affinity == model.AffinityTable {
				s.Table.Entries = 64
			}
			s.ApplyDefaults()
			w := newWorld(t, s)
			w.connect(5)
			for i := range 3 {
				f := flowTo(vip4, 80, i)
				if affinity == model.AffinityLocal {
					w.local[refConnection{"web", f.client, 80}] = 1
				}
				for _, flags := range []byte{ack, fin | ack, fin | ack, rst} {
					w.check(f.frame(f.tcp(flags, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
				}
			}
			if got := w.serverTraffic("web")[1]; got.Connections != 5 || got.Closed != 3 || got.Open() != 2 {
				t.Errorf("%s, %s: %+v", affinity, dispatch, got)
			}
		}
	}
}

func TestConnectionsWithoutACookieAreNotHeldToBeOpen(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1))
	w.connect(2)
	f := flowTo(vip4, 80, 7)
	w.checkVerdict(f.frame(f.tcp(syn, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
	w.checkVerdict(f.frame(f.tcp(fin|ack, nil, nil)), lbVerdictFORWARDED_NO_TIMESTAMP)
	if got := w.serverTraffic("web")[1]; got.Connections != 3 || got.Closed != 1 || got.Open() != 2 {
		t.Errorf("%+v", got)
	}
}

func TestEstimatesOfOpenConnectionsBeginWithWhatIsOpen(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1))
	counter := w.tables.Places()["web"].Counters[1]
	w.connect(7)
	f := flowTo(vip4, 80, 1)
	w.check(f.frame(f.tcp(fin|ack, timestamps(1, w.cookieFor("web", f, 1, 1)), nil)))
	w.update(func(want *plan.Want) { service(want, "web").Dispatch = model.DispatchLeast })
	if got := w.lb.OpenConnections(counter); got != 6 {
		t.Errorf("%d open, want 6", got)
	}
	w.connect(1)
	if got := w.lb.OpenConnections(counter); got != 7 {
		t.Errorf("%d open, want 7", got)
	}
}

// Policies are switched, weights change and a server is drained while packets pass: each finds a server that takes new connections.
func TestPoliciesAreSwitchedUnderPackets(t *testing.T) {
	w := newWorld(t, policy(model.DispatchRR, 1, 2, 1, 3))
	random := seeded(t)
	var stop atomic.Bool
	var packets atomic.Uint64
	drained := atomic.Int64{} // server 3: 0 in, 1 is leaving or coming, 2 out
	failed := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; !stop.Load(); n++ {
			f := flowTo(vip4, 80, n%40000)
			out := make([]byte, 256)
			out0 := drained.Load()
			options := ebpf.RunOptions{Data: f.frame(f.tcp(syn, synOptions(), nil)), DataOut: out}
			action, err := w.lb.Program().Run(&options)
			id := binary.BigEndian.Uint16(options.DataOut[4:6]) - idAt(0)
			if err != nil || action != xdpTX || id < 1 || id > 4 || id == 3 && out0 == 2 && drained.Load() == 2 {
				select {
				case failed <- fmt.Sprintf("packet %d: action %d to server %d, %v", n, action, id, err):
				default:
				}
			}
			packets.Add(1)
		}
	}()
	passed := func(n uint64) {
		t.Helper()
		for deadline, from := time.Now().Add(10*time.Second), packets.Load(); packets.Load() < from+n; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatal("no packets pass")
			}
		}
	}
	for _, from := range policies {
		for _, to := range policies {
			for _, dispatch := range []model.Dispatch{from, to} {
				drain := random.IntN(2) == 0
				drained.Store(1)
				w.update(func(want *plan.Want) {
					s := service(want, "web")
					s.Dispatch, s.Load.Classes = dispatch, uint8(random.IntN(5))
					s.Servers[2].State = model.StateActive
					if drain {
						s.Servers[2].State = model.StateDraining
					}
				})
				if drain {
					drained.Store(2)
				}
				w.reweigh(uint16(random.IntN(5)), uint16(random.IntN(5)), uint16(random.IntN(5)), uint16(random.IntN(5)))
				passed(3)
			}
		}
	}
	stop.Store(true)
	<-done
	select {
	case why := <-failed:
		t.Error(why)
	default:
	}
}

func TestEveryPolicySendsWhatTheReferenceSays(t *testing.T) {
	random := seeded(t)
	for _, dispatch := range policies {
		t.Run(dispatch.String(), func(t *testing.T) {
			w := newWorld(t, policy(dispatch, 1, 2, 0, 3, 1, 5))
			for range 10 {
				w.update(func(want *plan.Want) {
					s := service(want, "web")
					s.Down = map[uint16]bool{uint16(1 + random.IntN(6)): true}
					s.Servers[random.IntN(6)].State = model.ServerState(random.IntN(3))
				})
				for n := range 10 {
					f := flowTo(vip4, 80, random.IntN(40000))
					w.check(f.frame(f.tcp(syn, synOptions(), nil)))
					w.check(f.frame(f.tcp(syn, nil, nil)))
					w.check(f.carrying(w.cookieFor("web", f, uint16(1+n%6), 1)))
				}
			}
		})
	}
}
