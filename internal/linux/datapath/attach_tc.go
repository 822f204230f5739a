package datapath

import (
	"fmt"
	"net"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// A tcHook is where programs see a device's packets as the stack has them: after GRO, or before GSO.
type tcHook struct {
	name   string
	tcx    ebpf.AttachType
	parent uint32 // for clsact
}

var (
	tcIngress = tcHook{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}
	tcEgress  = tcHook{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS}
)

// haveTCX is nil if the kernel has tcx (Linux 6.6). A variable, so that tests can go without.
var haveTCX = sync.OnceValue(func() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	return err
})

// A tcAttachment is one program at a hook of a device, by tcx or, where the kernel has none, by a filter of a clsact qdisc
// (attach_clsact.go). All is done in the calling thread's network namespace.
type tcAttachment struct {
	program *ebpf.Program
	hook    tcHook
	ifindex int
	// dir is the owner's directory in a BPF file system. It names the filter.
	dir string
	// pins keep a tcx link that outlives the process; nil: it goes with the process. A filter has to be deleted in any case: see
	// sweepFilters.
	pins *pins
	link link.Link // of tcx, without pins
}

// attach makes the program run. The one of an earlier process is replaced without a gap.
func (a *tcAttachment) attach() error {
	if haveTCX() != nil {
		return a.setFilter()
	}
	if replaced, err := a.replaceLink(); replaced || err != nil {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: a.ifindex, Program: a.program, Attach: a.hook.tcx})
	if err != nil {
		return fmt.Errorf("attach to %s of %s: %w", a.hook.name, deviceName(a.ifindex), err)
	}
	if a.pins == nil {
		a.link = l
		return nil
	}
	return a.pins.hold(a.hook.name, a.ifindex, l)
}

// replaceLink puts program in the link that is there, also that of an earlier process.
func (a *tcAttachment) replaceLink() (replaced bool, err error) {
	if a.pins == nil {
		return false, nil
	}
	old, err := a.pins.linkOn(a.hook.name, a.ifindex)
	if err != nil || old == nil {
		return false, err
	}
	if err := old.Update(a.program); err != nil {
		return false, fmt.Errorf("replace the %s program on %s: %w", a.hook.name, deviceName(a.ifindex), err)
	}
	return true, a.pins.hold(a.hook.name, a.ifindex, old)
}

// runs is nil if the program is what runs there; else it says why not.
func (a *tcAttachment) runs() error {
	switch {
	case haveTCX() != nil:
		return a.runsFilter()
	case a.pins != nil:
		return a.pins.runs(a.hook.name, a.ifindex, a.program)
	}
	return linkRuns(a.link, a.hook.name, a.ifindex, a.program)
}

// there tells whether an attachment of this instance is on the device, also one of an earlier process.
func (a *tcAttachment) there() (bool, error) {
	if haveTCX() != nil {
		ours, _, err := a.filter()
		return ours != nil, err
	}
	return a.pins.there(a.hook.name, a.ifindex)
}

// undo ends an attachment, also a pinned one.
func (a *tcAttachment) undo() error {
	if haveTCX() != nil {
		return a.removeFilter()
	}
	return a.pins.undo(a.hook.name, a.ifindex)
}

// sameProgram is nil if the program that a hook has is ours.
func sameProgram(hook string, ifindex int, have ebpf.ProgramID, program *ebpf.Program) error {
	info, err := program.Info()
	if err != nil {
		return fmt.Errorf("read the program for %s: %w", hook, err)
	}
	if id, _ := info.ID(); id != have {
		return fmt.Errorf("%s of %s: another process has put its own program there (%d)", hook, deviceName(ifindex), have)
	}
	return nil
}

// detach ends an attachment that is not pinned.
func (a *tcAttachment) detach() error {
	if a.link != nil {
		return a.link.Close()
	}
	return a.removeFilter()
}

// linkRuns is nil if the link has program on the device; else it says why not.
func linkRuns(l link.Link, hook string, ifindex int, program *ebpf.Program) error {
	on, id := linkIsOn(l)
	if on != ifindex {
		return fmt.Errorf("%s of %s: the program was detached", hook, deviceName(ifindex))
	}
	return sameProgram(hook, ifindex, id, program)
}

func deviceName(ifindex int) string {
	if device, err := net.InterfaceByIndex(ifindex); err == nil {
		return device.Name
	}
	return fmt.Sprintf("device %d", ifindex)
}
