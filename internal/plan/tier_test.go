package plan

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/model"
)

func firstTier(ids ...uint16) Tier {
	tier := Tier{Tier: model.TierFirst}
	for _, id := range ids {
		tier.Second = append(tier.Second, testNode(id))
	}
	return tier
}

// leadsTo is where packets with an id in their cookie go; the zero Addr: nowhere.
func (n *node) leadsTo(name string, id uint16) netip.Addr {
	row := n.row(name)
	if uint32(id) >= row.IDsCount {
		return netip.Addr{}
	}
	at := n.memory.ServerRow(row.IDsBase + uint32(id))
	if at == 0 {
		return netip.Addr{}
	}
	server := n.memory.Server(at)
	if server.Flags&ServerIPv6 != 0 {
		return netip.AddrFrom16(server.Address)
	}
	return netip.AddrFrom4([4]byte(server.Address[:4]))
}

// owners are the ids that what has no cookie is placed on.
func (n *node) owners(name string) []uint16 {
	ids := map[uint16]bool{}
	for _, slot := range n.memory.Slots(n.row(name).SlotsBase, n.row(name).SlotsCount) {
		ids[slot.Owners[0]] = true
	}
	delete(ids, 0)
	return slices.Sorted(maps.Keys(ids))
}

func TestTheFirstTierIsAStatelessLoadBalancerOfNodes(t *testing.T) {
	n := newNode(t)
	want := wantOf(tableService("a", vipAt(0), 256, 1, 2, 3, 40))
	want.Services[0].Dispatch, want.Services[0].Forward, want.Services[0].Fallback = model.DispatchLeast, model.ForwardGUE, model.FallbackSecondChance
	want.Services[0].Removed = []model.Server{testServer(5)}
	want.Tier = firstTier(1, 2, 6)
	want.Tier.Second[2].Address = netip.MustParseAddr("2001:db8::6")
	n.update(withPaths(want))
	row := n.row("a")
	if model.Affinity(row.Affinity) != model.AffinityCookie || model.Dispatch(row.Dispatch) != model.DispatchMaglev ||
		model.Forward(row.Forward) != model.ForwardIPIP || row.Flags != ServiceFirstTier {
		t.Errorf("%+v", row)
	}
	if row.IDBits != 3 || row.IDShift != 12 || row.CookieBits != 16 || row.TableBlocks != 0 || row.RoundsCount != 0 {
		t.Errorf("%+v", row)
	}
	for id := range uint16(64) {
		want := map[uint16]netip.Addr{1: testNode(1).Address, 2: testNode(2).Address, 6: netip.MustParseAddr("2001:db8::6")}[id]
		if got := n.leadsTo("a", id); got != want {
			t.Errorf("id %d leads to %v, want %v", id, got, want)
		}
	}
	if got := n.owners("a"); !slices.Equal(got, []uint16{1, 2, 6}) {
		t.Errorf("new connections go to %v", got)
	}
	place := n.tables.Places()["a"]
	if !place.Nodes || place.Table != (TablePlace{}) || len(place.Counters) != 3 {
		t.Errorf("%+v", place)
	}
}

func TestTheSecondTierKeepsTheTable(t *testing.T) {
	n := newNode(t)
	want := wantOf(tableService("a", vipAt(0), 256, 1, 2))
	want.Tier = Tier{Tier: model.TierSecond, ID: 3}
	n.update(want)
	row := n.row("a")
	if row.Node != 3 || row.Flags&ServiceFirstTier != 0 || row.TableBlocks != 4 || row.IDBits != 6 || row.IDShift != 0 || n.leadsTo("a", 2) != testServer(2).Address {
		t.Errorf("%+v", row)
	}
	if n.tables.Places()["a"].Nodes {
		t.Error("its servers count as nodes")
	}
}

func TestOtherServicesDoNotKnowOfTiers(t *testing.T) {
	for _, tier := range []Tier{firstTier(1, 2), {Tier: model.TierSecond, ID: 2}} {
		plain, tiered := newNode(t), newNode(t)
		want := wantOf(testService("a", vipAt(0), 1, 2, 3))
		plain.update(want)
		want.Tier = tier
		tiered.update(withPaths(want))
		if plain.row("a") != tiered.row("a") || tiered.tables.Places()["a"].Nodes {
			t.Errorf("%+v\n%+v", plain.row("a"), tiered.row("a"))
		}
	}
}

func TestDrainingNodesKeepTheirConnectionsAndDownAndOffOnesGetNothing(t *testing.T) {
	n := newNode(t)
	want := wantOf(tableService("a", vipAt(0), 256, 1, 2))
	want.Tier = firstTier(1, 2, 3, 4)
	n.update(withPaths(want))
	want.Tier.Second[0].State, want.Tier.Second[1].State = model.StateDraining, model.StateOff
	want.Tier.Down = map[uint16]bool{3: true}
	n.update(want)
	if got := n.owners("a"); !slices.Equal(got, []uint16{4}) {
		t.Errorf("new connections go to %v", got)
	}
	for id, leads := range map[uint16]bool{1: true, 2: false, 3: false, 4: true} {
		if got := n.leadsTo("a", id); got.IsValid() != leads {
			t.Errorf("connections of node %d go to %v", id, got)
		}
	}
	want.Tier.Down = nil
	n.update(want)
	if got := n.leadsTo("a", 3); got != testNode(3).Address {
		t.Errorf("a node that is back gets its connections at %v", got)
	}
}

// One node's death must not move what the others have: that is what Maglev is for.
func TestANodesDeathMovesFewConnectionsOfOthers(t *testing.T) {
	n := newNode(t)
	want := wantOf(tableService("a", vipAt(0), 256, 1))
	want.Services[0].TableSlots = model.DefaultSlots
	want.Tier = firstTier(1, 2, 3, 4)
	n.update(withPaths(want))
	slots := func() []history.Column { return n.memory.Slots(n.row("a").SlotsBase, n.row("a").SlotsCount) }
	before := slots()
	want.Tier.Down = map[uint16]bool{2: true}
	n.update(want)
	moved := 0
	for i, slot := range slots() {
		if before[i].Owners[0] != 2 && before[i].Owners[0] != slot.Owners[0] {
			moved++
		}
	}
	if moved > len(before)/20 {
		t.Errorf("%d of %d slots moved from one living node to another", moved, len(before))
	}
}

// A node that changes its tier while packets pass: TestAPacketSeesAServiceAsItWasOrAsItWillBe draws that, too. Here, that ids of both kinds
// have nothing in common.
func TestIDsOfNodesAndServersAreNeverMixed(t *testing.T) {
	n := newNode(t)
	s := tableService("a", vipAt(0), 256, 1, 2, 3)
	s.Fallback = model.FallbackSecondChance
	var last Place
	for i, tier := range []Tier{{}, firstTier(1, 2), {Tier: model.TierSecond, ID: 1}, firstTier(2, 3), {}} {
		want := wantOf(s)
		want.Tier = tier
		cleared := maps.Clone(n.memory.cleared)
		n.update(withPaths(want))
		place := n.tables.Places()["a"]
		for id, counter := range place.Counters {
			if last.Counters[id] == counter && i > 0 && last.Nodes != place.Nodes || n.memory.cleared[counter] == cleared[counter] && last.Nodes != place.Nodes {
				t.Errorf("step %d: id %d goes on counting at %d", i, id, counter)
			}
		}
		for _, slot := range n.memory.Slots(n.row("a").SlotsBase, n.row("a").SlotsCount) {
			for _, id := range slot.Owners[1:] {
				if id != 0 {
					t.Fatalf("step %d: a slot's previous owner is %d of the other kind", i, id)
				}
			}
		}
		n.update(withPaths(want)) // rests become free
		last = place
	}
}

func TestARestartedNodeMayHaveAnotherTier(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		want := anyWant(rt)
		n.update(want)
		restored, err := Restore(testLimits, n.memory)
		if err != nil {
			rt.Fatal(err)
		}
		n.tables = restored
		want.Tier = anyTier(rt)
		n.update(withPaths(want))
		for i := range want.Services {
			s := &want.Services[i]
			for id := range n.tables.Places()[s.Name].Counters {
				leads, address := n.leadsTo(s.Name, id), netip.Addr{}
				if s.SendsToNodes(want.Tier.Tier) {
					address = testNode(id).Address
				} else if j := slices.IndexFunc(slices.Concat(s.Removed, s.Servers), func(server model.Server) bool { return server.ID == id }); j >= 0 {
					address = slices.Concat(s.Removed, s.Servers)[j].Address
				}
				if leads != address {
					rt.Fatalf("service %s: id %d leads to %v, want %v", s.Name, id, leads, address)
				}
			}
		}
	})
}
