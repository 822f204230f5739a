// Where links are attached, and what they run.
package pin

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// LinkIsOn returns the device that a link's program runs on, 0: none, and the program.
func LinkIsOn(l link.Link) (ifindex int, program ebpf.ProgramID) {
	info, err := l.Info()
	switch {
	case err != nil:
		return 0, 0
	case info.XDP() != nil:
		return int(info.XDP().Ifindex), info.Program
	case info.TCX() != nil:
		return int(info.TCX().Ifindex), info.Program
	}
	return 0, 0
}

// SameProgram is nil if the program that a hook has is ours.
func SameProgram(hook string, ifindex int, have ebpf.ProgramID, program *ebpf.Program) error {
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("read the program for %s: %w", hook, err)
	}
	if id, _ := info.ID(); id != have {
		return fmt.Errorf("%s of %s: another process has put its own program there (%d)", hook, DeviceName(ifindex), have)
	}
	return nil
}

// LinkRuns is nil if the link has program on the device; else it says why not.
func LinkRuns(l link.Link, hook string, ifindex int, program *ebpf.Program) error {
	on, id := LinkIsOn(l)
	if on != ifindex {
		return fmt.Errorf("%s of %s: the program was detached", hook, DeviceName(ifindex))
	}
	return SameProgram(hook, ifindex, id, program)
}

// DeviceName is for messages: the name, or the number of a device that is gone.
func DeviceName(ifindex int) string {
	if device, err := net.InterfaceByIndex(ifindex); err == nil {
		return device.Name
	}
	return fmt.Sprintf("device %d", ifindex)
}
