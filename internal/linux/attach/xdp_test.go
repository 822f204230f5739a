package attach_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// The kernel says "operation not supported", "invalid argument" or "result out of range", as the driver likes, and nothing of frames.
func TestAProgramThatTheDriverRefusesForItsFramesNamesTheMTU(t *testing.T) {
	near, far := progtest.NewSpace(t, "n"), progtest.NewSpace(t, "f")
	progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 9000)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // of frames in one page
	})
	progtest.Check(t, err)
	defer program.Close()
	pins := filepath.Join(progtest.Pins(t), "test")
	progtest.Check(t, os.MkdirAll(pins, 0o700))
	on(t, near, func(device *net.Interface) error {
		_, err := attach.XDP(&pin.Instance{Dir: pins}, program, device, attach.XDPNative)
		if err == nil || !strings.Contains(err.Error(), "at MTU 9000") || !strings.Contains(err.Error(), "ip link set eth0 mtu 3498") {
			t.Errorf("native mode at MTU 9000: %v", err)
		}
		mode, err := attach.XDP(&pin.Instance{Dir: pins}, program, device, attach.XDPAuto)
		if mode != attach.XDPGeneric {
			t.Errorf("auto: mode %q", mode)
		}
		return err
	})
}
