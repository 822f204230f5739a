// Package lb loads, fills, attaches and reads the program of a load balancer (bpf/lb.bpf.c).
package lb

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/algo/aestables"
	"github.com/ballast-lb/ballast/internal/algo/choice"
	"github.com/ballast-lb/ballast/internal/algo/conntable"
	"github.com/ballast-lb/ballast/internal/algo/history"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/connections"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/portranges"
	"github.com/ballast-lb/ballast/internal/linux/replicas"
	"github.com/ballast-lb/ballast/internal/plan"
)

//go:generate go run ./choices ../../../bpf/wire/choices.h
//go:generate go tool bpf2go -target bpfel -type verdict -type session_outcome -type service -type server -type column -type vip_key -type return_key -type allowed_key -type trace_event -type session_shown -type session_set -type traffic -type server_traffic -type connection -type connection_block -type connection_address -type connection_state -type connection_flag -type ended_connection -type suspect_key -type deferred_list -type quic_config -type session_config -type session_begun -type replica_config -type replica_view -type replica_current -type replica_bucket -type peer_message lb ../../../bpf/lb.bpf.c

// Layout names the shape of the pinned maps. A change of any map's key, value or meaning needs a new number: a process of
// another layout then fills maps of its own and switches the program over, instead of misreading these.
const Layout = "lb-v24"

// LB is the load balancer's program with its maps. Methods that change tables are for one caller at a time. What concerns devices and pins (attach.go), and
// what only reads or counts, is safe for concurrent use.
type LB struct {
	objects    objects
	attached   attachments
	tables     lbTables
	adopted    bool
	counters   uint32                // those from here on were never counted in, unless adopted
	vipSlotsOf map[uint32][]*vipSlot // of service numbers
	ranges     *portranges.Lists
	retired    sync.RWMutex // held while a server's fast packets become its service's: readers count them once
	// displaced: places of vips were given up since the last grace period.
	displaced bool
	runInsert ebpf.RunOptions // of entries
	functions bool            // there are prefixes of network functions
	host      []netip.Addr    // addresses of this host
	dry       dry

	predecessors predecessorCounts
}

// lbTables are the maps that packets read by index, as memory. The kernel rounds elements up to eight bytes.
type lbTables struct {
	serviceRows, serverRows []struct{ value, _ uint32 }
	services                []plan.ServiceRow
	servers                 []plan.ServerRow
	vipSlots                []vipSlot
	slots                   []history.Column
	rounds                  []uint64
	leastLoaded             [][choice.Groups]int64
	predecessorFlows        []uint64
	loads                   []struct{ value, _ int32 }

	connections connections.Memory
	replicas    replicaTables

	unmap [][]byte
}

// Open loads the load balancer. With dir, a directory in a BPF file system, its maps are pinned there and those of an
// earlier process are taken over.
func Open(dir string, limits plan.Limits) (*LB, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	options := ebpf.CollectionOptions{}
	lb := &LB{vipSlotsOf: map[uint32][]*vipSlot{}, runInsert: ebpf.RunOptions{Data: make([]byte, 64)}}
	var err error
	if dir != "" {
		lb.attached.pins = pin.Instance{Dir: dir, Layout: Layout}
		if options.Maps.PinPath, err = lb.attached.pins.Maps(); err != nil {
			return nil, err
		}
		_, err := os.Stat(filepath.Join(options.Maps.PinPath, "vips"))
		lb.adopted = err == nil
		lb.displaced = lb.adopted
	}
	if lb.attached.host, err = attach.OpenHost(dir); err != nil {
		return nil, err
	}
	options.MapReplacements = map[string]*ebpf.Map{attach.AgentProgram: lb.attached.host.Agent}
	lb.objects.prepare = func() (*ebpf.CollectionSpec, error) { return prepare(limits, dir != "") }
	if err := lb.objects.load(options); err != nil {
		lb.attached.host.Close()
		if errors.Is(err, ebpf.ErrMapIncompatible) {
			return nil, fmt.Errorf("take over the maps pinned in %s: %w: start with the limits they were made with, or detach first", options.Maps.PinPath, err)
		}
		if errors.Is(err, unix.ENOMEM) {
			return nil, fmt.Errorf("load the load balancer's program: %w: no room for its maps: lower --max-slots, --max-servers, --max-entries, --max-replicated or --max-local", err)
		}
		return nil, fmt.Errorf("load the load balancer's program: %w", err)
	}
	if err = lb.mapTables(); err == nil {
		err = lb.adoptVIPs()
	}
	if err == nil {
		err = errors.Join(lb.enableThrough(), lb.enableReplicas(), lb.enableFunctions(), lb.enableSYNs(), lb.FollowClock())
	}
	lb.objects.spec = nil
	if err != nil {
		lb.Close()
		return nil, err
	}
	return lb, nil
}

// prepare reads the program, makes its maps as large as the limits say, and if pinned such as are pinned by their names.
func prepare(limits plan.Limits, pinned bool) (*ebpf.CollectionSpec, error) {
	spec, err := loadLb()
	if err != nil {
		return nil, fmt.Errorf("read the load balancer's program: %w", err)
	}
	if err := errors.Join(sizeLBMaps(spec, limits), setAES(spec)); err != nil {
		return nil, fmt.Errorf("prepare the load balancer's program: %w", err)
	}
	for name, m := range spec.Maps {
		if pinned && (m.Type != ebpf.Array || !pin.IsSection(name)) && m.Type != ebpf.ProgramArray && name != "replica_batch" {
			m.Pinning = ebpf.PinByName
		}
	}
	return spec, nil
}

// enableThrough sets the switch, which is this process's own, as the pinned maps need it.
func (lb *LB) enableThrough() error {
	returns, err := lb.Returns()
	if err != nil || len(returns) == 0 {
		return err
	}
	return lb.switchThrough()
}

func (lb *LB) switchThrough() error {
	return errors.Join(lb.objects.need(programsOfRewriting), lb.objects.ThroughEnabled.Set(uint32(1)))
}

// AcceptTunnels makes the program take off the outer header of packets to address: what the first tier sends to this node of the second.
// The zero Addr: of none. It holds for this process; the pinned maps know nothing of it.
func (lb *LB) AcceptTunnels(address netip.Addr) error {
	enabled := uint32(0)
	if address.IsValid() {
		enabled = 1
		if err := lb.objects.need(programsOfTier); err != nil {
			return err
		}
	}
	return errors.Join(lb.objects.TierAddress.Set(plan.WireAddress(address)), lb.objects.TierEnabled.Set(enabled))
}

func sizeLBMaps(spec *ebpf.CollectionSpec, l plan.Limits) error {
	services, servers := l.Rows()
	const verdicts, outcomes = uint32(lbVerdictVERDICTS), uint32(lbSessionOutcomeSESSION_OUTCOMES)
	for name, entries := range map[string]uint32{
		"service_rows": l.Services + 1, "turns": l.Services + 1, "verdict_counters": (l.Services + 1) * verdicts,
		"session_outcomes": (l.Services + 1) * outcomes, "timestamp_searches": l.Services + 1,
		"services": services, "least_loaded": services, "servers": servers, "server_rows": l.ServerIDs, "slots": l.Slots, "rounds": l.Rounds,
		"server_counters": l.Servers, "clocks": l.Servers, "server_loads": l.Servers,
		"returns": l.Returns(), "vips": l.Destinations(), "allowed_sources": l.Allowed(),
		"connections": l.Entries, "connection_addresses": l.Entries, "connection_blocks": l.Entries / conntable.BlockEntries,
		"replica_entries": replicas.Buckets(l.Replicated), "replica_answers": replicas.Buckets(l.Replicated),
		"local_connections": l.Local, "quic_configs": plan.QUICGroups * uint32(len(plan.QUICConfigs{})), "session_configs": plan.QUICGroups,
	} {
		spec.Maps[name].MaxEntries = max(entries, 1)
	}
	for _, name := range []string{"returns", "vips"} { // twice what is ever there at rest
		spec.Maps[name].Flags |= unix.BPF_F_NO_PREALLOC
	}
	return spec.Variables["replica_buckets"].Set(replicas.Buckets(l.Replicated))
}

// setAES fills the tables of bpf/lb/packet/aes.h.
func setAES(spec *ebpf.CollectionSpec) error {
	tables := aestables.Make()
	return errors.Join(
		spec.Variables["aes_encrypt_words"].Set(tables.EncryptWords), spec.Variables["aes_decrypt_words"].Set(tables.DecryptWords),
		spec.Variables["aes_encrypt_bytes"].Set(tables.EncryptBytes), spec.Variables["aes_decrypt_bytes"].Set(tables.DecryptBytes))
}

func (lb *LB) mapTables() error {
	o, t := &lb.objects, &lb.tables
	return errors.Join(
		mapTable(t, o.ServiceRows, &t.serviceRows), mapTable(t, o.ServerRows, &t.serverRows),
		mapTable(t, o.VipSlots, &t.vipSlots), mapTable(t, o.Services, &t.services), mapTable(t, o.Servers, &t.servers),
		mapTable(t, o.Slots, &t.slots), mapTable(t, o.Rounds, &t.rounds), mapTable(t, o.ServerLoads, &t.loads), mapTable(t, o.LeastLoaded, &t.leastLoaded),
		mapTable(t, o.PredecessorFlows, &t.predecessorFlows),
		mapTable(t, o.Connections, &t.connections.Entries), mapTable(t, o.ConnectionBlocks, &t.connections.Blocks),
		mapTable(t, o.ConnectionAddresses, &t.connections.Addresses), lb.mapReplicas())
}

// Adopted reports whether the maps of an earlier process were taken over.
func (lb *LB) Adopted() bool { return lb.adopted }

// Connections returns the connection tables.
func (lb *LB) Connections() *connections.Memory {
	tables := lb.tables.connections
	return &tables
}

// Program is the XDP program, for test runs.
func (lb *LB) Program() *ebpf.Program { return lb.objects.program("lb") }

// Close lets go of everything. What is pinned or attached stays.
func (lb *LB) Close() error {
	var errs []error
	for _, memory := range lb.tables.unmap {
		errs = append(errs, unix.Munmap(memory))
	}
	lb.tables = lbTables{}
	return errors.Join(append(errs, lb.attached.pins.Release(), lb.attached.host.Close(), lb.dry.close(), lb.objects.Close())...)
}

// Know tells the program the address of a device: frames that come in there for others are not for it.
func (lb *LB) Know(device *net.Interface) error {
	value := lbInterface{Ifindex: uint32(device.Index)}
	copy(value.Mac[:], device.HardwareAddr)
	if err := lb.know(value); err != nil {
		return fmt.Errorf("look up the address of %s: %w", device.Name, err)
	}
	return nil
}

func (lb *LB) know(value lbInterface) error {
	var all [64]lbInterface // INTERFACES
	if err := lb.objects.Interfaces.Get(&all); err != nil {
		return err
	}
	all[value.Ifindex%uint32(len(all))] = value
	return lb.objects.Interfaces.Set(all)
}

// Object is the compiled BPF object (ELF) that is loaded.
func Object() []byte { return _LbBytes }

// types are those that the program declares. Its instructions are not read for them.
func types() (*btf.Spec, error) { return btf.LoadSpecFromReader(bytes.NewReader(Object())) }
