package features

import (
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

func TestWhatTheVerifierSaysIsKept(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: asm.Instructions{
		asm.LoadMem(asm.R0, asm.R2, 0, asm.DWord), // R2 is nothing at the start of a program
		asm.Return(),
	}})
	if err == nil {
		t.Fatal("the kernel accepted a program that reads by a register without value")
	}
	if log := VerifierLog(fmt.Errorf("load: %w", err)); len(log) == 0 {
		t.Errorf("nothing is kept of %+v", err)
	}
	if log := VerifierLog(os.ErrPermission); log != nil {
		t.Errorf("an error of another kind has %q", log)
	}
}

// A kernel that this test runs on has all of what both roles use: see make test-kernels.
func TestTheFeaturesAreThere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, feature := range append(LB(), Server()...) {
		if feature.Err != nil {
			t.Errorf("%s: %v", feature.Name, feature.Err)
		}
	}
}
