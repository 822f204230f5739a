package plan

import (
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

// drawable are the servers that dispatch can choose by what is published of a service, with the number of its turns or its class.
func (n *node) drawable(name string) map[uint16]int {
	row := n.memory.Service(n.memory.ServiceRow(n.tables.Places()[name].Number))
	words := n.memory.Rounds(row.RoundsBase, row.RoundsCount)
	chosen := map[uint16]int{}
	if byClasses(row.Dispatch) {
		classes, members := int(row.Classes), int(row.Members)
		for i := range classes {
			class := classes - i
			for _, word := range words[classes+class*members:][:words[i]>>counterShift] {
				chosen[turnID(word)] += class
			}
		}
		if len(chosen) > 0 {
			return chosen
		}
		words = words[classes:][:members]
	}
	for i, word := range words {
		if id := i - (len(words) - int(row.IDTurns)); id < 0 {
			chosen[turnID(word)]++
		} else if word != 0 {
			chosen[uint16(id)]++
		}
	}
	return chosen
}

// takesNew is the dumb version of takers.
func takesNew(want *Want, s *Service, id uint16) bool {
	for _, server := range s.Servers {
		if server.ID == id {
			return server.State == model.StateActive && server.Weight > 0 && !s.Down[id] && !s.NoCookie[id] && want.Paths[server.Address].Ifindex != 0
		}
	}
	return false
}

func TestOnlyServersThatTakeNewConnectionsCanBeDrawn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		for range 3 {
			want := anyWant(rt)
			n.update(want)
			for i := range want.Services {
				s := &want.Services[i]
				if s.SendsToNodes(want.Tier.Tier) {
					continue
				}
				chosen := n.drawable(s.Name)
				for id := range chosen {
					if !takesNew(want, s, id) {
						rt.Fatalf("%s: server %d can be drawn: %v", s.Dispatch, id, chosen)
					}
				}
				for _, server := range s.Servers {
					weighed := s.Dispatch.FollowsLoad() && len(s.Weights) > 0 || s.Dispatch.ByClasses() && len(s.Starting) > 0
					if takesNew(want, s, server.ID) && chosen[server.ID] == 0 && !s.Dispatch.Placed() && !weighed {
						rt.Fatalf("%s: server %d cannot be drawn: %v", s.Dispatch, server.ID, chosen)
					}
				}
			}
		}
	})
}

// loadedService is one service whose policy follows load.
func loadedService(rt *rapid.T, dispatch model.Dispatch, servers int) *Want {
	s := testService("web", vipAt(0))
	s.Dispatch, s.Load.Classes = dispatch, rapid.Uint8Range(0, model.MaxClasses).Draw(rt, "m")
	for id := range servers {
		s.Servers = append(s.Servers, testServer(uint16(id+1)))
	}
	s.Weights = softWeights(rt, servers, "weights")
	return withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
}

func softWeights(rt *rapid.T, servers int, label string) map[uint16]uint16 {
	return rapid.MapOfN(rapid.Uint16Range(0, uint16(servers+3)), rapid.Uint16Range(0, model.MaxClasses+2), 0, servers).Draw(rt, label)
}

// Spotlight V-C: "for x DIP updates at most m + 2x updates are sent to switches".
func TestReweighingCostsAtMostOneWriteAClassAndTwoAServer(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		servers := rapid.IntRange(1, 40).Draw(rt, "servers")
		want := loadedService(rt, rapid.SampledFrom([]model.Dispatch{model.DispatchAWFD, model.DispatchLCF}).Draw(rt, "dispatch"), servers)
		n.update(want)
		classes := uint16(classesOf(&want.Services[0].Service))
		before := want.Services[0].Weights
		for range rapid.IntRange(1, 6).Draw(rt, "rounds") {
			after := softWeights(rt, servers, "weights")
			changes, err := n.tables.Reweigh("web", after, nil)
			if err != nil {
				rt.Fatal(err)
			}
			moved := 0
			for id := uint16(1); id <= uint16(servers); id++ {
				if min(before[id], classes) != min(after[id], classes) {
					moved++
				}
			}
			if len(changes) > int(classes)+2*moved || (moved == 0 && len(changes) > 0) {
				rt.Fatalf("%d changes for %d servers in %d classes: %+v", len(changes), moved, classes, changes)
			}
			n.drawWhile(rt, changes)
			n.checkClasses(rt, servers, classes, after)
			before = after
		}
		want.Services[0].Weights = before
		if changes := n.update(want); len(changes) > 0 {
			rt.Fatalf("the same weights by an update: %+v", changes)
		}
	})
}

// drawWhile carries out changes of single words and draws servers between any two of them, reading each word at another time.
func (n *node) drawWhile(rt *rapid.T, changes []Change) {
	m := n.memory
	first := m.step
	for _, change := range changes {
		if _, single := change.(SetTurn); !single {
			rt.Fatalf("%+v is not a change of one word", change)
		}
		m.apply(change)
	}
	row := m.Service(m.ServiceRow(n.tables.Places()["web"].Number))
	everybody := steady(row, m.Rounds(row.RoundsBase, row.RoundsCount))
	for range 20 {
		step := first
		word := func(i uint32) uint64 {
			step = rapid.IntRange(step, m.step).Draw(rt, "step")
			value, _ := m.rounds.at(step, row.RoundsBase+i)
			return value
		}
		if chosen := draw(row, word, rapid.Uint32().Draw(rt, "random")); !slices.Contains(everybody, chosen) {
			rt.Fatalf("%x was drawn, not one of %x", chosen, everybody)
		}
	}
}

// checkClasses holds that everybody is in the class of his weight, once, and in no other.
func (n *node) checkClasses(rt *rapid.T, servers int, classes uint16, weights map[uint16]uint16) {
	got, want := n.drawable("web"), map[uint16]int{}
	for id := uint16(1); id <= uint16(servers); id++ {
		if weight := min(weights[id], classes); weight > 0 {
			want[id] = int(weight)
		}
	}
	if len(want) == 0 { // all alike
		for id := range servers {
			want[uint16(id+1)] = 1
		}
	}
	if !maps.Equal(got, want) {
		rt.Fatalf("classes %v, want %v", got, want)
	}
	row := n.memory.Service(n.memory.ServiceRow(n.tables.Places()["web"].Number))
	part, sum := 0, 0
	for _, weight := range want {
		sum += weight
	}
	for i, word := range n.memory.Rounds(row.RoundsBase, uint32(row.Classes)) {
		class := int(row.Classes) - i
		part += int(word>>counterShift) * class
		if exact := float64(part) / float64(sum) * (1 << 32); part > 0 && math.Abs(exact-float64(uint32(word))) > 2 {
			rt.Fatalf("the range of class %d ends at %d, want %g", class, uint32(word), exact)
		}
	}
}

// Promise: When `ballast lb` is killed while it changes weights, the next process finishes the change.
func TestAReweighingThatWasCutOffIsFinishedByTheNext(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		servers := rapid.IntRange(1, 20).Draw(rt, "servers")
		want := loadedService(rt, model.DispatchAWFD, servers)
		n.update(want)
		changes, err := n.tables.Reweigh("web", softWeights(rt, servers, "cut off"), nil)
		if err != nil {
			rt.Fatal(err)
		}
		for _, change := range changes[:rapid.IntRange(0, len(changes)).Draw(rt, "done")] {
			n.memory.apply(change)
		}
		restored, err := Restore(testLimits, n.memory)
		if err != nil {
			rt.Fatal(err)
		}
		second := node{t, restored, n.memory}
		want.Services[0].Weights = softWeights(rt, servers, "next")
		second.update(want)
		second.checkClasses(rt, servers, uint16(classesOf(&want.Services[0].Service)), want.Services[0].Weights)
		if changes := second.update(want); len(changes) > 0 {
			rt.Fatalf("not finished: %+v", changes)
		}
	})
}

func TestTheNextProcessFindsTheSoftWeights(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		servers := rapid.IntRange(1, 20).Draw(rt, "servers")
		want := loadedService(rt, model.DispatchAWFD, servers)
		n.update(want)
		restored, err := Restore(testLimits, n.memory)
		if err != nil {
			rt.Fatal(err)
		}
		want.Services[0].Weights = restored.Weights([]model.Service{want.Services[0].Service})[want.Services[0].Name]
		if changes, err := restored.Update(want); err != nil || len(changes) > 0 {
			rt.Fatalf("with weights %v: %v %+v", want.Services[0].Weights, err, changes)
		}
	})
}

// Promise: A load balancer that reboots without controllers keeps state and health, and sends new connections by
// configured weights.
func TestSoftTurnsAreANewRoundAndOneFlip(t *testing.T) {
	n := newNode(t)
	s := testService("web", vipAt(0), 1, 2, 3)
	s.Dispatch = model.DispatchAWRR
	s.Servers[0].Weight = 4
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	n.update(want)
	if got, want := n.drawable("web"), map[uint16]int{1: 4, 2: 1, 3: 1}; !maps.Equal(got, want) {
		t.Fatalf("before any weight is known: %v, want the configured %v", got, want)
	}
	for i := range 5 {
		weights := map[uint16]uint16{1: 7, 2: uint16(5 + i), 9: 3}
		changes, err := n.tables.Reweigh("web", weights, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(changes) != 3 {
			t.Fatalf("%+v", changes)
		}
		if _, flip := changes[2].(PointService); !flip {
			t.Fatalf("%+v", changes)
		}
		for _, change := range changes {
			n.memory.apply(change)
		}
		if got, want := n.drawable("web"), map[uint16]int{1: 7, 2: 5 + i, 3: 10}; !proportional(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		if changes, err := n.tables.Reweigh("web", weights, nil); err != nil || len(changes) > 0 {
			t.Fatalf("the same again: %v %+v", err, changes)
		}
		want.Services[0].Weights = weights
		if changes := n.update(want); len(changes) > 0 {
			t.Fatalf("the same by an update: %+v", changes)
		}
	}
	changes, err := n.tables.Reweigh("web", map[uint16]uint16{1: 0, 2: 0, 3: 0}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		n.memory.apply(change)
	}
	if got, want := n.drawable("web"), map[uint16]int{1: 4, 2: 1, 3: 1}; !maps.Equal(got, want) {
		t.Fatalf("nobody with a turn: %v, want the configured %v", got, want)
	}
}

func proportional(a, b map[uint16]int) bool {
	for id := range b {
		for other := range b {
			if a[id]*b[other] != a[other]*b[id] || a[id] == 0 {
				return false
			}
		}
	}
	return len(a) == len(b)
}

func TestNewRoundsWaitForAGracePeriodOnlyWithoutRoom(t *testing.T) {
	limits := testLimits
	limits.Rounds = 256
	n := &node{t, NewTables(limits), newMemory()}
	s := testService("web", vipAt(0), 1, 2, 3)
	s.Dispatch = model.DispatchAWRR
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	n.update(want)
	graces := 0
	for i := range 100 {
		changes, err := n.tables.Reweigh("web", map[uint16]uint16{1: 10, 2: uint16(2 + i%23), 3: 11}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range changes {
			if _, grace := change.(Grace); grace {
				graces++
			}
			n.memory.apply(change)
		}
	}
	if graces == 0 || graces > 25 {
		t.Errorf("%d grace periods for 100 rounds of 23 to 45 turns in a table of 256", graces)
	}
	n.update(&Want{})
	if got := n.tables.settle(); !slices.Equal(got.rounds.free, []span{{0, 256}}) {
		t.Errorf("turns are left: %+v", got.rounds)
	}
}

func TestReweighingWithoutRoomChangesNothing(t *testing.T) {
	limits := testLimits
	limits.Rounds = 60
	n := &node{t, NewTables(limits), newMemory()}
	s := testService("web", vipAt(0), 1, 2)
	s.Dispatch, s.Weights = model.DispatchAWRR, map[uint16]uint16{1: 19, 2: 20}
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	n.update(want)
	before := n.tables.clone()
	if changes, err := n.tables.Reweigh("web", map[uint16]uint16{1: 30, 2: 29}, nil); err == nil {
		t.Fatalf("39 and 59 turns fit in 60: %+v", changes)
	}
	if !reflect.DeepEqual(before, n.tables) {
		t.Fatalf("changed: %+v\n%+v", before, n.tables)
	}
	if changes := n.update(want); len(changes) > 0 {
		t.Fatalf("%+v", changes)
	}
}

func TestWeightsOfOtherServicesAreIgnored(t *testing.T) {
	n := newNode(t)
	n.update(withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("web", vipAt(0), 1, 2)}}))
	for _, name := range []string{"web", "gone", ""} {
		if changes, err := n.tables.Reweigh(name, map[uint16]uint16{1: 3}, nil); err != nil || len(changes) > 0 {
			t.Errorf("%q: %v %+v", name, err, changes)
		}
	}
}

// Promise: A healthy server whose check is wrong keeps its connections, and gets no new ones; `health.deadline`
// cuts them.
// Also held by TestUnhealthyServersGetNothingNewAndKeepWhatTheyHave.
func TestDownIsLikeDraining(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := anyWant(rt)
		for i := range want.Services {
			s := &want.Services[i]
			drained := *s
			drained.Servers, drained.Down = slices.Clone(s.Servers), nil
			for j := range drained.Servers {
				if server := &drained.Servers[j]; s.Down[server.ID] && server.State == model.StateActive {
					server.State = model.StateDraining
				}
			}
			down, draining := compile(want, s, &image{}), compile(want, &drained, &image{})
			if !slices.Equal(down.slots, draining.slots) || !slices.Equal(down.rounds, draining.rounds) || !maps.Equal(down.servers, draining.servers) {
				rt.Fatalf("down %+v\ndraining %+v", down, draining)
			}
		}
	})
}

func TestServersThatAreOffAreInNoTable(t *testing.T) {
	n := newNode(t)
	s := testService("web", vipAt(0), 1, 2, 3)
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	n.update(want)
	want.Services[0].Servers[1].State = model.StateOff
	n.update(want)
	place := n.tables.Places()["web"]
	row := n.memory.Service(n.memory.ServiceRow(place.Number))
	if n.memory.ServerRow(row.IDsBase+2) != 0 || n.memory.ServerRow(row.IDsBase+1) == 0 {
		t.Error("its id still leads to it")
	}
	if _, counted := place.Counters[2]; counted || n.drawable("web")[2] != 0 {
		t.Error("it is counted, or drawn")
	}
	for _, slot := range n.memory.Slots(row.SlotsBase, row.SlotsCount) {
		if slices.Contains(slot.Owners[:], 2) {
			t.Fatalf("slot %+v", slot)
		}
	}
}

func TestEstimatesBeginWhereAPolicyBeginsToNeedThem(t *testing.T) {
	n := newNode(t)
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("web", vipAt(0), 1, 2)}})
	begun := func(dispatch model.Dispatch) (indexes []uint32) {
		want.Services[0].Dispatch = dispatch
		for _, change := range n.update(want) {
			if c, ok := change.(CountOpen); ok {
				indexes = append(indexes, c.Index)
			}
		}
		return indexes
	}
	for _, step := range []struct {
		dispatch model.Dispatch
		servers  int
	}{{model.DispatchP2C, 0}, {model.DispatchLeast, 0}, {model.DispatchAWFD, 0}, {model.DispatchLeast, 2}, {model.DispatchHash, 0}, {model.DispatchP2C, 2}} {
		if got := begun(step.dispatch); len(got) != step.servers {
			t.Errorf("%s: estimates of %v begin, want %d", step.dispatch, got, step.servers)
		}
	}
}

// A thousand servers, of which every tenth changes its class.
func BenchmarkReweighing(b *testing.B) {
	const servers = 1000
	s := testService("web", vipAt(0))
	s.Dispatch, s.Load.Classes, s.Weights = model.DispatchAWFD, model.DefaultClasses, map[uint16]uint16{}
	for id := uint16(1); id <= servers; id++ {
		s.Servers = append(s.Servers, testServer(id))
		s.Weights[id] = id % (model.DefaultClasses + 1)
	}
	n := &node{b, NewTables(DefaultLimits), newMemory()}
	n.update(withPaths(&Want{Keys: testKeys(1), Services: []Service{s}}))
	weights, writes := maps.Clone(s.Weights), 0
	for i := 0; b.Loop(); i++ {
		for id := uint16(1 + i%10); id <= servers; id += 10 {
			weights[id] = (weights[id] + 1) % (model.DefaultClasses + 1)
		}
		changes, err := n.tables.Reweigh("web", weights, nil)
		if err != nil || len(changes) == 0 {
			b.Fatalf("%v %+v", err, changes)
		}
		writes += len(changes)
	}
	b.ReportMetric(float64(writes)/float64(b.N), "writes/op")
}
