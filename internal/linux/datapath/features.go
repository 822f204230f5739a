package datapath

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/plan"
)

// A Feature is something of the kernel that the programs of a role use.
type Feature struct {
	Name    string
	Since   string // Linux version that brought it
	Err     error  // nil: it is there
	Without string // what becomes of the role without it; empty: it cannot work
}

// LBFeatures probes what a load balancer uses of the kernel. Nothing is attached or kept.
func LBFeatures() []Feature {
	xdp := ebpf.XDP
	return []Feature{
		{Name: "BTF of the kernel", Since: "5.2", Err: haveBTF()},
		{Name: "XDP programs", Since: "4.8", Err: features.HaveProgramType(xdp)},
		{Name: "LRU hash maps", Since: "4.10", Err: features.HaveMapType(ebpf.LRUHash)},
		{Name: "ring buffers", Since: "5.8", Err: features.HaveMapType(ebpf.RingBuf)},
		{Name: "bpf_ktime_get_coarse_ns", Since: "5.11", Err: features.HaveProgramHelper(xdp, asm.FnKtimeGetCoarseNs)},
		{Name: "bpf_fib_lookup in XDP", Since: "4.18", Err: features.HaveProgramHelper(xdp, asm.FnFibLookup)},
		{Name: "bpf_xdp_load_bytes", Since: "5.18", Err: features.HaveProgramHelper(xdp, asm.FnXdpLoadBytes)},
		{Name: "health checks through the tunnel", Since: "5.18", Err: tryChecks(), Without: "checks go straight to the servers' addresses"},
	}
}

// ServerFeatures probes what an agent needs of the kernel. Nothing is attached or kept.
func ServerFeatures() []Feature {
	xdp, tc := ebpf.XDP, ebpf.SchedCLS
	return []Feature{
		{Name: "BTF of the kernel", Since: "5.2", Err: haveBTF()},
		{Name: "XDP programs", Since: "4.8", Err: features.HaveProgramType(xdp)},
		{Name: "tc programs", Since: "4.1", Err: features.HaveProgramType(tc)},
		{Name: "attachment at tc: tcx, or clsact", Since: "4.5", Err: haveTC()},
		{Name: "socket storage", Since: "5.2", Err: features.HaveMapType(ebpf.SkStorage)},
		{Name: "bpf_sk_storage_get in tc", Since: "5.2", Err: features.HaveProgramHelper(tc, asm.FnSkStorageGet)},
		{Name: "bpf_skc_lookup_tcp in tc", Since: "5.2", Err: features.HaveProgramHelper(tc, asm.FnSkcLookupTcp)},
		{Name: "bpf_skc_lookup_tcp in XDP", Since: "5.2", Err: features.HaveProgramHelper(xdp, asm.FnSkcLookupTcp)},
		{Name: "bpf_xdp_get_buff_len", Since: "5.18", Err: features.HaveProgramHelper(xdp, asm.FnXdpGetBuffLen)},
	}
}

func haveBTF() error {
	_, err := btf.LoadKernelSpec()
	return err
}

// loopback exists in every network namespace, with this number.
const loopback = 1

// haveTC is nil if programs can be attached at tc one way or the other.
func haveTC() error {
	if haveTCX() == nil {
		return nil
	}
	return inNewNamespace(tryClsact)
}

// tryChecks has the kernel load the program of health checks, and tells whether it can be attached.
func tryChecks() error {
	var objects checkObjects
	if err := errors.Join(rlimit.RemoveMemlock(), loadCheckObjects(&objects, nil)); err != nil {
		return err
	}
	return errors.Join(haveTC(), objects.Close())
}

// TryLB has the kernel verify and load the load balancer's program with small maps, and lets go of it.
func TryLB() error {
	lb, err := OpenLB("", plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
	if err != nil {
		return err
	}
	return lb.Close()
}

// TryServer has the kernel verify and load the server's programs, and lets go of them.
func TryServer() error {
	server, err := OpenServer("")
	if err != nil {
		return err
	}
	return server.Close()
}

// VerifierLog returns what the verifier said of a program that it rejected; nil if err is of another kind.
func VerifierLog(err error) []string {
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) {
		return rejected.Log
	}
	return nil
}

// TryBPFFS tells whether dir is, or could be made, a BPF file system. Nothing stays mounted.
func TryBPFFS(dir string) error {
	if mounted, err := isBPFFS(dir); err == nil && mounted {
		return nil
	}
	context, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open a BPF file system: %w", err)
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return fmt.Errorf("create a BPF file system: %w", err)
	}
	mount, err := unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	return unix.Close(mount)
}

// TryGrace tells whether the kernel offers what changes of the tables wait with.
func TryGrace() error { return grace() }

// ProgramName returns the name of a loaded program.
func ProgramName(id uint32) (string, error) {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return "", fmt.Errorf("find program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", fmt.Errorf("read program %d: %w", id, err)
	}
	return info.Name, nil
}

// linkPins are the pins of an instance's links on a device, of either role; ifindex 0: on any device. See pins.link.
func linkPins(dir string, ifindex int) []string {
	device := "*"
	if ifindex != 0 {
		device = strconv.Itoa(ifindex)
	}
	found, _ := filepath.Glob(filepath.Join(dir, "link-*-"+device))
	return found
}

// Pinned tells whether an instance, of either role, has left links under dir.
func Pinned(dir string) bool { return len(linkPins(dir, 0)) > 0 }

// PinnedRole returns lb or agent, as the maps that an instance has left under dir are named for; empty: there are none, or of both.
func PinnedRole(dir string) string {
	lb, _ := filepath.Glob(filepath.Join(dir, "lb-v*"))
	agent, _ := filepath.Glob(filepath.Join(dir, "agent-v*"))
	switch {
	case len(lb) > 0 && len(agent) == 0:
		return "lb"
	case len(agent) > 0 && len(lb) == 0:
		return "agent"
	}
	return ""
}

// PinnedDevices returns the devices of the calling thread's network namespace that links under dir are on.
func PinnedDevices(dir string) (names []string) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, device := range devices {
		if len(linkPins(dir, device.Index)) > 0 {
			names = append(names, device.Name)
		}
	}
	return names
}

// PinnedPrograms returns the XDP programs of the links that an instance, of either role, has pinned under dir for a device.
func PinnedPrograms(dir string, ifindex int) (ids []uint32) {
	for _, pin := range linkPins(dir, ifindex) {
		pinned, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			continue
		}
		if info, err := pinned.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == uint32(ifindex) {
			ids = append(ids, uint32(info.Program))
		}
		pinned.Close()
	}
	return ids
}
