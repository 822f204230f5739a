package datapath

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/plan"
)

// mapTable makes an array map's values visible as a slice.
func mapTable[T any](t *lbTables, m *ebpf.Map, table *[]T) error {
	var value T
	stride := (uintptr(m.ValueSize()) + 7) &^ 7
	memory, err := unix.Mmap(m.FD(), 0, int(stride)*int(m.MaxEntries()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s into memory: %w", m, err)
	}
	t.unmap = append(t.unmap, memory)
	if stride != unsafe.Sizeof(value) {
		return fmt.Errorf("map %s: elements of %d bytes cannot be addressed as %d", m, stride, unsafe.Sizeof(value))
	}
	*table = unsafe.Slice((*T)(unsafe.Pointer(&memory[0])), m.MaxEntries())
	return nil
}

// Apply carries out changes in order. An error leaves the changes before it done: packets see a consistent state, and the
// caller must Restore its plan before it goes on.
func (lb *LB) Apply(changes []plan.Change) error {
	for _, change := range changes {
		if err := lb.apply(change); err != nil {
			return fmt.Errorf("apply %T: %w", change, err)
		}
	}
	return nil
}

func (lb *LB) apply(change plan.Change) error {
	t, o := &lb.tables, &lb.objects
	switch c := change.(type) {
	case plan.WriteServer:
		t.servers[c.Row].value = c.Value
	case plan.WriteService:
		t.services[c.Row] = c.Value
	case plan.WriteSlots:
		copy(t.slots[c.Base:], c.Slots)
	case plan.WriteRounds:
		for i, id := range c.IDs {
			t.rounds[c.Base+uint32(i)].value = id
		}
	case plan.PointID:
		atomic.StoreUint32(&t.serverRows[c.Index].value, c.Row)
	case plan.PointService:
		atomic.StoreUint32(&t.serviceRows[c.Number].value, c.Row)
	case plan.SetVIP:
		vips, key := lb.vips(c.Key)
		return vips.Put(key, c.Number)
	case plan.DeleteVIP:
		vips, key := lb.vips(c.Key)
		return vips.Delete(key)
	case plan.SetReturn:
		if err := o.Returns.Put(c.Key, c.Value); err != nil {
			return err
		}
		return o.ThroughEnabled.Set(uint32(1))
	case plan.DeleteReturn:
		return o.Returns.Delete(c.Key)
	case plan.ClearCounter:
		return lb.clearCounter(c.Index)
	case plan.ClearService:
		return lb.clearService(c.Number)
	case plan.Grace:
		return grace()
	default:
		panic(fmt.Sprintf("datapath: unknown change %T", change))
	}
	return nil
}

// grace waits until every program that was running has ended: the command is defined as a full RCU grace period.
func grace() error {
	const membarrierGlobal = 1
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		return fmt.Errorf("wait for running programs to end: %w", errno)
	}
	return nil
}

func (lb *LB) clearCounter(index uint32) error {
	atomic.StoreInt32(&lb.tables.loads[index].value, 0)
	if err := lb.objects.Clocks.Put(index, uint64(0)); err != nil {
		return err
	}
	return lb.objects.ServerCounters.Put(index, make([]lbServerTraffic, ebpf.MustPossibleCPU()))
}

func (lb *LB) clearService(number uint32) error {
	zero := make([]lbTraffic, ebpf.MustPossibleCPU())
	for verdict := range uint32(lbVerdictVERDICTS) {
		if err := lb.objects.VerdictCounters.Put(number*uint32(lbVerdictVERDICTS)+verdict, zero); err != nil {
			return err
		}
	}
	return nil
}

// The methods below make LB a plan.Reader.

// VIPs returns the published destinations.
func (lb *LB) VIPs() (map[plan.VIPKey]uint32, error) {
	vips, err := readMap[plan.VIPKey, uint32](lb.objects.Vips)
	if err != nil {
		return nil, err
	}
	ipv4, err := readMap[vipKeyIPv4, uint32](lb.objects.VipsIpv4)
	for key, number := range ipv4 {
		long := plan.VIPKey{Port: key.Port, Protocol: key.Protocol}
		copy(long.Address[:], key.Address[:])
		vips[long] = number
	}
	return vips, err
}

// vipKeyIPv4 is struct vip_key_ipv4.
type vipKeyIPv4 struct {
	Address  [4]byte
	Port     [2]byte
	Protocol uint8
	_        uint8
}

// vips returns the map that has a destination, and its key there.
func (lb *LB) vips(key plan.VIPKey) (*ebpf.Map, any) {
	if key.IPv6 != 0 {
		return lb.objects.Vips, key
	}
	return lb.objects.VipsIpv4, vipKeyIPv4{[4]byte(key.Address[:]), key.Port, key.Protocol, 0}
}

// Returns returns whose answers are recognised.
func (lb *LB) Returns() (map[plan.ReturnKey]uint64, error) {
	return readMap[plan.ReturnKey, uint64](lb.objects.Returns)
}

func readMap[K comparable, V any](m *ebpf.Map) (map[K]V, error) {
	var key K
	var value V
	out := map[K]V{}
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		out[key] = value
	}
	return out, entries.Err()
}

// ServiceRow returns the row that a service number names.
func (lb *LB) ServiceRow(number uint32) uint32 {
	return atomic.LoadUint32(&lb.tables.serviceRows[number].value)
}

// Service returns a service row.
func (lb *LB) Service(row uint32) plan.ServiceRow { return lb.tables.services[row] }

// ServerRow returns the row that an id's index names.
func (lb *LB) ServerRow(index uint32) uint32 {
	return atomic.LoadUint32(&lb.tables.serverRows[index].value)
}

// Server returns a server row.
func (lb *LB) Server(row uint32) plan.ServerRow { return lb.tables.servers[row].value }

// Slots returns a range of slots.
func (lb *LB) Slots(base, count uint32) []plan.SlotRow { return lb.tables.slots[base:][:count] }

// Rounds returns a range of turns.
func (lb *LB) Rounds(base, count uint32) []uint16 {
	ids := make([]uint16, count)
	for i := range ids {
		ids[i] = lb.tables.rounds[base+uint32(i)].value
	}
	return ids
}
