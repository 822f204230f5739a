package lb

import (
	"net"
	"os"
	"testing"

	"github.com/ballast-lb/ballast/internal/await"
	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/plan"
)

func TestADeviceThatFramesOnlyLeaveByKeepsThePassProgramOverARestart(t *testing.T) {
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
	runs := func() (name string) {
		t.Helper()
		progtest.Check(t, near.Do(func() error {
			device, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			id, mode, there := attach.XDPOn(device.Index)
			if !there || mode != attach.XDPNative {
				return nil
			}
			name, err = attach.ProgramName(id)
			return err
		}))
		return name
	}
	on := func(do func(*net.Interface) error) {
		t.Helper()
		progtest.Check(t, near.Do(func() error {
			device, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			return do(device)
		}))
	}
	lb := open()
	on(lb.OpenExit)
	progtest.Check(t, near.Do(lb.Attached))
	progtest.Check(t, lb.Close())
	if runs() != "pass" {
		t.Fatalf("after the process: %q", runs())
	}
	lb = open()
	on(lb.OpenExit)
	progtest.Check(t, near.Do(lb.Attached))
	if runs() != "pass" {
		t.Errorf("after a restart: %q", runs())
	}
	on(func(device *net.Interface) error { _, err := lb.Attach(device, attach.XDPAuto); return err })
	if runs() != "lb" {
		t.Errorf("once packets are to come in by it: %q", runs())
	}
	on(lb.OpenExit)
	if runs() != "pass" {
		t.Errorf("once they do not any more: %q", runs())
	}
	progtest.Check(t, lb.Close())
	progtest.Check(t, near.Do(func() error { return attach.Detach(dir) }))
	await.True(t, "the program to go", func() bool { return runs() == "" }) // the kernel frees a link some time after it was closed
	on(func(device *net.Interface) error { _, err := link.AttachPass(device); return err })
	lb = open()
	defer lb.Close()
	on(lb.OpenExit)
	on(func(device *net.Interface) error {
		has, err := lb.HasLink(device.Index)
		if has {
			t.Error("somebody else's program was replaced")
		}
		return err
	})
}
