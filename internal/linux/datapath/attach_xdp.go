package datapath

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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

// hookXDP is what pins call it.
const hookXDP = "xdp"

// attachXDP attaches program or, if a link of this instance still is on the device, replaces the program in it.
func (p *pins) attachXDP(program *ebpf.Program, device *net.Interface, mode XDPMode) (XDPMode, error) {
	old, err := p.linkOn(hookXDP, device.Index)
	if err != nil {
		return "", err
	}
	if old == nil {
		return p.attachNewXDP(program, device, mode)
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
	return runs, errors.Join(err, p.hold(hookXDP, device.Index, old))
}

func (p *pins) attachNewXDP(program *ebpf.Program, device *net.Interface, mode XDPMode) (XDPMode, error) {
	flags := map[XDPMode]link.XDPAttachFlags{XDPNative: link.XDPDriverMode, XDPGeneric: link.XDPGenericMode}
	tries := []XDPMode{mode}
	if mode == XDPAuto || mode == "" {
		tries = []XDPMode{XDPNative, XDPGeneric}
	}
	var errs error
	for _, try := range tries {
		made, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: device.Index, Flags: flags[try]})
		if err == nil {
			return try, p.hold(hookXDP, device.Index, made)
		}
		errs = errors.Join(errs, fmt.Errorf("attach to %s in %s mode: %w", device.Name, try, err))
		if errors.Is(err, unix.EBUSY) {
			break // a program is there: no mode is free, and the other's "file exists" explains nothing
		}
	}
	if other := otherProgram(device); other != "" {
		return "", fmt.Errorf("%w: %s: stop what attached it (bpftool net show dev %s)", errs, other, device.Name)
	}
	return "", fmt.Errorf("%w: use --xdp-mode generic, or another interface", errs)
}

// otherProgram says what XDP program is on a device, empty: none.
func otherProgram(device *net.Interface) string {
	id, mode, attached := xdpOn(device.Index)
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
