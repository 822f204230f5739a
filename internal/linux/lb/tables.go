// The tables in memory: changes are carried out here, and read back.
package lb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/linux/portranges"
	"github.com/ballast-lb/ballast/internal/model"
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
	destinations := false
	for _, change := range changes {
		if err := lb.apply(change); err != nil {
			return fmt.Errorf("apply %T: %w", change, err)
		}
		switch c := change.(type) {
		case plan.SetVIP:
			_, functions := c.Key.Functions()
			destinations = destinations || functions || lb.functions
		case plan.DeleteVIP:
			destinations = destinations || lb.functions
		}
	}
	if destinations {
		return lb.followPrefixes()
	}
	return nil
}

func (lb *LB) apply(change plan.Change) error {
	t, o := &lb.tables, &lb.objects
	switch c := change.(type) {
	case plan.WriteServer:
		t.servers[c.Row] = c.Value
	case plan.WriteService:
		if c.Value.Columns > 1 {
			if err := lb.objects.need(programsOfSYNs); err != nil {
				return err
			}
		}
		t.services[c.Row] = c.Value
	case plan.WriteSlots:
		copy(t.slots[c.Base:], c.Slots)
	case plan.WriteRounds:
		copy(t.rounds[c.Base:], c.Words)
	case plan.WriteQUIC:
		for i := range c.Configs {
			if err := o.QuicConfigs.Put(c.Group*uint32(len(c.Configs))+uint32(i), &c.Configs[i]); err != nil {
				return err
			}
		}
	case plan.WriteSession:
		if err := lb.objects.need(programsOfSessions); err != nil {
			return err
		}
		return o.SessionConfigs.Put(c.Group, c.Config)
	case plan.WriteAllowed:
		for _, prefix := range c.Prefixes {
			if err := o.AllowedSources.Put(plan.AllowedAt(c.List, prefix), uint32(0)); err != nil {
				return err
			}
		}
	case plan.DeleteAllowed:
		for _, prefix := range c.Prefixes {
			if err := o.AllowedSources.Delete(plan.AllowedAt(c.List, prefix)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
	case plan.WriteReplicas:
		t.replicas.configs[c.Row] = *c.Value
	case plan.PointReplicas:
		return lb.pointReplicas(c.Row)
	case plan.SetTurn:
		atomic.StoreUint64(&t.rounds[c.Index], c.Word)
	case plan.PointID:
		atomic.StoreUint32(&t.serverRows[c.Index].value, c.Row)
	case plan.PointService:
		lb.writeLoads(c.Row)
		atomic.StoreUint32(&t.serviceRows[c.Number].value, c.Row)
		_, err := lb.publishRow(c.Number)
		return err
	case plan.SetVIP:
		if c.Key.Last != 0 {
			return lb.ranges.Set(c.Key, c.Number)
		}
		return lb.setVIP(c.Key.PortKey, c.Number)
	case plan.DeleteVIP:
		if c.Key.Last != 0 {
			return lb.ranges.Delete(c.Key)
		}
		return lb.deleteVIP(c.Key.PortKey)
	case plan.SetReturn:
		if err := o.Returns.Put(c.Key, c.Value); err != nil {
			return err
		}
		return lb.switchThrough()
	case plan.DeleteReturn:
		return o.Returns.Delete(c.Key)
	case plan.ClearCounter:
		return lb.clearCounter(c.Index)
	case plan.RetireCounter:
		return lb.retireCounter(c.Service, c.Index)
	case plan.CountOpen:
		return lb.countOpen(c.Index)
	case plan.ClearService:
		return lb.clearService(c.Number)
	case plan.ClearTable:
		t.connections.Clear(c)
	case plan.Grace:
		return Grace()
	default:
		panic(fmt.Sprintf("lb: unknown change %T", change))
	}
	return nil
}

// setVIP makes packets to a destination find its service, or the list of its ranges.
func (lb *LB) setVIP(key plan.PortKey, number uint32) error {
	if err := lb.objects.Vips.Put(key, number); err != nil {
		return err
	}
	return lb.fillVIPSlot(key, number)
}

func (lb *LB) deleteVIP(key plan.PortKey) error {
	lb.clearVIPSlot(key)
	return lb.objects.Vips.Delete(key)
}

// adoptVIPs takes over the destinations of an earlier process.
func (lb *LB) adoptVIPs() error {
	vips, err := readMap[plan.PortKey, uint32](lb.objects.Vips)
	if err != nil {
		return err
	}
	lb.ranges, err = portranges.New(lb.objects.PortRanges, lb.objects.PortRangesUsed, vips, func(key plan.PortKey, list uint32) error {
		if list == 0 {
			return lb.deleteVIP(key)
		}
		return lb.setVIP(key, list)
	}, Grace, lb.fastRow)
	if err != nil {
		return err
	}
	return lb.adoptVIPSlots(vips)
}

// vipSlot is struct vip_slot.
type vipSlot struct {
	destination  uint64
	number, fast uint32
}

// vipSlot returns where a destination would lie and the word that stands for it there; nil where packets do not look.
func (lb *LB) vipSlot(key plan.PortKey) (slot *vipSlot, destination uint64) {
	const golden = 0x9e3779b97f4a7c15
	word := [8]byte{4: key.Protocol, 1, key.Port[0], key.Port[1]}
	copy(word[:4], key.Address[:])
	if key.IPv6 != 0 {
		if key.Protocol != uint8(model.ProtocolTCP) && key.Protocol != uint8(model.ProtocolUDP) {
			return nil, 0
		}
		mixed := binary.LittleEndian.Uint64(key.Address[:]) + binary.LittleEndian.Uint64(key.Address[8:])*golden
		binary.LittleEndian.PutUint32(word[:], uint32(mixed>>32))
		word[5] = 2
	}
	destination = binary.LittleEndian.Uint64(word[:])
	return &lb.tables.vipSlots[destination*golden>>48], destination
}

// fillVIPSlot lets packets find a destination that is in vips faster, unless its slot is another's.
func (lb *LB) fillVIPSlot(key plan.PortKey, number uint32) error {
	if isJoin(number) { // the slot may be that of a port of the service until now
		lb.clearVIPSlot(key)
		return nil
	}
	slot, destination := lb.vipSlot(key)
	if slot == nil {
		return nil
	}
	switch atomic.LoadUint64(&slot.destination) {
	case destination:
	case 0:
		if lb.displaced { // a packet may have seen the former owner here and not its number yet
			if err := Grace(); err != nil {
				return err
			}
			lb.displaced = false
		}
		defer atomic.StoreUint64(&slot.destination, destination)
	default:
		return lb.displaceAddress(key)
	}
	atomic.StoreUint32(&slot.number, number)
	number = serviceOfVIP(number)
	atomic.StoreUint32(&slot.fast, lb.fastRow(number))
	if number != 0 && !isList(number) && !slices.Contains(lb.vipSlotsOf[number], slot) {
		lb.vipSlotsOf[number] = append(lb.vipSlotsOf[number], slot)
	}
	return nil
}

// displaceAddress tells packets to look for addresses in vips if the key of one, of IPv4, has no slot.
func (lb *LB) displaceAddress(key plan.PortKey) error {
	if key.IPv6 != 0 || key.Protocol != 0 {
		return nil
	}
	return lb.objects.AddressesDisplaced.Set(uint32(1))
}

// isJoin reports whether a destination is where subflows join a server (mptcp). Those lie in vips alone.
func isJoin(number uint32) bool { return serviceOfVIP(number) >= 1<<16 }

// serviceOfVIP is the number of the service that a destination leads to; 0: it is the address itself.
func serviceOfVIP(number uint32) uint32 { return number &^ plan.VIPRejects }

// isList reports whether a destination is the ports that have no key of their own.
func isList(number uint32) bool { return !isJoin(number) && number&portranges.Flag != 0 }

// fastRow is what packets go by, from a destination of the service directly to its row; 0: no fast path has it.
func (lb *LB) fastRow(number uint32) uint32 {
	const rowShift, others, through, replicated = 4, 1 << 31, 1 << 30, 1 << 29 // FAST_ROW_SHIFT, FAST_OTHERS, FAST_THROUGH, FAST_REPLICATED
	if isList(number) {
		return 0
	}
	row := lb.ServiceRow(number)
	s := lb.Service(row)
	affinity, forward := model.Affinity(s.Affinity), model.Forward(s.Forward)
	if s.Flags&plan.ServiceGuarded != 0 && !affinity.Keyed() { // what it carries does not say that its connection has begun
		return 0
	}
	if s.Predecessors > 0 && affinity == model.AffinityLocal { // what the table does not know is the predecessor's
		return 0
	}
	if row == 0 || affinity == model.AffinityReplicated && s.Flags&(plan.ServiceReplicated|plan.ServiceThrough|plan.ServiceFunctions) != plan.ServiceReplicated {
		return 0
	}
	if affinity == model.AffinityReplicated {
		return row<<rowShift | replicated
	}
	word := row<<rowShift | uint32(s.CookieBits-1)&(1<<rowShift-1)
	if affinity != model.AffinityCookie || forward == model.ForwardGUE || forward == model.ForwardL2 {
		word |= others
	}
	if s.Flags&plan.ServiceThrough != 0 {
		word |= through
	}
	return word
}

// publishRow makes the slots of a service name its row, and reports whether any did not.
func (lb *LB) publishRow(number uint32) (changed bool, err error) {
	lb.vipSlotsOf[number] = slices.DeleteFunc(lb.vipSlotsOf[number], func(slot *vipSlot) bool { return slot.number != number })
	for _, slot := range lb.vipSlotsOf[number] {
		row := lb.fastRow(number)
		changed = atomic.SwapUint32(&slot.fast, row) != row || changed
	}
	listed, err := lb.ranges.Refresh(number)
	return changed || listed, err
}

// adoptVIPSlots finds the slots that an earlier process filled, and completes what it may not have come to: vips says what is.
func (lb *LB) adoptVIPSlots(vips map[plan.PortKey]uint32) error {
	changed, ofLists := false, map[*vipSlot]bool{}
	for key, number := range vips {
		slot, destination := lb.vipSlot(key)
		if slot != nil && slot.destination != destination {
			if err := lb.displaceAddress(key); err != nil {
				return err
			}
		}
		if slot == nil || slot.destination != destination || isJoin(number) {
			continue
		}
		changed = atomic.SwapUint32(&slot.number, number) != number || changed
		if ofLists[slot] = isList(number); ofLists[slot] {
			continue
		}
		lb.vipSlotsOf[serviceOfVIP(number)] = append(lb.vipSlotsOf[serviceOfVIP(number)], slot)
	}
	for i := range lb.tables.vipSlots {
		if slot := &lb.tables.vipSlots[i]; slot.destination != 0 && !ofLists[slot] && !slices.Contains(lb.vipSlotsOf[serviceOfVIP(slot.number)], slot) {
			atomic.StoreUint64(&slot.destination, 0) // it is in vips no more
			changed = true
		}
	}
	numbers := map[uint32]bool{}
	for number := range lb.vipSlotsOf {
		numbers[number] = true
	}
	lb.ranges.All(func(_ plan.VIPKey, number uint32) { numbers[number] = true })
	for number := range numbers {
		published, err := lb.publishRow(number)
		if err != nil {
			return err
		}
		changed = published || changed
	}
	if !changed {
		return nil
	}
	return Grace()
}

func (lb *LB) clearVIPSlot(key plan.PortKey) {
	if slot, destination := lb.vipSlot(key); slot != nil && atomic.CompareAndSwapUint64(&slot.destination, destination, 0) {
		lb.displaced = true
	}
}

// Grace waits until every program that was running has ended: the command is defined as a full RCU grace period.
func Grace() error {
	const membarrierGlobal = 1
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 {
		return fmt.Errorf("wait for running programs to end: %w", errno)
	}
	return nil
}

func (lb *LB) clearCounter(index uint32) error {
	if !lb.adopted && index >= lb.counters { // of maps that nobody has counted in
		lb.counters = index + 1
		return nil
	}
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
	if err := lb.objects.TimestampSearches.Put(number, make([]uint64, ebpf.MustPossibleCPU())); err != nil {
		return err
	}
	return lb.clearHellos(number)
}

// The methods below make LB a plan.Reader.

// VIPs returns the published destinations.
func (lb *LB) VIPs() (map[plan.VIPKey]uint32, error) {
	keys, err := readMap[plan.PortKey, uint32](lb.objects.Vips)
	if err != nil {
		return nil, err
	}
	vips := make(map[plan.VIPKey]uint32, len(keys))
	for key, number := range keys {
		if !isList(number) {
			vips[plan.VIPKey{PortKey: key}] = number
		}
	}
	lb.ranges.All(func(key plan.VIPKey, number uint32) { vips[key] = number })
	return vips, nil
}

// Returns returns whose answers are recognised.
func (lb *LB) Returns() (map[plan.ReturnKey]uint64, error) {
	return readMap[plan.ReturnKey, uint64](lb.objects.Returns)
}

// Allowed returns the prefixes of clients, by list.
func (lb *LB) Allowed() (map[uint32][]netip.Prefix, error) {
	entries, err := readMap[plan.AllowedKey, uint32](lb.objects.AllowedSources)
	lists := map[uint32][]netip.Prefix{}
	for key := range entries {
		list, prefix := key.Allowed()
		lists[list] = append(lists[list], prefix)
	}
	return lists, err
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
func (lb *LB) Server(row uint32) plan.ServerRow { return lb.tables.servers[row] }

// Slots returns a range of slots.
func (lb *LB) Slots(base, count uint32) []history.Column { return lb.tables.slots[base:][:count] }

// Rounds returns a copy of a range of turns.
func (lb *LB) Rounds(base, count uint32) []uint64 {
	return slices.Clone(lb.tables.rounds[base:][:count])
}

// Session returns how connections of a group begin.
func (lb *LB) Session(group uint32) (*plan.SessionConfig, error) {
	config := new(plan.SessionConfig)
	return config, lb.objects.SessionConfigs.Lookup(group, config)
}

// QUIC returns a group of configs of connection ids.
func (lb *LB) QUIC(group uint32) (*plan.QUICConfigs, error) {
	configs := new(plan.QUICConfigs)
	for i := range configs {
		if err := lb.objects.QuicConfigs.Lookup(group*uint32(len(configs))+uint32(i), &configs[i]); err != nil {
			return nil, err
		}
	}
	return configs, nil
}
