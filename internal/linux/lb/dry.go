// Dry runs: what the program would do with a packet, without doing it.
package lb

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/ringbuf"
)

// A dry run is made by a second instance of the loaded programs. Every map is in one of these lists.
var (
	// Packets only read these: they are the maps of the first instance.
	dryShared = []string{
		"vips", "vip_slots", "port_ranges", "service_rows", "services", "server_rows", "servers", "slots", "rounds", "returns",
		"allowed_sources", "suspects", "quic_configs", "session_configs", "function_prefixes",
		"replica_now", "replica_configs", "replica_views", ".rodata", ".rodata.cst16",
	}
	// Packets read and write entries of these: a small map takes a copy of each entry that one looks up, when it does so first.
	dryCopied = []string{
		"connections", "connection_blocks", "connection_addresses", "assignments", "starting", "clocks", "server_loads", "least_loaded", "turns",
		"source_limits", "sessions_begun", "replica_entries", "replica_answers",
	}
	// Entries of these are known by the connection: user space copies them, as a look-up by a packet would make an entry live longer.
	dryKeyed = []string{"local_connections", "closing"}
	// These are copied as a whole.
	dryWhole = []string{"answer_debts", ".bss", ".data"}
	// Nothing that packets find in these matters to a packet without a ClientHello: they have room for one element.
	dryUnread = []string{
		"verdict_counters", "timestamp_searches", "session_outcomes", "server_counters", "replica_batch", "predecessor_flows",
		"holds", "session_sets", "session_others",
	}
	// Nothing is left in these from one packet to the next, or they begin empty: no agent runs behind a dry run, and no fragment comes before.
	dryOwn = []string{
		"draws", "kept_turns", "quic_works", "session_works", "session_result", "session_shows", "received_answer", "replica_works", "deferred_lists",
		"fragmented", "fragments", "traced_packets", "trace_filters", "trace_events", "ended_connections", "tail_calls", "agent_program",
	}
	// Programs that a frame may come to. It is traced, so that it takes no fast path.
	dryPrograms = []string{"lb", "lb_slow", "lb_slow_tier", "lb_slow_peer", "lb_ask", "lb_message", "lb_function", "lb_function_peer", "lb_session"}
)

// Implementation constants of dry runs.
const (
	dryEntries   = 64 // copies of one map that a packet may need
	dryLargest   = 64 << 10
	dryEvents    = 4096 // bytes, a page
	dryHeadroom  = 256  // bytes that a frame may grow by
	liveMap      = "live_"
	copiedLookup = "look_up_copy_of_"
)

// dry is the second instance; nil maps: it is not loaded.
type dry struct {
	mutex      sync.Mutex
	loaded     []string // names of programs
	collection *ebpf.Collection
	events     *ringbuf.Reader
}

// DryOutcome is what would become of a packet.
type DryOutcome struct {
	TraceEvent
	Action uint32 // enum xdp_action (linux/bpf.h)
	Frame  []byte // as it would leave
}

// Actions of a DryOutcome.
const (
	ActionDrop     = 1
	ActionPass     = 2
	ActionTransmit = 3 // by the device that it came in by
	ActionRedirect = 4 // by another device
)

// DryRun tells what the program would do with a packet that comes in by a device now: as often as it is asked, each time as if the packet were
// the first, but with the next turn and the next draw of the policy. It changes no map that packets use, and sends nothing. It takes about
// 0.1 ms, the first time as long as the verifier needs for all loaded programs. The entries of one connection are copied one by one, while
// packets may change them.
func (lb *LB) DryRun(packet MadeUp, device *net.Interface, times int) (outcomes []DryOutcome, err error) {
	frame := packet.frame(device.HardwareAddr)
	d := &lb.dry
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.load(&lb.objects); err != nil {
		return nil, fmt.Errorf("load the program for a dry run: %w", err)
	}
	keyed, err := lb.keyedOf(&packet)
	if err == nil {
		err = d.forget("turns")
	}
	for err == nil && len(outcomes) < times {
		var outcome DryOutcome
		outcome, err = d.run(&lb.objects, frame, device.Index, keyed)
		outcomes = append(outcomes, outcome)
	}
	if err != nil {
		return nil, fmt.Errorf("dry run: %w", err)
	}
	return outcomes, nil
}

func (d *dry) run(live *objects, frame []byte, ifindex int, keyed map[string]map[lbConnectionKey][]byte) (outcome DryOutcome, err error) {
	for _, name := range slices.Concat(dryCopied, dryKeyed, []string{"fragments"}) {
		if name != "turns" { // the next packet gets the next one
			err = errors.Join(err, d.forget(name))
		}
	}
	for name, entries := range keyed {
		for key, value := range entries {
			err = errors.Join(err, d.collection.Maps[name].Put(key, value))
		}
	}
	for _, name := range dryWhole {
		err = errors.Join(err, copyWhole(d.collection.Maps[name], live.all[name]))
	}
	err = errors.Join(err, d.collection.Maps["trace_filters"].Put(uint32(0), lbTraceFilter{Budget: 1}), d.collection.Variables["trace_enabled"].Set(uint32(1)),
		d.collection.Variables["log_ended"].Set(uint32(0)), drain(d.events))
	if err != nil {
		return outcome, err
	}
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+dryHeadroom), Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(ifindex)}}
	if outcome.Action, err = d.collection.Programs["lb"].Run(&options); err != nil {
		return outcome, err
	}
	outcome.Frame = options.DataOut
	d.events.SetDeadline(time.Unix(1, 0)) // it is there already
	record, err := d.events.Read()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return outcome, errors.New("the program did not say what became of the packet")
	}
	if err == nil {
		outcome.TraceEvent, err = readEvent(record.RawSample)
	}
	return outcome, err
}

// xdpContext is struct xdp_md (linux/bpf.h).
type xdpContext struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// load loads the programs that the first instance has, unless they are.
func (d *dry) load(live *objects) error {
	live.guard.Lock()
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(live.programs)), func(name string) bool { return !slices.Contains(dryPrograms, name) })
	live.guard.Unlock()
	if slices.Equal(names, d.loaded) {
		return nil
	}
	if err := d.close(); err != nil {
		return err
	}
	spec, err := live.copySpec()
	if err == nil {
		spec, err = drySpec(spec, names)
	}
	if err != nil {
		return err
	}
	shared := map[string]*ebpf.Map{}
	for _, name := range dryShared {
		shared[name] = live.all[name]
	}
	for _, name := range dryCopied {
		shared[liveMap+name] = live.all[name]
	}
	maps.DeleteFunc(shared, func(name string, _ *ebpf.Map) bool { return spec.Maps[name] == nil })
	collection, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared})
	if err != nil {
		return err
	}
	if d.events, err = ringbuf.NewReader(collection.Maps["trace_events"]); err != nil {
		collection.Close()
		return err
	}
	d.collection, d.loaded = collection, names
	return nil
}

// drySpec makes the second instance of the first: the same instructions, but what looks up an entry of dryCopied calls a function that copies it.
func drySpec(spec *ebpf.CollectionSpec, names []string) (*ebpf.CollectionSpec, error) {
	other := func(name string) bool { return !slices.Contains(names, name) }
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return other(name) })
	calls := spec.Maps["tail_calls"]
	calls.Contents = slices.DeleteFunc(calls.Contents, func(call ebpf.MapKV) bool { return other(call.Value.(string)) })
	for name, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
		switch {
		case slices.Contains(dryCopied, name):
			original := m.Copy()
			spec.Maps[liveMap+name] = original
			m.Type, m.Flags, m.MaxEntries = ebpf.Hash, 0, dryEntries
			m.Key, m.Value = nil, nil // they were an array's
		case slices.Contains(dryKeyed, name), name == "fragments":
			m.Type, m.Flags, m.MaxEntries = ebpf.Hash, 0, dryEntries
		case slices.Contains(dryUnread, name):
			m.MaxEntries = 1
		case name == "trace_events", name == "ended_connections":
			m.MaxEntries = dryEvents
		}
	}
	for _, program := range spec.Programs {
		if err := divertLookups(program); err != nil {
			return nil, err
		}
	}
	return spec, nil
}

// divertLookups makes a program look up copies.
func divertLookups(program *ebpf.ProgramSpec) error {
	copied := map[string]asm.Instructions{}
	for i := range program.Instructions {
		call := &program.Instructions[i]
		if !call.IsBuiltinCall() || call.Constant != int64(asm.FnMapLookupElem) {
			continue
		}
		name, err := lookedUp(program.Instructions[:i])
		if err != nil {
			return fmt.Errorf("%s, instruction %d: %w", program.Name, i, err)
		}
		if !slices.Contains(dryCopied, name) {
			continue
		}
		if copied[name] == nil {
			copied[name] = lookUpCopy(name, program.Instructions[0].Source()) // the verifier wants a line for each function
		}
		*call = asm.Call.Label(copiedLookup + name).WithMetadata(call.Metadata)
		*call = call.WithReference(copiedLookup + name)
	}
	for _, name := range slices.Sorted(maps.Keys(copied)) {
		program.Instructions = append(program.Instructions, copied[name]...)
	}
	return nil
}

// lookedUp is the map that the instructions before a call give it.
func lookedUp(before asm.Instructions) (string, error) {
	for _, i := range slices.Backward(before) {
		if i.Dst == asm.R1 && i.IsLoadFromMap() {
			return i.Reference(), nil
		}
		class := i.OpCode.Class()
		if class.IsJump() || i.Symbol() != "" || i.Dst == asm.R1 && (class.IsLoad() || class.IsALU()) {
			break
		}
	}
	return "", errors.New("which map is looked up is not known")
}

// lookUpCopy is a function of a map, as bpf_map_lookup_elem: it finds the copy of an entry, which it makes if there is none.
func lookUpCopy(name string, line fmt.Stringer) asm.Instructions {
	load := func(name string) asm.Instruction { return asm.LoadMapPtr(asm.R1, 0).WithReference(name) }
	from := func(name string) asm.Instructions {
		return asm.Instructions{load(name), asm.Mov.Reg(asm.R2, asm.R6), asm.FnMapLookupElem.Call()}
	}
	found := copiedLookup + name + "_found"
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R2)}
	code = append(code, from(name)...)
	code = append(code, asm.JNE.Imm(asm.R0, 0, found))
	code = append(code, from(liveMap+name)...)
	code = append(code, asm.JEq.Imm(asm.R0, 0, found), load(name),
		asm.Mov.Reg(asm.R2, asm.R6), asm.Mov.Reg(asm.R3, asm.R0), asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call())
	code = append(code, from(name)...)
	code = append(code, asm.Return().WithSymbol(found))
	pointer := &btf.Pointer{Target: &btf.Void{}}
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(copiedLookup+name).WithSource(line), &btf.Func{
		Name: copiedLookup + name, Linkage: btf.StaticFunc,
		Type: &btf.FuncProto{Return: pointer, Params: []btf.FuncParam{{Name: "map", Type: pointer}, {Name: "key", Type: pointer}}},
	})
	return code
}

// forget empties a map of copies.
func (d *dry) forget(name string) error {
	m := d.collection.Maps[name]
	if m == nil {
		return nil
	}
	for {
		key, err := m.NextKeyBytes(nil)
		if err != nil || key == nil {
			return err
		}
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
}

// copyWhole copies an array.
func copyWhole(to, from *ebpf.Map) error {
	for i := range from.MaxEntries() {
		if from.Type() == ebpf.PerCPUArray {
			var value [][]byte
			if err := from.Lookup(i, &value); err != nil {
				return err
			}
			if err := to.Put(i, value); err != nil {
				return err
			}
			continue
		}
		value, err := from.LookupBytes(i)
		if err != nil {
			return err
		}
		if err := to.Put(i, value); err != nil {
			return err
		}
	}
	return nil
}

func (d *dry) close() error {
	if d.collection == nil {
		return nil
	}
	err := d.events.Close()
	d.collection.Close()
	d.collection, d.loaded, d.events = nil, nil, nil
	return err
}
