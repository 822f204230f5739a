// Programs of others that see packets before ours.
package attach

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// ownPrograms are what the kernel calls ours, of all roles: which of them comes first makes no difference.
var ownPrograms = []string{"server_xdp", "server_ingress", "server_egress", "lb", "lb_release", "check_ingress", "check_egress", "bfd_ingress", "segment_ingress", "pass", "lose"}

// Ahead says which programs of others see packets at the hook before ours, one line each. What they end, redirect or change reaches ours not at all, or changed.
func (a *TC) Ahead() (lines []string, err error) {
	if tcx.Have() != nil {
		return a.filtersAhead()
	}
	info, err := a.Program.Info()
	if err != nil {
		return nil, fmt.Errorf("read the program for %s: %w", a.Hook.Name, err)
	}
	id, _ := info.ID()
	ahead, err := a.ahead(id)
	for _, other := range ahead {
		lines = append(lines, fmt.Sprintf("program %s (id %d) runs at %s of %s before ours: packets that it ends, redirects or changes do not reach ours as they came: "+
			"start this daemon again, which puts its programs first", other.name, other.id, a.Hook.direction(), pin.DeviceName(a.Ifindex)))
	}
	return lines, err
}

// other is a program of somebody else.
type other struct {
	name string
	id   ebpf.ProgramID
}

// ahead are those of others that tcx runs before a program; nil if that is not there.
func (a *TC) ahead(of ebpf.ProgramID) (found []other, err error) {
	all, err := link.QueryPrograms(link.QueryOptions{Target: a.Ifindex, Attach: a.Hook.tcx})
	if err != nil {
		return nil, fmt.Errorf("list the programs at %s of %s: %w", a.Hook.direction(), pin.DeviceName(a.Ifindex), err)
	}
	for _, p := range all.Programs {
		if p.ID == of {
			return found, nil
		}
		if name, err := ProgramName(uint32(p.ID)); err != nil { // it has gone since, or cannot be asked
			found = append(found, other{"?", p.ID})
		} else if !slices.Contains(ownPrograms, name) {
			found = append(found, other{name, p.ID})
		}
	}
	return nil, nil
}

// filtersAhead is Ahead before tcx.
func (a *TC) filtersAhead() (lines []string, err error) {
	filters, err := listFilters(a.Ifindex, a.Hook)
	for _, f := range filters {
		attrs, name := f.Attrs(), f.Type()
		if bpf, ok := f.(*netlink.BpfFilter); ok {
			name += " " + bpf.Name
			if bpf.Name == filterName(a.Dir, a.Hook) {
				return lines, nil
			}
		}
		if ownerOf(f, a.Hook) == "" && (attrs.Chain == nil || *attrs.Chain == 0) {
			lines = append(lines, fmt.Sprintf("filter %s (pref %d) runs at %s of %s before ours: packets that it ends, redirects or changes do not reach ours as they came: "+
				"give it a higher pref (tc filter show dev %[4]s %[3]s)", name, attrs.Priority, a.Hook.direction(), pin.DeviceName(a.Ifindex)))
		}
	}
	return nil, err
}

// direction is what people call a hook.
func (h Hook) direction() string {
	if h.tcx == ebpf.AttachTCXEgress {
		return "egress"
	}
	return "ingress"
}

// XDPBelow says which XDP programs of others see a device's packets on devices that it is made of, before ours, one line each.
func XDPBelow(ifindex int) (lines []string) {
	device, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil
	}
	var below []netlink.Link
	switch device.Type() {
	case "bond", "bridge", "team":
		links, _ := netlink.LinkList()
		below = slices.DeleteFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex != ifindex })
	case "vlan", "macvlan":
		if parent, err := netlink.LinkByIndex(device.Attrs().ParentIndex); err == nil {
			below = append(below, parent)
		}
	}
	for _, l := range below {
		id, _, there := XDPOn(l.Attrs().Index)
		name, err := ProgramName(id)
		if err != nil {
			name = "?"
		}
		if there && !slices.Contains(ownPrograms, name) {
			lines = append(lines, fmt.Sprintf("XDP program %s (id %d) runs on %s, below %s: packets that it ends or sends on do not reach ours", name, id, l.Attrs().Name, device.Attrs().Name))
		}
	}
	return lines
}
