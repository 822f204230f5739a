package doctor

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/features"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// needed capabilities, by the number of their bit.
var needed = []struct {
	bit  uint
	name string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_NET_RAW, "CAP_NET_RAW"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_BPF, "CAP_BPF"}}

func gatherKernel(o Options) (k kernelFacts) {
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		k.Release = unix.ByteSliceToString(name.Release[:])
	}
	held := effectiveCapabilities()
	for _, capability := range needed {
		if held&(1<<capability.bit) == 0 {
			k.Missing = append(k.Missing, capability.name)
		}
	}
	k.JIT = sysctl("net.core.bpf_jit_enable")
	k.Grace = features.TryGrace()
	var state unix.Timex
	if _, err := unix.Adjtimex(&state); err == nil {
		k.Synchronised = state.Status&unix.STA_UNSYNC == 0
	}
	if len(k.Missing) > 0 {
		return k // every probe would fail for want of rights
	}
	k.BPFFS = pin.TryBPFFS(filepath.Join(o.RunDir, "bpf"))
	k.PrivatePins = pin.Private(filepath.Join(o.RunDir, "bpf"))
	return k
}

// try has the kernel verify what a role needs: whichever thread asks.
func (k *kernelFacts) try(role Role) {
	if role != RoleLB {
		k.Features, k.Load = features.Server(), features.TryServer()
	}
	if role != RoleAgent {
		k.Load = errors.Join(k.Load, features.TryLB())
		for _, feature := range features.LB() {
			if !slices.ContainsFunc(k.Features, func(have features.Feature) bool { return have.Name == feature.Name }) {
				k.Features = append(k.Features, feature)
			}
		}
	}
	k.Rejected = features.VerifierLog(k.Load)
}

func effectiveCapabilities() (held uint64) {
	file, err := os.Open("/proc/thread-self/status")
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "CapEff:"); ok {
			held, _ = strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		}
	}
	return held
}
