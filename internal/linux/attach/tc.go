// Package attach makes programs run on devices, by XDP and at tc, in place of those of an earlier process.
package attach

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// A Hook is where programs see a device's packets as the stack has them: after GRO, or before GSO.
type Hook struct {
	Name   string
	tcx    ebpf.AttachType
	parent uint32 // for clsact
}

var (
	Ingress = Hook{"ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}
	Egress  = Hook{"egress", ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS}
	// CheckIngress is a second program of an instance at Ingress.
	CheckIngress = Hook{"check-ingress", ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS}

	hooks = []Hook{Ingress, Egress, CheckIngress}

	// OfChecks are the hooks of a load balancer's health checks. Their programs are not pinned, and their filters are deleted by whoever attaches the next.
	OfChecks = []Hook{Egress, CheckIngress}
)

// A TC is one program at a hook of a device, by tcx or, where the kernel has none, by a filter of a clsact qdisc
// (clsact.go). All is done in the calling thread's network namespace.
type TC struct {
	Program *ebpf.Program
	Hook    Hook
	Ifindex int
	// Dir is the owner's directory in a BPF file system. It names the filter.
	Dir string
	// Pins keep a tcx link that outlives the process; nil: it goes with the process. A filter has to be deleted in any case: see
	// sweepFilters.
	Pins *pin.Instance
	link link.Link // of tcx, without pins
}

// Attach makes the program run, before those of others that are there: one of them, of a network of pods, may say that nobody after it is asked, and
// ours leave that to them. The one of an earlier process is replaced without a gap.
func (a *TC) Attach() error {
	if tcx.Have() != nil {
		return a.setFilter()
	}
	if replaced, err := a.replaceLink(); replaced || err != nil {
		return err
	}
	l, err := a.first()
	if err != nil {
		return err
	}
	if a.Pins == nil {
		a.link = l
		return nil
	}
	return a.Pins.Hold(a.Hook.Name, a.Ifindex, l)
}

// first makes a link to the program that runs before all others.
func (a *TC) first() (link.Link, error) {
	l, err := link.AttachTCX(link.TCXOptions{Interface: a.Ifindex, Program: a.Program, Attach: a.Hook.tcx, Anchor: link.Head()})
	if err != nil {
		return nil, fmt.Errorf("attach to %s of %s: %w", a.Hook.Name, pin.DeviceName(a.Ifindex), err)
	}
	return l, nil
}

// replaceLink puts program in the link that is there, also that of an earlier process. Where that has come to run behind programs of others, a link before
// them takes its place: until it has, both run, and a packet is rewritten by the first alone (bpf/server/timestamp/rewrite.h).
func (a *TC) replaceLink() (replaced bool, err error) {
	if a.Pins == nil {
		return false, nil
	}
	old, err := a.Pins.LinkOn(a.Hook.Name, a.Ifindex)
	if err != nil || old == nil {
		return false, err
	}
	_, runs := pin.LinkIsOn(old)
	if ahead, err := a.ahead(runs); err != nil {
		return false, err
	} else if len(ahead) > 0 && pin.SameProgram(a.Hook.Name, a.Ifindex, runs, a.Program) != nil { // the kernel takes none twice
		l, err := a.first()
		if err != nil {
			return false, err
		}
		return true, a.Pins.Replace(a.Hook.Name, a.Ifindex, old, l)
	}
	if err := old.Update(a.Program); err != nil {
		return false, fmt.Errorf("replace the %s program on %s: %w", a.Hook.Name, pin.DeviceName(a.Ifindex), err)
	}
	return true, a.Pins.Hold(a.Hook.Name, a.Ifindex, old)
}

// Runs is nil if the program is what runs there; else it says why not.
func (a *TC) Runs() error {
	switch {
	case tcx.Have() != nil:
		return a.runsFilter()
	case a.Pins != nil:
		return a.Pins.Runs(a.Hook.Name, a.Ifindex, a.Program)
	}
	return pin.LinkRuns(a.link, a.Hook.Name, a.Ifindex, a.Program)
}

// There tells whether an attachment of this instance is on the device, also one of an earlier process.
func (a *TC) There() (bool, error) {
	if tcx.Have() != nil {
		ours, _, err := a.filter()
		return ours != nil, err
	}
	return a.Pins.There(a.Hook.Name, a.Ifindex)
}

// Undo ends an attachment, also a pinned one.
func (a *TC) Undo() error {
	if tcx.Have() != nil {
		return a.removeFilter()
	}
	return a.Pins.Undo(a.Hook.Name, a.Ifindex)
}

// Detach ends an attachment that is not pinned.
func (a *TC) Detach() error {
	if a.link != nil {
		return a.link.Close()
	}
	return a.removeFilter()
}

// HaveTC is nil if programs can be attached at tc one way or the other.
func HaveTC() error {
	if tcx.Have() == nil {
		return nil
	}
	return inNewNamespace(tryClsact)
}
