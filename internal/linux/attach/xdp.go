// XDP programs on devices, by pinned links.
package attach

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// XDPMode is how the program is attached.
type XDPMode string

// Ways to attach: auto tries native first.
const (
	XDPAuto    XDPMode = "auto"
	XDPNative  XDPMode = "native"
	XDPGeneric XDPMode = "generic"
	// XDPNone is for devices that servers' answers only leave by: they have the programs at tc alone.
	XDPNone XDPMode = "tc only"
)

// SingleBufferMTU is what drivers take native programs with that have all of a frame in one page.
const SingleBufferMTU = 3498

// XDP attaches program or, if a link of this instance still is on the device, replaces the program in it.
func XDP(p *pin.Instance, program *ebpf.Program, device *net.Interface, mode XDPMode) (XDPMode, error) {
	old, err := p.LinkOn(pin.HookXDP, device.Index)
	if err != nil {
		return "", err
	}
	if old == nil {
		return newXDP(p, program, device, mode)
	}
	runs, err := attachedMode(device)
	if err == nil && (mode == XDPNative || mode == XDPGeneric) && runs != mode {
		err = fmt.Errorf("attach to %s in %s mode: a program of this instance runs in %s mode: detach it first", device.Name, mode, runs)
	}
	if err == nil {
		if err = old.Update(program); err != nil {
			err = fmt.Errorf("replace the program on %s: %w", device.Name, err)
		}
	}
	return runs, errors.Join(err, p.Hold(pin.HookXDP, device.Index, old))
}

func newXDP(p *pin.Instance, program *ebpf.Program, device *net.Interface, mode XDPMode) (XDPMode, error) {
	flags := map[XDPMode]link.XDPAttachFlags{XDPNative: link.XDPDriverMode, XDPGeneric: link.XDPGenericMode}
	tries := []XDPMode{mode}
	if mode == XDPAuto || mode == "" {
		tries = []XDPMode{XDPNative, XDPGeneric}
	}
	var errs error
	for _, try := range tries {
		made, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Index, Flags: flags[try]})
		if err == nil {
			return try, p.Hold(pin.HookXDP, device.Index, made)
		}
		errs = errors.Join(errs, fmt.Errorf("attach to %s in %s mode: %w", device.Name, try, err))
		if errors.Is(err, unix.EBUSY) {
			break // a program is there: no mode is free, and the other's "file exists" explains nothing
		}
	}
	if other := OtherProgram(device); other != "" {
		return "", fmt.Errorf("%w: %s: stop what attached it (bpftool net show dev %s)", errs, other, device.Name)
	}
	if upper := upperWithProgram(device); upper != "" {
		return "", fmt.Errorf("%w: the kernel takes no program below %s, which has one: remove that first (of an earlier agent or load balancer here: --detach), or name %s with --interface",
			errs, upper, upper)
	}
	if device.MTU > SingleBufferMTU && mode == XDPNative {
		return "", fmt.Errorf("%w: many drivers take no native program at MTU %d, as frames do not fit into one page: ip link set %s mtu %d, or use --xdp-mode generic",
			errs, device.MTU, device.Name, SingleBufferMTU)
	}
	return "", fmt.Errorf("%w: use --xdp-mode generic, or another interface", errs)
}

// upperWithProgram names a device that is made on this one (VLAN, macvlan, bond, bridge) and has an XDP program, empty: there is none.
func upperWithProgram(device *net.Interface) string {
	links, _ := netlink.LinkList()
	master := 0
	for _, l := range links {
		if l.Attrs().Index == device.Index {
			master = l.Attrs().MasterIndex
		}
	}
	for _, l := range links {
		a := l.Attrs()
		if (a.ParentIndex == device.Index && l.Type() != "veth" || a.Index == master) && a.Xdp != nil && a.Xdp.Attached {
			return a.Name
		}
	}
	return ""
}

// OtherProgram says what XDP program is on a device, empty: none.
func OtherProgram(device *net.Interface) string {
	id, mode, attached := XDPOn(device.Index)
	if !attached {
		return ""
	}
	name, err := ProgramName(id)
	if err != nil {
		name = "?"
	}
	return fmt.Sprintf("program %s (id %d, %s) is there", name, id, mode)
}

// attachedMode asks the kernel how the program on a device runs.
func attachedMode(device *net.Interface) (XDPMode, error) {
	l, err := netlink.LinkByIndex(device.Index)
	if err != nil {
		return "", fmt.Errorf("look up how %s runs its program: %w", device.Name, err)
	}
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		return XDPGeneric, nil
	}
	return XDPNative, nil
}

// XDPOn tells what XDP program runs on a device.
func XDPOn(ifindex int) (id uint32, mode XDPMode, attached bool) {
	found, err := netlink.LinkByIndex(ifindex)
	if err != nil || found.Attrs().Xdp == nil || !found.Attrs().Xdp.Attached {
		return 0, "", false
	}
	mode = XDPNative
	if found.Attrs().Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		mode = XDPGeneric
	}
	return found.Attrs().Xdp.ProgId, mode, true
}

// IsProgram compares by name and tag, which is a digest of the instructions.
func IsProgram(id uint32, program *ebpf.Program) bool {
	loaded, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return false
	}
	defer loaded.Close()
	have, err := loaded.Info()
	if err != nil {
		return false
	}
	want, err := program.Info()
	return err == nil && have.Name == want.Name && have.Tag == want.Tag
}

// ProgramName returns the name of a loaded program.
func ProgramName(id uint32) (string, error) {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return "", fmt.Errorf("find program %d: %w", id, err)
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "", fmt.Errorf("read program %d: %w", id, err)
	}
	return info.Name, nil
}
