package bench

import (
	"fmt"
	"net/netip"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/lab/bench/wrapper"
)

// Implementation constants
const (
	changesBatch = 2048 // flows between two restorations
	scarce       = 8    // entries that may be taken of each partition's 63, where few are; in a batch no partition needs more
)

// tableChanges are what changes a connection table: the packet with which a connection gets an entry, and the one with which it ends.
func (r *tableRig) tableChanges(size *tableSize) []subject {
	t := size.changing
	change := func(name, verdict string, free, ended int) subject {
		s := r.stateful(name, t, segmentACK)
		s.verdict, s.check = verdict, t.checkAdded
		s.prepare = func() error { t.Prepare(free, ended); return nil }
		s.changes = &changes{batches: func() func() []uint32 { return t.fresh(size.flows) }, restore: func(batch []uint32) error {
			return r.restore(t, batch)
		}}
		return s
	}
	full := change("table-full", "forwarded_table_full", 0, 0)
	full.check, full.changes = checkCookie, nil
	end := r.established(size, "table-end", segmentFIN)
	end.changes = &changes{batches: known(size.flows), restore: func(batch []uint32) error {
		for _, flow := range batch {
			size.established.Reopen(size.established.partition(flow))
		}
		return r.lb.BenchForget(clients(batch), servicePort, size.established.place.Number)
	}}
	plainEnd := r.stateless("cookie-end", segmentFIN)
	plainEnd.changes = &changes{batches: known(size.flows), restore: func(batch []uint32) error {
		return r.lb.BenchForget(clients(batch), servicePort, plainEnd.place.Number)
	}}
	return []subject{change("table-add", "forwarded_added", conntable.BlockEntries-1, 0), change("table-add-scarce", "forwarded_added", scarce, 0),
		change("table-reuse", "forwarded_added", 0, scarce), full, plainEnd, end}
}

// localChanges are what changes a table by 5-tuple: the SYN and the RST. What one of them did, the other undoes.
func (r *tableRig) localChanges(size *tableSize, t *localTable) []subject {
	add := t.segment(t.name+"-add", segmentSYN, "forwarded_new")
	end := t.segment(t.name+"-end", segmentRST, "forwarded_by_local_table")
	if t.full {
		add.name = t.name + "-full"
		if !t.lru {
			add.verdict = "forwarded_table_full"
		}
		add.changes = &changes{batches: unknown(size.flows)}
		return []subject{add}
	}
	undoneBy := func(s subject) func(batch []uint32) error {
		return func(batch []uint32) error {
			if err := r.sendAll(s, batch); err != nil {
				return fmt.Errorf("put everything back by %s: %w", s.name, err)
			}
			return t.BenchForget(clients(batch), servicePort, t.place.Number)
		}
	}
	undoAdd, undoEnd := undoneBy(end), undoneBy(add)
	add.changes = &changes{batches: unknown(size.flows), restore: undoAdd}
	end.changes = &changes{batches: known(size.flows), restore: undoEnd}
	return []subject{add, end}
}

// restore makes a prepared table forget a batch of flows.
func (r *tableRig) restore(t *connTable, batch []uint32) error {
	places := make([]uint32, len(batch))
	for i, flow := range batch {
		t.Restore(t.partition(flow))
		places[i] = t.assignment(flow)
	}
	return r.lb.BenchUnassign(places)
}

// checkAdded checks that the packet tells the server an index, that the index is that of the flow's entry, and that nothing else about
// the packet is new.
func (t *connTable) checkAdded(output []byte, s sent) error {
	index, without := s.given(output, t.idBits)
	c, ok := t.Connection(t.partition(s.flow), index)
	if index == 0 || !ok || c.Client != wrapper.Client(s.flow) || c.Server != s.server() || c.State != conntable.StateNew || c.Packets != 1 {
		return fmt.Errorf("flow %d of %s to server %d was given index %d, whose entry is %+v", s.flow, wrapper.Client(s.flow), s.server(), index, c)
	}
	return checkCookie(without, s)
}

func (t *connTable) hash(flow uint32) uint64 {
	return conntable.Hash(t.key.K0, t.key.K1, wrapper.Client(flow), servicePort)
}

func (t *connTable) partition(flow uint32) uint32 {
	return conntable.PartitionOf(t.hash(flow), conntable.Partitions(t.blocks, conntable.BlockBits))
}

func (t *connTable) assignment(flow uint32) uint32 {
	place, _ := conntable.Assignment(t.hash(flow), 0)
	return place
}

// fresh supplies batches of flows from first on that all get entries: no two of a batch need one place until their servers know their
// indices, and none of the table's partitions is asked for more than a few.
func (t *connTable) fresh(first uint32) func() []uint32 {
	flow := first
	return func() (batch []uint32) {
		places, partitions := map[uint32]bool{}, map[uint32]int{}
		for len(batch) < changesBatch {
			place, partition := t.assignment(flow), t.partition(flow)
			if !places[place] && partitions[partition] < scarce {
				places[place] = true
				partitions[partition]++
				batch = append(batch, flow)
			}
			if flow++; flow == MaxFlows {
				flow = first
			}
		}
		return batch
	}
}

// known supplies batches of the first flows, in turn; unknown of those behind them, and when they are used up of all.
func known(flows uint32) func() func() []uint32 {
	return func() func() []uint32 { return inTurn(0, flows/changesBatch*changesBatch) }
}

func unknown(flows uint32) func() func() []uint32 {
	return func() func() []uint32 { return inTurn((flows+changesBatch-1)/changesBatch*changesBatch, MaxFlows) }
}

// inTurn supplies batches of flows from first on, again and again from 0 on, below end.
func inTurn(first, end uint32) func() []uint32 {
	return func() []uint32 {
		if first >= end {
			first = 0
		}
		first += changesBatch
		return sequence(first-changesBatch, changesBatch)
	}
}

func sequence(first, count uint32) []uint32 {
	flows := make([]uint32, count)
	for i := range flows {
		flows[i] = first + uint32(i)
	}
	return flows
}

func clients(flows []uint32) []netip.AddrPort {
	out := make([]netip.AddrPort, len(flows))
	for i, flow := range flows {
		out[i] = wrapper.Client(flow)
	}
	return out
}
