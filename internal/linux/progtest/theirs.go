package progtest

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Theirs loads a program that is named theirs, of somebody else, and answers always the same. It goes with the test.
func Theirs(t *testing.T, kind ebpf.ProgramType, answer int32) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, Name: "theirs", License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, answer), asm.Return()}})
	Check(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

// TheirXDP is the file descriptor of an XDP program of Theirs that passes all packets.
func TheirXDP(t *testing.T) (fd int) {
	t.Helper()
	const pass = 2
	return Theirs(t, ebpf.XDP, pass).FD()
}

// PutTheirsFirst attaches one of Theirs that asks the next program (TCX_NEXT) at ingress of a device, before all others, in the calling thread's network
// namespace, until the test ends. Where the kernel has no tcx, it does nothing and returns false.
func PutTheirsFirst(t *testing.T, ifindex int) bool {
	t.Helper()
	const next = -1
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: Theirs(t, ebpf.SchedCLS, next), Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return false
	}
	Check(t, err)
	t.Cleanup(func() { l.Close() })
	return true
}
