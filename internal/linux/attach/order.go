// Programs of others that see packets before ours.
package attach

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// ownPrograms are what the kernel calls ours, of all roles: which of them comes first makes no difference. Programs of others may be called so, too, where a
// map is named: ours use it.
var ownPrograms = map[string]string{"server_xdp": "", "server_ingress": "", "server_egress": "", "lb": AgentProgram, "lb_release": "",
	"check_ingress": "", "check_egress": "", "bfd_ingress": "", "segment_ingress": ""}

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
		if name, matters := isOther(p.ID); matters {
			found = append(found, other{name, p.ID})
		}
	}
	return nil, nil
}

// isOther reports whether a program is somebody else's, and may keep packets from ours. One that has gone since, or cannot be asked, is called "?".
func isOther(id ebpf.ProgramID) (name string, matters bool) {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "?", true
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return "?", true
	}
	needs, listed := ownPrograms[info.Name]
	return info.Name, !(listed && (needs == "" || usesMap(info, needs)) || info.Name == "pass" && onlyPasses(info))
}

// usesMap reports whether a program uses a map of this name.
func usesMap(program *ebpf.ProgramInfo, name string) bool {
	ids, _ := program.MapIDs()
	return slices.ContainsFunc(ids, func(id ebpf.MapID) bool {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return false
		}
		defer m.Close()
		info, err := m.Info()
		return err == nil && info.Name == name
	})
}

// onlyPasses reports whether an XDP program does nothing, as our pass program: it keeps no packet from anybody.
func onlyPasses(program *ebpf.ProgramInfo) bool {
	const pass = 2 // XDP_PASS
	return program.Type == ebpf.XDP && slices.ContainsFunc([]asm.Instruction{asm.Mov.Imm(asm.R0, pass), asm.Mov.Imm32(asm.R0, pass)}, func(first asm.Instruction) bool {
		return (&ebpf.ProgramSpec{Instructions: asm.Instructions{first, asm.Return()}}).Compatible(program) == nil
	})
}

// filtersAhead is Ahead before tcx. Those of ours, of any hook and directory, are known by their names.
func (a *TC) filtersAhead() (lines []string, err error) {
	filters, err := listFilters(a.Ifindex, a.Hook)
	for _, f := range filters {
		attrs, name := f.Attrs(), f.Type()
		ours := false
		if bpf, ok := f.(*netlink.BpfFilter); ok {
			name += " " + bpf.Name
			if bpf.Name == filterName(a.Dir, a.Hook) {
				return lines, nil
			}
			ours = strings.HasPrefix(bpf.Name, filterPrefix)
		}
		if !ours && (attrs.Chain == nil || *attrs.Chain == 0) {
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
		if device.Attrs().NetNsID >= 0 { // its parent is in another network namespace, and the index may be another device's here
			return nil
		}
		if parent, err := netlink.LinkByIndex(device.Attrs().ParentIndex); err == nil {
			below = append(below, parent)
		}
	}
	for _, l := range below {
		id, _, there := XDPOn(l.Attrs().Index)
		if !there {
			continue
		}
		if name, matters := isOther(ebpf.ProgramID(id)); matters {
			lines = append(lines, fmt.Sprintf("XDP program %s (id %d) runs on %s, below %s: packets that it ends or sends on do not reach ours", name, id, l.Attrs().Name, device.Attrs().Name))
		}
	}
	return lines
}
