package lb

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/pin"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

// Health checks may be attached before the program is.
func TestAttachingLeavesWhatHealthChecksHaveAttached(t *testing.T) {
	progtest.BothWays(t, func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("namespaces need root")
		}
		near, far := progtest.NewSpace(t, "l"), progtest.NewSpace(t, "r")
		progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
		dir := progtest.Pins(t)
		lb, err := Open(dir, plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
		progtest.Check(t, err)
		defer lb.Close()
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		})
		progtest.Check(t, err)
		defer program.Close()
		progtest.Check(t, near.Do(func() error {
			device, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			for _, hook := range attach.OfChecks {
				of := &attach.TC{Program: program, Hook: hook, Ifindex: device.Index, Dir: dir}
				if err := of.Attach(); err != nil {
					return err
				}
				defer func() { progtest.Check(t, of.Detach()) }()
				if _, err := lb.Attach(device, attach.XDPGeneric); err != nil {
					return err
				}
				if err := errors.Join(lb.Attached(), of.Runs()); err != nil {
					return fmt.Errorf("%s: %w", hook.Name, err)
				}
			}
			return attach.Detach(dir)
		}))
	})
}

// What makes several packets of one is at tc wherever lb runs, whoever takes it away, and goes with it.
func TestWhatCarriesOutOrdersIsAtTCWhereTheProgramRuns(t *testing.T) {
	progtest.BothWays(t, func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("namespaces need root")
		}
		near, far := progtest.NewSpace(t, "l"), progtest.NewSpace(t, "r")
		progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
		dir := progtest.Pins(t)
		open := func() *LB {
			lb, err := Open(dir, plan.Limits{Services: 1, Servers: 1, ServerIDs: 256, Slots: 512, Rounds: 2})
			progtest.Check(t, err)
			return lb
		}
		var device *net.Interface
		on := func(do func() error) {
			t.Helper()
			progtest.Check(t, near.Do(do))
		}
		on(func() (err error) { device, err = net.InterfaceByName("eth0"); return err })
		lb := open()
		attached := func() error { _, err := lb.Attach(device, attach.XDPGeneric); return err }
		expect := func(when string, want bool) {
			t.Helper()
			on(func() error {
				there, err := (&attach.TC{Hook: attach.Ingress, Ifindex: device.Index, Dir: dir, Pins: &pin.Instance{Dir: dir, Layout: Layout}}).There()
				if there != want {
					t.Errorf("%s: %v", when, there)
				}
				return err
			})
		}
		on(attached)
		expect("attached", true)
		on(func() error { return lb.Runs(device.Index) })
		on(func() error { return lb.releaser(device.Index).Undo() })
		expect("taken away", false)
		on(func() error {
			if lb.Runs(device.Index) == nil {
				t.Error("nobody sees that it was taken away")
			}
			return nil
		})
		await.True(t, "attached again", func() bool { return near.Do(attached) == nil }) // the kernel frees a link some time after it was closed
		on(func() error { return lb.Runs(device.Index) })
		expect("mended", true)
		progtest.Check(t, lb.Close())
		expect("after the process", true)
		lb = open()
		on(attached)
		on(lb.Attached)
		expect("another process", true)
		on(func() error { return attach.Detach(dir) })
		expect("detached", false)
		progtest.Check(t, lb.Close())
	})
}
