package doctor

import (
	"testing"

	"github.com/ballast-lb/ballast/internal/linux/netdev"
)

// virtio_net in native mode has told the host to merge nothing, and shows its flag on.
func TestVirtioInNativeModeMergesNothing(t *testing.T) {
	for generic, want := range map[bool]int{false: 0, true: 1} {
		f := healthyFacts(RoleLB)
		d := &f.Devices[0]
		d.Driver, d.XDPProgram, d.Ours, d.XDPGeneric, d.Offloads["rx-gro-hw"] = "virtio_net", 7, true, generic, true
		var found []Finding
		for _, finding := range judgeOffloads(RoleLB, d) {
			if finding.Severity != OK {
				found = append(found, finding)
			}
		}
		if len(found) != want {
			t.Errorf("generic mode %t: %+v", generic, found)
		}
	}
}

// Long frames are lost by QEMU's card alone: on VMware's, nobody is told to shorten them.
func TestOnlyTheCardThatLosesFramesIsNamed(t *testing.T) {
	for emulated, want := range map[bool]Severity{false: OK, true: Warning} {
		f := healthyFacts(RoleAgent)
		d := &f.Devices[0]
		d.Driver, d.MTU, d.Emulated, d.XDPFeatures = "vmxnet3", 9000, emulated, netdev.XDPBasic|netdev.XDPBuffers
		if found := judgeNative(d); found.Severity != want {
			t.Errorf("emulated %t: %+v", emulated, found)
		}
	}
}
