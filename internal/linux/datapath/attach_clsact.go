package datapath

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Before Linux 6.6 programs at tc are filters of a clsact qdisc (Linux 4.5). A filter is nobody's: no descriptor or pin holds it, and it
// stays when its process ends. Ours are known by their names. Programs return TC_ACT_UNSPEC, so that the filters of others work as before.

// filterName shows in `tc filter show`.
func filterName(dir string, hook tcHook) string { return "ballast:" + hook.name + ":" + dir }

// filterHandle depends on the name alone: two processes that attach at once make one filter.
func filterHandle(name string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return max(hash.Sum32()&0x7fffffff, 1)
}

// dumpTries: the kernel says when a list has changed while it was read.
const dumpTries = 5

func listFilters(ifindex int, hook tcHook) (filters []netlink.Filter, err error) {
	device := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	for range dumpTries {
		if filters, err = netlink.FilterList(device, hook.parent); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the filters at %s of %s: %w", hook.name, deviceName(ifindex), err)
	}
	return filters, nil
}

// filter finds ours. Nil: it is not there. others are those that it must share its priority or the hook with.
func (a *tcAttachment) filter() (ours *netlink.BpfFilter, others []netlink.Filter, err error) {
	filters, err := listFilters(a.ifindex, a.hook)
	for _, f := range filters {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == filterName(a.dir, a.hook) {
			ours = bpf
		} else {
			others = append(others, f)
		}
	}
	return ours, others, err
}

// setFilter adds the program, or replaces the one of an earlier process: the kernel exchanges a filter of the same handle at once.
func (a *tcAttachment) setFilter() error {
	if err := a.ensureClsact(); err != nil {
		return err
	}
	have, others, err := a.filter()
	if err != nil {
		return err
	}
	want := &netlink.BpfFilter{Fd: a.program.FD(), Name: filterName(a.dir, a.hook), DirectAction: true}
	if have != nil {
		want.FilterAttrs = have.FilterAttrs
	} else {
		want.FilterAttrs = netlink.FilterAttrs{
			LinkIndex: a.ifindex, Parent: a.hook.parent, Protocol: unix.ETH_P_ALL,
			Handle: filterHandle(want.Name), Priority: freePriority(others),
		}
	}
	if err := netlink.FilterReplace(want); err != nil {
		return errors.Join(fmt.Errorf("add a filter at %s of %s: %w", a.hook.name, deviceName(a.ifindex), err), a.dropClsact())
	}
	return nil
}

// freePriority is the first that our filter can have: it must not come after one that ends the walk. Filters of one priority have the
// same kind and protocol.
func freePriority(others []netlink.Filter) (priority uint16) {
	taken := map[uint16]bool{}
	for _, f := range others {
		attrs := f.Attrs()
		if attrs.Chain == nil || *attrs.Chain == 0 {
			taken[attrs.Priority] = taken[attrs.Priority] || f.Type() != "bpf" || attrs.Protocol != unix.ETH_P_ALL
		}
	}
	for priority = 1; taken[priority]; priority++ {
	}
	return priority
}

func (a *tcAttachment) runsFilter() error {
	have, _, err := a.filter()
	if err != nil {
		return err
	}
	if have == nil {
		return fmt.Errorf("%s of %s: the filter was deleted", a.hook.name, deviceName(a.ifindex))
	}
	return sameProgram(a.hook.name, a.ifindex, ebpf.ProgramID(have.Id), a.program)
}

// removeFilter deletes the filter and, if nobody else uses it, the qdisc that was made for it.
func (a *tcAttachment) removeFilter() error {
	ours, _, err := a.filter()
	if err != nil || ours == nil {
		return err
	}
	if err := netlink.FilterDel(ours); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the filter at %s of %s: %w", a.hook.name, deviceName(a.ifindex), err)
	}
	return a.dropClsact()
}

func clsact(ifindex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// madeMark is there while a device has a qdisc that we have made.
func (a *tcAttachment) madeMark() string {
	return filepath.Join(a.dir, "clsact-"+strconv.Itoa(a.ifindex))
}

func (a *tcAttachment) ensureClsact() error {
	err := netlink.QdiscAdd(clsact(a.ifindex))
	if errors.Is(err, unix.EEXIST) {
		return a.checkClsact()
	}
	if err != nil {
		return fmt.Errorf("add a clsact qdisc to %s: %w", deviceName(a.ifindex), err)
	}
	if a.dir != "" {
		if err := os.MkdirAll(a.madeMark(), 0o700); err != nil {
			return fmt.Errorf("note that the clsact qdisc of %s is ours: %w", deviceName(a.ifindex), err)
		}
	}
	return nil
}

// checkClsact refuses the older ingress qdisc, which has the same handle and no egress.
func (a *tcAttachment) checkClsact() error {
	qdiscs, err := listQdiscs()
	for _, q := range qdiscs {
		if q.Attrs().LinkIndex == a.ifindex && q.Type() == "ingress" {
			return fmt.Errorf("attach to %s of %s: it has an ingress qdisc, which has no egress: use clsact for what is there "+
				"(tc qdisc replace dev %[2]s clsact)", a.hook.name, deviceName(a.ifindex))
		}
	}
	return err
}

func listQdiscs() (qdiscs []netlink.Qdisc, err error) {
	for range dumpTries {
		if qdiscs, err = netlink.QdiscList(nil); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	return qdiscs, nil
}

// dropClsact deletes the qdisc if we have made it and it has no filters.
func (a *tcAttachment) dropClsact() error {
	if _, err := os.Stat(a.madeMark()); a.dir == "" || err != nil {
		return nil
	}
	for _, hook := range []tcHook{tcIngress, tcEgress} {
		if filters, err := listFilters(a.ifindex, hook); err != nil || len(filters) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(clsact(a.ifindex)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the clsact qdisc of %s: %w", deviceName(a.ifindex), err)
	}
	return os.Remove(a.madeMark())
}

// A tcPlace is a hook of a device.
type tcPlace struct {
	hook    tcHook
	ifindex int
}

// ownFilters finds those that processes have left under dir.
func ownFilters(dir string) (map[tcPlace]bool, error) {
	qdiscs, err := listQdiscs()
	if err != nil {
		return nil, err
	}
	found := map[tcPlace]bool{}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		for _, hook := range []tcHook{tcIngress, tcEgress} {
			at := tcPlace{hook, q.Attrs().LinkIndex}
			ours, _, err := (&tcAttachment{hook: at.hook, ifindex: at.ifindex, dir: dir}).filter()
			if err != nil {
				return nil, err
			}
			if ours != nil {
				found[at] = true
			}
		}
	}
	return found, nil
}

// FiltersElsewhere is an error where the programs that an instance has pinned under dir run on a device of another network namespace than
// the calling thread's, and may have filters beside them: those are found in their own namespace alone.
func FiltersElsewhere(dir string) error {
	if haveTCX() == nil {
		return nil // pins are all there is
	}
	for _, pin := range linkPins(dir, 0) {
		l, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			continue
		}
		ifindex, program := linkIsOn(l)
		l.Close()
		if ifindex == 0 {
			continue // the device is gone, and its filters with it
		}
		device, err := netlink.LinkByIndex(ifindex)
		if err != nil || device.Attrs().Xdp == nil || device.Attrs().Xdp.ProgId != uint32(program) {
			return fmt.Errorf("a program pinned in %s runs on a device of another network namespace, and filters of clsact beside it are found there alone: "+
				"run this in the namespace that the daemon ran in (nsenter --net=/run/netns/NAME)", dir)
		}
	}
	return nil
}

// sweepFilters deletes those that keep does not want.
func sweepFilters(dir string, keep func(tcPlace) bool) error {
	found, err := ownFilters(dir)
	errs := []error{err}
	for at := range found {
		if !keep(at) {
			errs = append(errs, (&tcAttachment{hook: at.hook, ifindex: at.ifindex, dir: dir}).removeFilter())
		}
	}
	return errors.Join(errs...)
}

func nothing(tcPlace) bool { return false }

// tryClsact attaches a program that does nothing to the loopback of the calling thread's network namespace.
func tryClsact() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer program.Close()
	return (&tcAttachment{program: program, hook: tcEgress, ifindex: loopback}).setFilter()
}

// inNewNamespace runs do in a network namespace that goes with the thread.
func inNewNamespace(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		result <- do()
	}()
	return <-result
}
