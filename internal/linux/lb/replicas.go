// Replicated entries, the ring, and messages between load balancers (bpf/lb/state/replicas.h).
package lb

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/ballast-lb/ballast/internal/algo/ring"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/plan"
)

// replicaTables are the maps of replicated connections, as memory.
type replicaTables struct {
	now              []replicaCurrent
	configs          []plan.ReplicaConfig
	views            []replicaView
	entries, answers []replicas.Bucket
	batch            []replicaInsertion
}

// replicaCurrent is struct replica_current.
type replicaCurrent struct {
	config, view, period, ring uint32
	incarnation                uint64
}

// replicaChain is struct replica_chain.
type replicaChain struct {
	node   [plan.ReplicaChain]uint16
	since  uint32
	length uint32
}

// replicaSlot is struct replica_slot.
type replicaSlot struct {
	boundary     uint32
	below, above uint16
}

// replicaView is struct replica_view.
type replicaView struct {
	version, hopLimit uint32
	chains            [plan.ReplicaNodes]replicaChain
	slots             [replicaSlots]replicaSlot
}

// Implementation constants: those of bpf/lb/state/replicas.h.
const (
	replicaSlots     = 4096
	replicaSlotWidth = 1 << 32 / replicaSlots // positions
)

func (lb *LB) mapReplicas() error {
	o, t := &lb.objects, &lb.tables
	return errors.Join(mapTable(t, o.ReplicaNow, &t.replicas.now), mapTable(t, o.ReplicaConfigs, &t.replicas.configs), mapTable(t, o.ReplicaViews, &t.replicas.views),
		mapTable(t, o.ReplicaEntries, &t.replicas.entries), mapTable(t, o.ReplicaAnswers, &t.replicas.answers),
		mapTable(t, o.ReplicaBatch, &t.replicas.batch))
}

// ReplicaTables returns the entries of chains that this node is in, and the other answers that it has. One caller at a time puts entries in.
func (lb *LB) ReplicaTables() (entries, answers *replicas.Table) {
	table := func(buckets []replicas.Bucket, into uint32) *replicas.Table {
		return &replicas.Table{Buckets: buckets, Put: func(entries []replicas.Entry) error { return lb.putReplicas(into, entries) }, Grace: Grace}
	}
	return table(lb.tables.replicas.entries, 0), table(lb.tables.replicas.answers, 1)
}

// replicaInsertion is struct replica_insertion.
type replicaInsertion struct {
	key, word    uint64
	into, result uint32
}

// Results of putting in an entry: enum replica_insert.
const (
	replicaInserted = iota
	replicaExists
	replicaFull
	replicaBusy
)

// replicaTries is how often entries are put in again that packets were in the way of, each time for long.
const replicaTries = 1000

func (lb *LB) putReplicas(into uint32, entries []replicas.Entry) error {
	if err := lb.objects.need(programsOfReplicas); err != nil {
		return err
	}
	insert, batch := lb.objects.program("replica_insert"), lb.tables.replicas.batch
	for len(entries) > 0 {
		some := entries[:min(len(entries), len(batch)-1)]
		entries = entries[len(some):]
		for i := range some {
			batch[i] = replicaInsertion{key: some[i].Key, word: some[i].Word(), into: into}
		}
		batch[len(some)].key = 0
		for try := 0; ; try++ {
			if _, err := insert.Run(&lb.runInsert); err != nil {
				return fmt.Errorf("put entries in: %w", err)
			}
			busy := slices.ContainsFunc(batch[:len(some)], func(one replicaInsertion) bool { return one.result == replicaBusy })
			if !busy {
				break
			}
			if try == replicaTries {
				return errors.New("put entries in: packets are in the way again and again")
			}
		}
		for i := range some {
			if some[i].Owner = 0; batch[i].result == replicaInserted || batch[i].result == replicaExists {
				some[i] = replicas.Read(some[i].Key, batch[i].word)
			}
		}
	}
	return nil
}

// ReplicaView is a ring as of a version; the zero value: there is none.
type ReplicaView struct {
	Version  uint32
	HopLimit uint8
	List     ring.List
	Chains   [][]uint16 // by arc of List, head first
	Since    []uint32   // by arc: the version since which the chain is what it is
}

// PublishView makes packets go by a view, once all that came before have left the data path.
func (lb *LB) PublishView(v *ReplicaView) error {
	now := &lb.tables.replicas.now[0]
	row := uint32(0)
	if v.Version != 0 {
		row = 3 - max(atomic.LoadUint32(&now.view), 1) // 0, 1 -> 2; 2 -> 1
		if err := lb.tables.replicas.views[row].fill(v); err != nil {
			return err
		}
	}
	atomic.StoreUint32(&now.view, row)
	return Grace()
}

func (view *replicaView) fill(v *ReplicaView) error {
	if len(v.List) > plan.ReplicaNodes || len(v.List) == 0 {
		return fmt.Errorf("a ring of %d nodes: it has 1 to %d", len(v.List), plan.ReplicaNodes)
	}
	*view = replicaView{version: v.Version, hopLimit: uint32(v.HopLimit)}
	for arc, chain := range v.Chains {
		to := &view.chains[arc]
		to.since, to.length = v.Since[arc], uint32(len(chain))
		if len(chain) > len(to.node) || len(chain) == 0 {
			return fmt.Errorf("a chain of %d nodes: it has 1 to %d", len(chain), len(to.node))
		}
		copy(to.node[:], chain)
	}
	for i := range view.slots {
		low := ring.Position(i) * replicaSlotWidth
		slot := &view.slots[i]
		slot.above = uint16(v.List.Arc(low + replicaSlotWidth - 1))
		slot.below = uint16(v.List.Arc(low))
		if slot.above == slot.below {
			continue
		}
		slot.boundary = uint32(v.List[slot.above].At)
		if below := v.List.Arc(ring.Position(slot.boundary - 1)); below != int(slot.below) {
			return fmt.Errorf("nodes %d and %d are too close together on the ring", v.List[slot.above].Node, v.List[below].Node)
		}
	}
	return nil
}

// SetRing says whether there is a ring: without a view for the moment, what must be asked is dropped then, and sent again. Else it goes by placement.
func (lb *LB) SetRing(exists bool) {
	ring := uint32(0)
	if exists {
		ring = 1
	}
	atomic.StoreUint32(&lb.tables.replicas.now[0].ring, ring)
}

// ViewVersion is that of the view that packets go by; 0: none.
func (lb *LB) ViewVersion() uint32 {
	row := atomic.LoadUint32(&lb.tables.replicas.now[0].view)
	return lb.tables.replicas.views[row].version
}

// ReplicaPeriod is the deletion interval that packets write down.
func (lb *LB) ReplicaPeriod() uint32 { return atomic.LoadUint32(&lb.tables.replicas.now[0].period) }

// SetReplicaPeriod begins another deletion interval.
func (lb *LB) SetReplicaPeriod(period uint32) {
	atomic.StoreUint32(&lb.tables.replicas.now[0].period, period)
}

// Incarnation tells whether the entries are those of before: it is 0 in maps that are new.
func (lb *LB) Incarnation() uint64 {
	return atomic.LoadUint64(&lb.tables.replicas.now[0].incarnation)
}

// SetIncarnation sets it.
func (lb *LB) SetIncarnation(incarnation uint64) {
	atomic.StoreUint64(&lb.tables.replicas.now[0].incarnation, incarnation)
}

// ReplicaCapacity is how many entries each of the two tables is for.
func (lb *LB) ReplicaCapacity() uint64 { return uint64(len(lb.tables.replicas.entries)) * 17 / 4 }

// ForgetConnection lowers the estimate of open connections of the server that counts under index by one: an entry has expired.
func (lb *LB) ForgetConnection(index uint32) { lb.addOpen(index, -1) }

// ReplicaConflicts is how many answers were unlike what was known, since this process began.
func (lb *LB) ReplicaConflicts() (n uint64, err error) {
	return n, lb.objects.ReplicaConflicts.Get(&n)
}

// pointReplicas makes packets go by another config. It is done before the program takes messages for it.
func (lb *LB) pointReplicas(row uint32) error {
	atomic.StoreUint32(&lb.tables.replicas.now[0].config, row)
	return lb.enableReplicas()
}

// enableReplicas sets the switches, which are this process's own, as the pinned maps need them.
func (lb *LB) enableReplicas() error {
	_, config := lb.Replicas()
	enabled := uint32(0)
	if config.Self != 0 {
		enabled = 1
		if err := lb.objects.need(programsOfReplicas); err != nil {
			return err
		}
	}
	return errors.Join(lb.objects.ReplicaAddress.Set(config.Address), lb.objects.ReplicaEnabled.Set(enabled))
}

// Replicas returns the config that packets go by, and its row; the zero values: none.
func (lb *LB) Replicas() (row uint32, config *plan.ReplicaConfig) {
	row = atomic.LoadUint32(&lb.tables.replicas.now[0].config)
	return row, &lb.tables.replicas.configs[row]
}
