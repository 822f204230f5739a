// What the benchmark of connection tables needs of a load balancer beyond what a daemon does: states to measure in.
package lb

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/plan"
)

// OpenBench loads a load balancer that nobody else sees. evict: its local table is an LRU, as in service, or else a hash map that is
// full when it is full.
func OpenBench(limits plan.Limits, evict bool) (*LB, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	spec, err := loadLb()
	if err != nil {
		return nil, fmt.Errorf("read the load balancer's program: %w", err)
	}
	sizeLBMaps(spec, limits)
	if !evict {
		spec.Maps["local_connections"].Type = ebpf.Hash
	}
	lb := &LB{}
	if err := spec.LoadAndAssign(&lb.objects, nil); err != nil {
		return nil, fmt.Errorf("load the load balancer's program: %w", err)
	}
	if err := lb.mapTables(); err != nil {
		return nil, errors.Join(err, lb.Close())
	}
	return lb, nil
}

// BenchMemory is what the kernel accounts to a map.
type BenchMemory struct {
	Map           string  `json:"map"`
	Entries       uint32  `json:"entries"`
	Bytes         uint64  `json:"bytes"`
	BytesPerEntry float64 `json:"bytes_per_entry"`
}

// BenchMemory returns the memory of the connection tables, or of the local table.
func (lb *LB) BenchMemory(local bool) (all []BenchMemory, err error) {
	o := &lb.objects
	maps := []*ebpf.Map{o.Connections, o.ConnectionBlocks, o.ConnectionAddresses, o.Assignments}
	if local {
		maps = []*ebpf.Map{o.LocalConnections}
	}
	for _, m := range maps {
		info, err := m.Info()
		if err != nil {
			return nil, fmt.Errorf("ask about %s: %w", m, err)
		}
		size, _ := info.Memlock()
		all = append(all, BenchMemory{Map: info.Name, Entries: m.MaxEntries(), Bytes: size,
			BytesPerEntry: float64(size) / float64(m.MaxEntries())})
	}
	return all, nil
}

// BenchForget makes the load balancer forget that connections of a service have been seen to end.
func (lb *LB) BenchForget(clients []netip.AddrPort, servicePort uint16, service uint32) error {
	type connectionKey struct {
		Client                  [16]byte
		ClientPort, ServicePort [2]byte
		Service                 uint32
	}
	for _, client := range clients {
		key := connectionKey{Client: plan.WireAddress(client.Addr()), Service: service}
		key.ClientPort[0], key.ClientPort[1] = byte(client.Port()>>8), byte(client.Port())
		key.ServicePort[0], key.ServicePort[1] = byte(servicePort>>8), byte(servicePort)
		if err := lb.objects.Closing.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forget that a connection has ended: %w", err)
		}
	}
	return nil
}

// BenchUnassign makes the load balancer forget at some places which entries it gave to connections whose servers do not use them yet.
func (lb *LB) BenchUnassign(places []uint32) error {
	if _, err := lb.objects.Assignments.BatchUpdate(places, make([]uint64, len(places)), nil); err != nil {
		return fmt.Errorf("forget which entries were given: %w", err)
	}
	return nil
}

// BenchTable is the connection table of a service whose partitions have 2^6 entries, while no packets come.
type BenchTable struct {
	all    *Connections
	table  Table
	blocks []lbConnectionBlock
	rest   lbConnectionBlock // of every block, as it was prepared
}

// BenchTable returns the table at place.
func (lb *LB) BenchTable(place plan.TablePlace) *BenchTable {
	return &BenchTable{all: lb.Connections(), table: Table{TablePlace: place}, blocks: lb.tables.connectionBlocks[place.Base:][:place.Blocks]}
}

// Connection returns what an entry says; ok: it is one connection's.
func (t *BenchTable) Connection(partition uint32, index uint8) (c Connection, ok bool) {
	ok = t.all.read(t.at(partition, int(index)), &t.table, connectionClock(), &c)
	return c, ok
}

func (t *BenchTable) at(partition uint32, index int) uint32 {
	return conntable.Entry(t.table.Base+partition, uint16(index), conntable.BlockBits)
}

// Prepare makes every partition one with so many free indices and so many of connections that have ended. The others are held. Packets
// may have changed only what was restored.
func (t *BenchTable) Prepare(free, ended int) {
	before := t.rest.Ended
	t.rest = lbConnectionBlock{Free: 1<<(1+free) - 2, Ended: (1<<ended - 1) << (1 + free)}
	for i := range t.blocks {
		t.blocks[i] = t.rest
		t.reset(uint32(i), before|t.rest.Ended)
	}
}

// Restore puts a partition back into the state that Prepare gave to all.
func (t *BenchTable) Restore(partition uint32) {
	b := &t.blocks[partition]
	t.reset(partition, (b.Free^t.rest.Free)|(b.Ended^t.rest.Ended))
	*b = t.rest
}

// reset writes the entries of some bits of a partition as they are at rest.
func (t *BenchTable) reset(partition uint32, changed uint64) {
	for ; changed != 0; changed &= changed - 1 {
		bit := bits.TrailingZeros64(changed)
		var c lbConnection
		if t.rest.Ended>>bit&1 != 0 {
			c.Owner.Word = uint64(ConnectionFinished) << ownerStateAt
		}
		t.all.entries[t.at(partition, bit)] = c
	}
}

// Reopen makes the connections of a partition that have ended open again.
func (t *BenchTable) Reopen(partition uint32) {
	b := &t.blocks[partition]
	for ; b.Ended != 0; b.Ended &= b.Ended - 1 {
		word := &t.all.entries[t.at(partition, bits.TrailingZeros64(b.Ended))].Owner.Word
		*word = *word&^uint64(ownerStateMask) | uint64(ConnectionOpen)<<ownerStateAt
	}
}
