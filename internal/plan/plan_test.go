package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

// settle releases what rests, as the next update with something to do would, and forgets the slots' recipes, which are not
// published.
func (t *Tables) settle() *Tables {
	c := t.clone()
	c.release()
	for _, p := range c.services {
		p.name, p.image.table, p.image.takers = "", table{}, nil
		p.image.vips = slices.SortedFunc(slices.Values(p.image.vips), vipOrder)
		p.image.rounds = append([]uint64{}, p.image.rounds...)
		p.image.returns = maps.Clone(p.image.returns)
		for key, from := range p.image.returns { // the tables do not tell who was removed
			p.image.returns[key] = returning{id: from.id}
		}
	}
	slices.SortFunc(c.services, func(a, b *published) int { return int(a.number) - int(b.number) })
	c.named = nil
	return c
}

func TestRestoreFindsWhatIsPublished(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		for range 3 {
			n.update(anyWant(rt))
		}
		restored, err := Restore(testLimits, n.memory)
		if err != nil {
			rt.Fatal(err)
		}
		got, want := restored.settle(), n.tables.settle()
		for i, p := range want.services {
			if !reflect.DeepEqual(got.services[i], p) {
				rt.Fatalf("got  %+v\nwant %+v", got.services[i], p)
			}
		}
		if !reflect.DeepEqual(got, want) {
			rt.Fatalf("got  %+v\nwant %+v", got, want)
		}
	})
}

func TestARestoredNodeHasNothingToDo(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		n.update(anyWant(rt))
		want := anyWant(rt)
		n.update(want)
		restored, err := Restore(testLimits, n.memory)
		if err != nil {
			rt.Fatal(err)
		}
		changes, err := restored.Update(want)
		if err != nil || len(changes) > 0 {
			rt.Fatalf("%v %+v", err, changes)
		}
		if !reflect.DeepEqual(restored.Places(), n.tables.Places()) {
			rt.Fatalf("got %v, want %v", restored.Places(), n.tables.Places())
		}
	})
}

// An update may be cut off anywhere, by a kill: whoever restores must be able to go on.
func TestAnUpdateThatWasCutOffCanBeFinished(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		n.update(anyWant(rt))
		want := anyWant(rt)
		changes, err := n.tables.Update(want)
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
		second.update(want)
		for name, p := range second.tables.Places() {
			planned := n.tables.Places()[name]
			if len(p.Counters) != len(planned.Counters) || p.Table.Blocks != planned.Table.Blocks || p.Nodes != planned.Nodes {
				rt.Fatalf("service %s: %+v, planned was %+v", name, p, planned)
			}
		}
		if got := second.update(want); len(got) > 0 {
			rt.Fatalf("not finished: %+v", got)
		}
	})
}

func TestNothingLeaks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		for range rapid.IntRange(1, 6).Draw(rt, "updates") {
			n.update(anyWant(rt))
			n.checkOwners(rt)
		}
		n.update(&Want{})
		fresh := NewTables(testLimits)
		if got := n.tables.settle(); !reflect.DeepEqual(got.spaces(), fresh.spaces()) {
			rt.Fatalf("left: %+v", got)
		}
		if len(n.memory.returns.now()) > 0 {
			rt.Fatal("returns are left")
		}
		for key := range n.memory.vips.now() {
			if key != key.former() {
				rt.Fatalf("destination %v is left", key)
			}
		}
		for index, row := range n.memory.serverRows.now() {
			if row != 0 && len(n.tables.services) > 0 {
				rt.Fatalf("id at %d still names row %d", index, row)
			}
		}
	})
}

// Routers may send on what is for a VIP that is none any more.
func TestAnAddressThatWasAVIPIsRememberedUntilItIsOneAgain(t *testing.T) {
	n := newNode(t)
	both, one := largeFleet(2), largeFleet(1)
	gone := both.Services[1].VIP
	isFormer := func(tables *Tables) bool {
		vips, _ := tables.destinations()
		_, is := vips[vipKey(gone, 0, formerVIP)]
		return is
	}
	for i, step := range []struct {
		want   *Want
		former bool
	}{{one, false}, {both, false}, {one, true}, {one, true}, {both, false}, {&Want{}, true}} {
		n.update(step.want)
		restored, err := Restore(testLimits, n.memory)
		if err != nil {
			t.Fatal(err)
		}
		if isFormer(n.tables) != step.former || isFormer(restored) != step.former {
			t.Errorf("step %d: former is %v, restored %v, want %v", i, isFormer(n.tables), isFormer(restored), step.former)
		}
	}
}

func TestFormerVIPsTakeNoRoomFromServices(t *testing.T) {
	n := newNode(t)
	for i := range 100 {
		want := largeFleet(1)
		want.Services[0].VIP = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		for port := range uint16(model.MaxPorts) {
			want.Services[0].Ports = append(want.Services[0].Ports[:port], port+1)
		}
		before := len(n.memory.vips.now())
		n.update(want)
		if after := len(n.memory.vips.now()); before+after > int(testLimits.Destinations()) {
			t.Fatalf("%d destinations before and %d after do not fit in %d", before, after, testLimits.Destinations())
		}
	}
}

// checkOwners holds that no two services share a range, a row or a counter.
func (n *node) checkOwners(rt *rapid.T) {
	var ids, slots, rounds, blocks, rows, counters []span
	for _, p := range n.tables.services {
		ids, slots, rounds = append(ids, p.ids), append(slots, p.slots), append(rounds, p.rounds)
		blocks = append(blocks, p.connections)
		for id, row := range p.serverRow {
			rows, counters = append(rows, span{row, 1}), append(counters, span{p.counters[id], 1})
		}
	}
	for name, spans := range map[string][]span{"ids": ids, "slots": slots, "rounds": rounds, "blocks": blocks, "rows": rows, "counters": counters} {
		slices.SortFunc(spans, func(a, b span) int { return int(a.base) - int(b.base) })
		for i := range spans[:max(0, len(spans)-1)] {
			if spans[i].count > 0 && spans[i].base+spans[i].count > spans[i+1].base && spans[i+1].count > 0 {
				rt.Fatalf("%s: %v and %v overlap", name, spans[i], spans[i+1])
			}
		}
	}
}

func TestServersThatStayKeepTheirCounters(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		n.update(anyWant(rt))
		before := n.tables.views()
		cleared := maps.Clone(n.memory.cleared)
		n.update(anyWant(rt))
		for number, after := range n.tables.views().services {
			for id, counter := range after.counters {
				old, stayed := before.services[number].counters[id]
				if _, same := before.services[number]; !same || !stayed {
					continue
				}
				if was := before.services[number].image; was.leadsToNodes() != after.image.leadsToNodes() {
					if counter == old {
						rt.Fatalf("service %d: a node and a server of id %d both count at %d", number, id, old)
					}
					continue
				}
				if counter != old || n.memory.cleared[counter] != cleared[counter] {
					rt.Fatalf("service %d: server %d counted at %d, now at %d", number, id, old, counter)
				}
			}
		}
	})
}

// Promise: When tables are full, a change is refused and the old state stays.
func TestWithoutRoomNothingChanges(t *testing.T) {
	service := func(i, servers int, entries uint32) Service {
		var ids []uint16
		for id := range servers {
			ids = append(ids, uint16(id+1))
		}
		if entries > 0 {
			return tableService(fmt.Sprint(i), vipAt(i), 100, ids...)
		}
		return testService(fmt.Sprint(i), vipAt(i), ids...)
	}
	for name, limits := range map[string]Limits{
		"services": {Services: 1, Servers: 64, ServerIDs: 4096, Slots: 8192, Rounds: 4096},
		"servers":  {Services: 8, Servers: 4, ServerIDs: 4096, Slots: 8192, Rounds: 4096},
		"ids":      {Services: 8, Servers: 64, ServerIDs: 16, Slots: 8192, Rounds: 4096},
		"slots":    {Services: 8, Servers: 64, ServerIDs: 4096, Slots: 300, Rounds: 4096},
		"rounds":   {Services: 8, Servers: 64, ServerIDs: 4096, Slots: 8192, Rounds: 4},
		"entries":  {Services: 8, Servers: 64, ServerIDs: 4096, Slots: 8192, Rounds: 4096, Entries: 128},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{t, NewTables(limits), newMemory()}
			n.update(withPaths(&Want{Keys: testKeys(1), Services: []Service{service(0, 3, limits.Entries)}}))
			before := n.tables.clone()
			changes, err := n.tables.Update(withPaths(&Want{Keys: testKeys(1), Services: []Service{service(0, 3, limits.Entries), service(1, 3, limits.Entries)}}))
			if err == nil || changes != nil {
				t.Fatalf("found room: %v", err)
			}
			t.Log(err)
			if !reflect.DeepEqual(before, n.tables) {
				t.Fatalf("changed: %+v\n%+v", before, n.tables)
			}
			if changes := n.update(withPaths(&Want{Keys: testKeys(1), Services: []Service{service(0, 3, limits.Entries)}})); len(changes) > 0 {
				t.Fatalf("%+v", changes)
			}
		})
	}
}

func TestAnswersOfAllServersHaveRoom(t *testing.T) {
	n := &node{t, NewTables(Limits{Services: 8, Servers: 8, ServerIDs: 4096, Slots: 8192, Rounds: 4096}), newMemory()}
	s := testService("a", vipAt(0), 1, 2, 3)
	s.Return, s.Forward, s.Fallback, s.CookieBits = model.ReturnThrough, model.ForwardNAT, model.FallbackHash, model.ThroughBits
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	want.Services[0].Ports = []uint16{80, 443}
	n.update(want)
	if got := len(n.memory.returns.now()); got != 6 {
		t.Fatalf("%d sources of answers, want 6", got)
	}
	want.Services[0].Ports = []uint16{80, 443, 8080}
	if _, err := n.tables.Update(want); err == nil {
		t.Fatal("9 sources fit a table of 8")
	}
}

func TestAnotherNextHopCostsTwoChanges(t *testing.T) {
	n := newNode(t)
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("a", vipAt(0), 1, 2, 3), testService("b", vipAt(1), 11, 12)}})
	n.update(want)
	for i := range 50 { // more often than there are rows
		path := want.Paths[testServer(2).Address]
		path.DestinationMAC[0] = byte(4 + i)
		want.Paths[testServer(2).Address] = path
		changes := slices.DeleteFunc(n.update(want), func(c Change) bool { _, grace := c.(Grace); return grace })
		if len(changes) != 2 {
			t.Fatalf("%d changes: %+v", len(changes), changes)
		}
	}
}

func TestTheSameAgainChangesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		want := anyWant(rt)
		n.update(want)
		if changes := n.update(want); len(changes) > 0 {
			rt.Fatalf("%+v", changes)
		}
	})
}

func TestWhatRestsIsNotReusedBeforeAGracePeriod(t *testing.T) {
	n := newNode(t)
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("a", vipAt(0), 1)}})
	n.update(want)
	want.Services[0].Ports = []uint16{80, 443}
	want.Keys = testKeys(1, 2)
	n.update(want)
	n.update(want) // nothing to do: no grace period either
	want.Keys = testKeys(2)
	if _, ok := n.update(want)[0].(Grace); !ok {
		t.Fatal("wrote over what packets may still read")
	}
}

func TestRangesOfIDsGrow(t *testing.T) {
	n := newNode(t)
	var ids []uint16
	for _, id := range []uint16{1, 15, 16, 17, 255, 256, 1000} {
		ids = append(ids, id)
		n.update(withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("a", vipAt(0), ids...)}}))
		service := n.memory.Service(n.memory.ServiceRow(n.tables.Places()["a"].Number))
		for _, id := range ids {
			server := n.memory.Server(n.memory.ServerRow(service.IDsBase + uint32(id)))
			if uint32(id) >= service.IDsCount || netip.AddrFrom4([4]byte(server.Address[:4])) != testServer(id).Address {
				t.Fatalf("id %d of %d leads to %v", id, service.IDsCount, server.Address)
			}
		}
	}
}

// largeFleet has so many services of 16 servers each.
func largeFleet(services int) *Want {
	want := &Want{Keys: testKeys(1)}
	for i := range services {
		s := testService(fmt.Sprint(i), netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
		s.TableSlots = model.DefaultSlots
		for id := range uint16(16) {
			server := testServer(id + 1)
			server.Address = netip.AddrFrom4([4]byte{10, byte(i >> 4), byte(i << 4), byte(id)})
			s.Servers = append(s.Servers, server)
		}
		want.Services = append(want.Services, s)
	}
	return withPaths(want)
}

// planWork counts what is allocated in the steps of a fleet's life: the first plan, one with nothing new, another key, one server drained. It
// stands for the work that is done: time depends on what else the machine does.
func planWork(t *testing.T, services int) (bytes [4]uint64) {
	limits := Limits{Services: model.MaxServices, Servers: 1 << 17, ServerIDs: 1 << 20, Slots: 1 << 25, Rounds: 1 << 20}
	want, tables := largeFleet(services), NewTables(limits)
	for i, edit := range []func(){func() {}, func() {}, func() { want.Keys = testKeys(1, 2) }, func() { want.Services[77].Servers[3].State = model.StateDraining }} {
		edit()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := tables.Update(want); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		bytes[i] = after.TotalAlloc - before.TotalAlloc
	}
	return bytes
}

func TestTheLargestFleetIsPlannedInLinearWork(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a second and a gigabyte")
	}
	const times = 8
	small, large := planWork(t, model.MaxServices/times), planWork(t, model.MaxServices)
	for i, step := range []string{"first", "nothing new", "another key", "one drained"} {
		ratio := float64(large[i]) / float64(small[i])
		t.Logf("%s: %d kB for %d services, %d kB for %d: %.1f times", step, small[i]>>10, model.MaxServices/times, large[i]>>10, model.MaxServices, ratio)
		if ratio > 1.5*times { // were it quadratic, it would be the square
			t.Errorf("%s: %d times the services take %.1f times as much", step, times, ratio)
		}
	}
}

func TestAServerThatMovedToAnotherServiceAnswersForThatOne(t *testing.T) {
	n := newNode(t)
	through := func(name, vip string, servers ...model.Server) Service {
		s := Service{Service: model.Service{Name: name, VIP: netip.MustParseAddr(vip), Protocol: model.ProtocolTCP, Ports: []uint16{80},
			Affinity: model.AffinityCookie, CookieBits: 8, Forward: model.ForwardNAT, Return: model.ReturnThrough, TableSlots: 251, Servers: servers}}
		return s
	}
	moved := model.Server{Name: "s", Address: netip.MustParseAddr("10.0.0.1"), ID: 1, Weight: 1}
	for _, order := range []bool{false, true} { // the removed one must not win by its place in the file
		left, now := through("left", "198.51.100.1"), through("now", "198.51.100.2", moved)
		left.Removed = []model.Server{moved}
		want := Want{Services: []Service{left, now}}
		if order {
			want.Services = []Service{now, left}
		}
		n.update(&want)
		number := n.tables.Places()["now"].Number
		for _, value := range n.memory.returns.now() {
			if value != ReturnValue(number, 1) {
				t.Errorf("its answers are those of %d, not of service %d", value>>32, number)
			}
		}
	}
}
