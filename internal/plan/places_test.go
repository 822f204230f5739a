package plan

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/model"
)

// Promise: By source, services of one VIP whose servers have the same addresses and weights place every client at one address, whatever ids the
// servers have and whoever has left.
func TestServicesWithTheSameServersHaveTheSameTable(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dispatch := rapid.SampledFrom([]model.Dispatch{model.DispatchMaglev, model.DispatchHash, model.DispatchWCMP}).Draw(rt, "dispatch")
		count := rapid.IntRange(1, 40).Draw(rt, "servers")
		weights := rapid.SliceOfN(rapid.Uint16Range(1, 5), count, count).Draw(rt, "weights")
		places := func(name string, protocol model.Protocol) (at []netip.Addr) {
			s := testService(name, vipAt(0))
			s.Protocol, s.Dispatch, s.Placement.Over = protocol, dispatch, model.PlaceSource
			ids := rapid.Permutation(func() (ids []uint16) {
				for id := range uint16(count + 20) {
					ids = append(ids, id+1)
				}
				return ids
			}()).Draw(rt, name)
			for i, at := range rapid.Permutation(func() (at []int) {
				for i := range count {
					at = append(at, i)
				}
				return at
			}()).Draw(rt, name+"'s order") {
				server := testServer(ids[i])
				server.Address, server.Weight = netip.AddrFrom4([4]byte{10, 7, 0, byte(at + 1)}), weights[at]
				s.Servers = append(s.Servers, server)
			}
			for i := range rapid.IntRange(0, 5).Draw(rt, "removed") {
				server := testServer(ids[count+i])
				server.Address = netip.AddrFrom4([4]byte{10, 8, byte(rapid.IntRange(0, 255).Draw(rt, "left")), byte(i)})
				s.Removed = append(s.Removed, server)
			}
			s.ApplyDefaults()
			n := newNode(t)
			n.update(withPaths(&Want{Keys: testKeys(1), Services: []Service{s}}))
			row := n.memory.Service(n.memory.ServiceRow(n.tables.Places()[name].Number))
			for _, column := range n.memory.Slots(row.SlotsBase, row.SlotsCount) {
				for i := range s.Servers {
					if s.Servers[i].ID == column.Owners[0] {
						at = append(at, s.Servers[i].Address)
					}
				}
			}
			return at
		}
		web, dns := places("web", model.ProtocolTCP), places("dns", model.ProtocolUDP)
		if len(web) != len(dns) || len(web) == 0 {
			rt.Fatalf("%d and %d slots have an owner", len(web), len(dns))
		}
		for i := range web {
			if web[i] != dns[i] {
				rt.Fatalf("%s: slot %d is %s's and %s's", dispatch, i, web[i], dns[i])
			}
		}
	})
}
