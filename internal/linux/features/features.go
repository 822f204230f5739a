// Package features asks the kernel for what the programs of a role need of it.
package features

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/checkroute"
	"github.com/ballast-lb/ballast/internal/linux/lb"
	"github.com/ballast-lb/ballast/internal/linux/server"
	"github.com/ballast-lb/ballast/internal/plan"
)

// A Feature is something of the kernel that the programs of a role use.
type Feature struct {
	Name    string
	Since   string // Linux version that brought it
	Err     error  // nil: it is there
	Without string // what becomes of the role without it; empty: it cannot work
}

// LB probes what a load balancer uses of the kernel. Nothing is attached or kept.
func LB() []Feature {
	xdp := ebpf.XDP
	return []Feature{
		{Name: "BTF of the kernel", Since: "5.2", Err: haveBTF()},
		{Name: "XDP programs", Since: "4.8", Err: features.HaveProgramType(xdp)},
		{Name: "LRU hash maps", Since: "4.10", Err: features.HaveMapType(ebpf.LRUHash)},
		{Name: "ring buffers", Since: "5.8", Err: features.HaveMapType(ebpf.RingBuf)},
		{Name: "bpf_ktime_get_coarse_ns", Since: "5.11", Err: features.HaveProgramHelper(xdp, asm.FnKtimeGetCoarseNs)},
		{Name: "bpf_fib_lookup in XDP", Since: "4.18", Err: features.HaveProgramHelper(xdp, asm.FnFibLookup)},
		{Name: "bpf_xdp_load_bytes", Since: "5.18", Err: features.HaveProgramHelper(xdp, asm.FnXdpLoadBytes)},
		{Name: "attachment at tc: tcx, or clsact", Since: "4.5", Err: attach.HaveTC(), Without: "no services with session tls"},
		{Name: "bpf_dynptr_write", Since: "5.19", Err: features.HaveProgramHelper(xdp, asm.FnDynptrWrite), Without: "no services with session tls"},
		{Name: "health checks through the tunnel", Since: "5.18", Err: checkroute.Try(), Without: "checks go directly to the servers' addresses"},
	}
}

// Server probes what an agent needs of the kernel. Nothing is attached or kept.
func Server() []Feature {
	xdp, tc := ebpf.XDP, ebpf.SchedCLS
	return []Feature{
		{Name: "BTF of the kernel", Since: "5.2", Err: haveBTF()},
		{Name: "XDP programs", Since: "4.8", Err: features.HaveProgramType(xdp)},
		{Name: "tc programs", Since: "4.1", Err: features.HaveProgramType(tc)},
		{Name: "attachment at tc: tcx, or clsact", Since: "4.5", Err: attach.HaveTC()},
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

// TryLB has the kernel verify and load the load balancer's program with small maps, and lets go of it: once in a process, it takes seconds.
var TryLB = sync.OnceValue(func() error {
	lb, err := lb.Open("", plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
	if err != nil {
		return err
	}
	return errors.Join(lb.LoadAll(), lb.Close())
})

// TryServer has the kernel verify and load the server's programs, and lets go of them: once in a process, too.
var TryServer = sync.OnceValue(func() error {
	server, err := server.Open("", server.Limits{Translated: 1})
	if err != nil {
		return err
	}
	return server.Close()
})

// VerifierLog returns what the verifier said of a program that it rejected; nil if err is of another kind.
func VerifierLog(err error) []string {
	var rejected *ebpf.VerifierError
	if errors.As(err, &rejected) {
		return rejected.Log
	}
	return nil
}

// TryGrace tells whether the kernel offers what changes of the tables wait with.
func TryGrace() error { return lb.Grace() }
