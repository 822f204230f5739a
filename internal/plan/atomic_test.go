package plan

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ballast-lb/ballast/internal/algo/history"
)

// view is a service as it may be seen.
type view struct {
	image    image
	counters map[uint16]uint32
}

// views are the services by number, and where destinations lead to: numbers, and the ids of subflows.
type views struct {
	services map[uint32]view
	numbers  map[VIPKey]uint32
}

func (t *Tables) views() views {
	all := views{map[uint32]view{}, map[VIPKey]uint32{}}
	for _, p := range t.services {
		all.services[p.number] = view{p.image, maps.Clone(p.counters)}
		for vip, other := range p.others {
			image := p.image
			image.row = p.image.others[vip]
			all.services[other.number] = view{image, maps.Clone(p.counters)}
		}
		for _, key := range p.image.vips {
			all.numbers[key] = p.numberAt(key.VIP())
		}
		for key, id := range p.image.joins {
			all.numbers[key] = p.number | uint32(id)<<joinShift
		}
	}
	return all
}

// A packet reads one table after the other, each a little later, while changes go on. What it finds must be one service as it was
// or as it will be; of single servers, the way to them may be old or new.
//
// Promise: A packet sees a service before or after a change, never a part of it.
func TestAPacketSeesAServiceAsItWasOrAsItWillBe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := newNode(t)
		for range 4 {
			before := n.tables.views()
			first := n.memory.step
			graces := []int{first}
			for _, change := range n.updateAny(rt) {
				if _, ok := change.(Grace); ok {
					graces = append(graces, n.memory.step)
				}
				n.memory.apply(change)
			}
			graces = append(graces, n.memory.step)
			after := n.tables.views()
			keys := maps.Clone(before.numbers)
			maps.Copy(keys, after.numbers)
			for _, key := range sortedKeys(keys, vipOrder) {
				for i := range graces[1:] {
					for range 6 {
						n.readAs(rt, key, before, after, graces[i], graces[i+1])
					}
				}
			}
			n.memory.forget()
		}
	})
}

func (n *node) updateAny(rt *rapid.T) []Change {
	changes, err := n.tables.Update(anyWant(rt))
	if err != nil {
		rt.Fatal(err)
	}
	return changes
}

// readAs is one packet whose life lies between two grace periods.
func (n *node) readAs(rt *rapid.T, key VIPKey, allBefore, allAfter views, from, to int) {
	m := n.memory
	step := from
	later := func() int {
		step = rapid.IntRange(step, to).Draw(rt, "step")
		return step
	}
	number, found := m.vips.at(later(), key)
	was, is := allBefore.numbers[key], allAfter.numbers[key]
	if number != was && number != is {
		rt.Fatalf("%v leads to %d, neither %d nor %d", key, number, was, is)
	}
	if !found {
		return
	}
	number, join := number&(1<<joinShift-1), uint16(number>>joinShift)
	before, after := allBefore.services[number], allAfter.services[number]
	row, _ := m.serviceRows.at(later(), number)
	service, ok := m.services.at(later(), row)
	blocks := rangeAt(m.blocks, step, service.TableBase, service.TableBlocks)
	if row == 0 || !ok || service.VIPNumber != number || join == 0 && service.VIP != key.Address {
		rt.Fatalf("%v leads to service %d, row %d, which says %d at %v", key, number, row, service.Number, service.VIP)
	}
	old, new := before, after // of the servers: those of a service whose address this is not yet, or no more, change as it does
	if _, known := allBefore.services[number]; !known {
		old = allBefore.services[service.Number]
	}
	if _, known := allAfter.services[number]; !known {
		new = allAfter.services[service.Number]
	}
	if join != 0 {
		at := later()
		if row, _ := m.serverRows.at(at, service.IDsBase+uint32(join)); row == 0 || uint32(join) >= service.IDsCount {
			if _, is := new.image.servers[join]; is {
				rt.Fatalf("%v leads to server %d, which stays and is not found", key, join)
			}
			return // the packet is dropped: its server is forgotten
		}
		n.readServer(rt, service, join, old, new, at, later())
		return
	}
	slots := rangeAt(m.slots, later(), service.SlotsBase, service.SlotsCount*uint32(service.Columns))
	rounds := rangeAt(m.rounds, later(), service.RoundsBase, service.RoundsCount)
	plain := service.unplaced(number)
	allowed := sorted(m.allowedAt(later())[service.Allow])
	matches := func(v view) bool {
		return v.image.row == plain && slices.Equal(v.image.slots, slots) && slices.Equal(v.image.allow, allowed) &&
			slices.Equal(steady(plain, withCounters(v.image.rounds, v.image.row.Classes, v.counters)), steady(plain, rounds))
	}
	if !matches(before) && !matches(after) {
		rt.Fatalf("%v: a service that is neither the old nor the new one: %+v", key, plain)
	}
	for _, id := range idsIn(slots, steady(plain, rounds)) {
		n.readServer(rt, service, id, old, new, later(), later())
	}
	for _, block := range blocks {
		if block.cleared == 0 || block.indexBits != service.IndexBits {
			rt.Fatalf("%v: a table that was not made empty for partitions of 2^%d: %+v", key, service.IndexBits, blocks)
		}
	}
	if !slices.Equal(rangeAt(m.blocks, later(), service.TableBase, service.TableBlocks), blocks) {
		rt.Fatalf("%v: its table was made empty under a packet", key)
	}
	if byClasses(plain.Dispatch) {
		word := func(i uint32) uint64 { value, _ := m.rounds.at(later(), service.RoundsBase+i); return value }
		chosen := draw(service, word, rapid.Uint32().Draw(rt, "random"))
		if service.Members > 0 && !slices.Contains(steady(plain, rounds), chosen) {
			rt.Fatalf("%v: %x was chosen of %x", key, chosen, rounds)
		}
	}
}

// steady is the part of a range that does not change word by word: of classes, the turns of everybody.
func steady(row ServiceRow, words []uint64) []uint64 {
	if byClasses(row.Dispatch) {
		return words[row.Classes:][:row.Members]
	}
	return words
}

// draw is bpf/lb/dispatch/classes.h. word reads what is there now.
func draw(row ServiceRow, word func(i uint32) uint64, random uint32) uint64 {
	classes, members := uint32(row.Classes), uint32(row.Members)
	region, count := uint32(0), members
	if members == 0 {
		return 0
	}
	for i := range classes {
		class := word(i)
		if class>>counterShift == 0 {
			continue
		}
		region, count = classes-i, uint32(class>>counterShift)
		if random <= uint32(class) {
			break
		}
	}
	return word(classes + region*members + uint32(uint64(random*0x9e3779b1)*uint64(count)>>32))
}

func (n *node) readServer(rt *rapid.T, service ServiceRow, id uint16, before, after view, at, then int) {
	if uint32(id) >= service.IDsCount {
		rt.Fatalf("id %d outside of %d", id, service.IDsCount)
	}
	row, _ := n.memory.serverRows.at(at, service.IDsBase+uint32(id))
	server, _ := n.memory.servers.at(then, row)
	counter := server.Counter
	server.Counter = 0
	old, was := before.image.servers[id]
	new, is := after.image.servers[id]
	if row == 0 || !(was && server == old && counter == before.counters[id]) && !(is && server == new && counter == after.counters[id]) {
		rt.Fatalf("id %d leads to row %d: %+v, counter %d, is neither %+v nor %+v", id, row, server, counter, old, new)
	}
}

// idsIn are the first few ids that the tables name.
func idsIn(slots []history.Column, rounds []uint64) []uint16 {
	ids := map[uint16]bool{}
	for _, slot := range slots {
		for _, id := range slot.Owners {
			ids[id] = true
		}
	}
	for _, word := range rounds {
		ids[turnID(word)] = true
	}
	delete(ids, 0)
	return slices.Sorted(maps.Keys(ids))
}
