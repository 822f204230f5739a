package attach_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/attach"
	"github.com/ballast-lb/ballast/internal/linux/progtest"
	"github.com/ballast-lb/ballast/internal/testkit/netspace"
)

// A load balancer and what answers BFD beside it have a directory each: whoever made the qdisc, it goes with the last.
func TestTheQdiscGoesWithTheLastDirectory(t *testing.T) {
	progtest.Clsact(t, func(t *testing.T) {
		near, far := progtest.NewSpace(t, "n"), progtest.NewSpace(t, "f")
		progtest.Connect(t, near, "eth0", 1, far, "eth0", 2, 9, 1500)
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		})
		progtest.Check(t, err)
		defer program.Close()
		outer := progtest.Pins(t)
		inner := filepath.Join(outer, "bfd")
		for _, order := range [][2]string{{outer, inner}, {inner, outer}} {
			for _, first := range order {
				progtest.Check(t, os.MkdirAll(inner, 0o700))
				for _, dir := range order {
					on(t, near, func(device *net.Interface) error {
						return (&attach.TC{Program: program, Hook: attach.Ingress, Ifindex: device.Index, Dir: dir}).Attach()
					})
				}
				for _, dir := range map[string][]string{outer: {outer, inner}, inner: {inner, outer}}[first] {
					if !hasClsact(t, near) {
						t.Errorf("made for %s: the qdisc went before the filter of %s", order[0], dir)
					}
					on(t, near, func(*net.Interface) error { return attach.RemoveFilters(dir) })
				}
				if hasClsact(t, near) {
					t.Errorf("made for %s, left first by %s: the qdisc stays", order[0], first)
				}
			}
		}
	})
}

// on does something about the device.
func on(t *testing.T, space *netspace.Space, do func(*net.Interface) error) {
	t.Helper()
	progtest.Check(t, space.Do(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return do(device)
	}))
}

func hasClsact(t *testing.T, space *netspace.Space) (found bool) {
	t.Helper()
	on(t, space, func(device *net.Interface) error {
		all, err := netlink.QdiscList(nil)
		for _, q := range all {
			found = found || q.Type() == "clsact" && q.Attrs().LinkIndex == device.Index
		}
		return err
	})
	return found
}
