package attach_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/link"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
)

// Filters of this host's other directories and hooks are ours, those of others are named.
func TestFiltersOfOtherRolesAreNobodyElses(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		near, far := progtest.NewSpace(t, "n"), progtest.NewSpace(t, "f")
		progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
		dir := progtest.Pins(t)
		checks := filepath.Join(dir, "checks")
		progtest.Check(t, os.MkdirAll(checks, 0o700))
		program := progtest.Theirs(t, ebpf.SchedCLS, -1)
		on(t, near, func(device *net.Interface) error {
			lb := &attach.TC{Program: program, Hook: attach.Ingress, Ifindex: device.Index, Dir: dir}
			check := &attach.TC{Program: program, Hook: attach.CheckIngress, Ifindex: device.Index, Dir: checks}
			for _, place := range []*attach.TC{lb, check} { // the kernel asks the newest first
				if err := place.Attach(); err != nil {
					return err
				}
			}
			for _, place := range []*attach.TC{lb, check} {
				if lines, err := place.Ahead(); err != nil || len(lines) > 0 {
					t.Errorf("before %s: %q, %v", place.Hook.Name, lines, err)
				}
			}
			if err := netlink.FilterAdd(&netlink.BpfFilter{Fd: program.FD(), Name: "theirs", DirectAction: true, FilterAttrs: netlink.FilterAttrs{
				LinkIndex: device.Index, Parent: netlink.HANDLE_MIN_INGRESS, Protocol: 0x0003, Handle: 1, Priority: 1,
			}}); err != nil {
				return err
			}
			for _, place := range []*attach.TC{lb, check} {
				if lines, err := place.Ahead(); err != nil || len(lines) != 1 || !strings.Contains(lines[0], "theirs") {
					t.Errorf("before %s, theirs first: %q, %v", place.Hook.Name, lines, err)
				}
			}
			return nil
		})
	})
}

// A program of others may have a name that one of ours has.
func TestAProgramIsNotOursByACommonNameAlone(t *testing.T) {
	near, far := progtest.NewSpace(t, "n"), progtest.NewSpace(t, "f")
	progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
	ours, err := link.LoadPass()
	progtest.Check(t, err)
	defer ours.Close()
	on(t, near, func(device *net.Interface) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		if err := netlink.LinkSetMasterByIndex(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device.Index}}, bridge.Index); err != nil {
			return err
		}
		below := func(program *ebpf.Program) []string {
			l, err := ebpflink.AttachXDP(ebpflink.XDPOptions{Program: program, Interface: device.Index, Flags: ebpflink.XDPGenericMode})
			progtest.Check(t, err)
			defer l.Close()
			return attach.XDPBelow(bridge.Index)
		}
		for _, name := range []string{"lb", "lose", "pass"} {
			const drop = 1
			theirs, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Name: name, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()}})
			progtest.Check(t, err)
			if lines := below(theirs); len(lines) != 1 || !strings.Contains(lines[0], "XDP program "+name+" (id ") {
				t.Errorf("of a program %s of others they say %q", name, lines)
			}
			theirs.Close()
		}
		if lines := below(ours); len(lines) != 0 {
			t.Errorf("of our pass program they say %q", lines)
		}
		return nil
	})
}

// Numbers of devices are of a network namespace.
func TestADeviceWhoseParentIsInAnotherNamespaceHasNothingBelow(t *testing.T) {
	near, far, inner := progtest.NewSpace(t, "n"), progtest.NewSpace(t, "f"), progtest.NewSpace(t, "i")
	progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
	theirs := progtest.Theirs(t, ebpf.XDP, 2)
	parent := 0
	on(t, near, func(device *net.Interface) error {
		parent = device.Index
		if err := netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "mv0", ParentIndex: parent}}); err != nil {
			t.Skipf("this kernel has no macvlan: %v", err)
		}
		child, err := netlink.LinkByName("mv0")
		if err != nil {
			return err
		}
		space, err := os.Open("/run/netns/" + inner.Name)
		if err != nil {
			return err
		}
		defer space.Close()
		return netlink.LinkSetNsFd(child, int(space.Fd()))
	})
	progtest.Check(t, inner.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "another", Index: parent}}); err != nil {
			return err
		}
		l, err := ebpflink.AttachXDP(ebpflink.XDPOptions{Program: theirs, Interface: parent, Flags: ebpflink.XDPGenericMode})
		if err != nil {
			return err
		}
		defer l.Close()
		child, err := net.InterfaceByName("mv0")
		if err != nil {
			return err
		}
		if lines := attach.XDPBelow(child.Index); len(lines) != 0 {
			t.Errorf("they say %q", lines)
		}
		return nil
	}))
}
