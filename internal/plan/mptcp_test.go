package plan

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: A change is refused that gives `mptcp` more servers than there are destinations.
func TestWhereSubflowsJoinHasRoomOrIsRefused(t *testing.T) {
	n := &node{t, NewTables(Limits{Services: 1, Servers: 64, ServerIDs: 4096, Slots: 8192, Rounds: 4096}), newMemory()}
	var ids []uint16
	for id := range uint16(7) {
		ids = append(ids, id+1)
	}
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{testService("a", vipAt(0), ids...)}})
	want.Services[0].MPTCP = model.MPTCP{FirstPort: 40000, Ports: 100}
	n.update(want)
	for _, epochs := range [][]uint32{{1}, {1, 2}, {2}, {2, 3}} {
		want.Keys = testKeys(epochs...)
		n.update(want)
		if got, expected := len(n.memory.vips.now()), 2+7*len(epochs); got != expected { // the address, its port, and ports of each server
			t.Fatalf("%d destinations, want %d", got, expected)
		}
	}
	want.Keys = testKeys(3)
	n.update(want)
	want.Services[0].Servers = append(want.Services[0].Servers, testServer(8))
	before := n.tables.clone()
	if _, err := n.tables.Update(withPaths(want)); err == nil {
		t.Fatal("the next epoch's 18 destinations fit half of a table of 34")
	} else {
		t.Log(err)
	}
	if !reflect.DeepEqual(before, n.tables) {
		t.Fatal("what was refused has changed something")
	}
}

// The port of a server is its own, also when it drains or has been removed, and another's only with another id.
func TestSubflowsJoinAtAPortOfTheirServer(t *testing.T) {
	n := newNode(t)
	s := testService("a", vipAt(0), 1, 2)
	s.MPTCP = model.MPTCP{FirstPort: 40000, Ports: 100}
	s.Servers[1].State = model.StateDraining
	gone := testServer(3)
	s.Removed = append(s.Removed, gone)
	want := withPaths(&Want{Keys: testKeys(1), Services: []Service{s}})
	n.update(want)
	number := n.tables.services[0].number
	leads := func(epoch uint32, known bool) {
		t.Helper()
		keys := testKeys(epoch)
		ports := JoinPorts(&keys, &s.Service, epoch)
		for id := uint16(1); id <= 3; id++ {
			if got := n.memory.vips.now()[vipKey(s.VIP, ports(id), uint8(s.Protocol))]; known != (got == number|uint32(id)<<16) {
				t.Errorf("port %d of server %d in epoch %d leads to %#x", ports(id), id, epoch, got)
			}
		}
	}
	leads(1, true)
	leads(2, false)
	want.Keys = testKeys(1, 2)
	n.update(want)
	leads(1, true)
	leads(2, true)
	want.Keys = testKeys(2)
	n.update(want)
	leads(1, false)
	leads(2, true)
}

// Load balancers know the ports of both epochs before agents announce the new one, and as long as agents keep the old one; in whatever order they are told.
func TestAServerAnnouncesThePortOfTheCurrentEpochAndKeepsTheOther(t *testing.T) {
	s := testService("a", vipAt(0), 1, 2)
	s.MPTCP = model.MPTCP{FirstPort: 40000, Ports: 100}
	fleetOf := func(current uint32, epochs ...uint32) *model.Fleet {
		keys := testKeys(epochs...)
		keys.Current = current
		return &model.Fleet{Keys: keys, Services: []model.Service{s.Service}}
	}
	at := func(epoch uint32) netip.AddrPort {
		keys := testKeys(epoch)
		return netip.AddrPortFrom(s.VIP, JoinPorts(&keys, &s.Service, epoch)(2))
	}
	here, elsewhere := func(server *model.Server) bool { return server.ID == 2 }, func(*model.Server) bool { return false }
	var have map[VIPKey]AgentRow
	for _, step := range []struct {
		name  string
		fleet *model.Fleet
		mine  func(*model.Server) bool
		joins []Join
	}{
		{"one key", fleetOf(1, 1), here, []Join{{at(1), 1, JoinAnnounced}}},
		{"the next one is there", fleetOf(1, 1, 2), here, []Join{{at(1), 1, JoinAnnounced}, {at(2), 2, JoinKept}}},
		{"it is used", fleetOf(2, 1, 2), here, []Join{{at(1), 1, JoinKept}, {at(2), 2, JoinAnnounced}}},
		{"the host is no server any more", fleetOf(2, 1, 2), elsewhere, []Join{{at(1), 1, JoinLeft}, {at(2), 2, JoinLeft}}},
		{"the first key is dropped", fleetOf(2, 2), elsewhere, []Join{{at(2), 2, JoinLeft}}},
		{"a third one is used", fleetOf(3, 2, 3), elsewhere, []Join{{at(2), 2, JoinLeft}}},
		{"the second one is dropped", fleetOf(3, 3), elsewhere, nil},
	} {
		agent, err := NewAgent(step.fleet, step.mine)
		if err != nil {
			t.Fatal(err)
		}
		agent.Rekey(step.fleet, have)
		slices.SortFunc(agent.Joins, func(a, b Join) int { return cmp.Compare(a.Epoch, b.Epoch) })
		if !slices.Equal(agent.Joins, step.joins) {
			t.Errorf("%s: %v, not %v", step.name, agent.Joins, step.joins)
		}
		taken := 0
		for key, row := range agent.Served {
			if s.MPTCP.Joins(binary.BigEndian.Uint16(key.Port[:])) {
				taken++
				announced := slices.ContainsFunc(step.joins, func(j Join) bool {
					return j.Role == JoinAnnounced && key == vipKey(s.VIP, j.At.Port(), uint8(s.Protocol))
				})
				if row.Flags != 0 || row.ID != 2 || announced != (row.Withheld == 0) {
					t.Errorf("%s: the agent takes what is for a port as %+v", step.name, row)
				}
			}
		}
		if taken != len(step.joins) {
			t.Errorf("%s: the agent takes packets for %d ports, not %d", step.name, taken, len(step.joins))
		}
		have = agent.Served
	}
}

// Two epochs that are known at once never share a port, so none names two servers; and an epoch's ports tell nothing of the next one's.
func TestPortsOfTwoEpochsAreDistinct(t *testing.T) {
	for _, ports := range []uint16{2, 3, 7, 100, 1024, 25000} {
		s := testService("a", vipAt(0), 1)
		s.MPTCP = model.MPTCP{FirstPort: 40000, Ports: ports}
		keys, same := testKeys(6, 7, 8), 0
		seen := map[uint16]bool{}
		for _, epoch := range []uint32{6, 7} {
			port := JoinPorts(&keys, &s.Service, epoch)
			for id := uint16(1); id <= s.MPTCP.PerEpoch(); id++ {
				if p := port(id); seen[p] || !s.MPTCP.Joins(p) {
					t.Fatalf("%d ports: server %d has port %d in epoch %d, which is none or taken", ports, id, p, epoch)
				} else {
					seen[p] = true
				}
				if port(id) == JoinPorts(&keys, &s.Service, 8)(id) {
					same++
				}
			}
		}
		if ports > 100 && same > 20 { // one is by chance
			t.Errorf("%d ports: %d of %d are those of two epochs before", ports, same, ports/2)
		}
	}
}
