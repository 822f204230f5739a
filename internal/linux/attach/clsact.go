// Programs as filters of a clsact qdisc: before Linux 6.6, which has tcx.
package attach

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ballast-lb/ballast/internal/linux/internal/tcx"
	"github.com/ballast-lb/ballast/internal/linux/pin"
)

// Before Linux 6.6 programs at tc are filters of a clsact qdisc (Linux 4.5). A filter is nobody's: no descriptor or pin holds it, and it
// stays when its process ends. Ours are known by their names. Programs return TC_ACT_UNSPEC, so that the filters of others work as before.

// filterPrefix begins the names of all of ours.
const filterPrefix = "ballast:"

// filterName shows in `tc filter show`.
func filterName(dir string, hook Hook) string { return filterPrefix + hook.Name + ":" + dir }

// ownerOf is the directory that the name of a filter of ours is made of; empty: it is somebody else's.
func ownerOf(filter netlink.Filter, hook Hook) string {
	bpf, ok := filter.(*netlink.BpfFilter)
	if !ok {
		return ""
	}
	dir, ours := strings.CutPrefix(bpf.Name, filterName("", hook))
	if !ours {
		return ""
	}
	return dir
}

// filterHandle depends on the name alone: two processes that attach at once make one filter.
func filterHandle(name string) uint32 {
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return max(hash.Sum32()&0x7fffffff, 1)
}

// dumpTries: the kernel says when a list has changed while it was read.
const dumpTries = 5

func listFilters(ifindex int, hook Hook) (filters []netlink.Filter, err error) {
	device := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	for range dumpTries {
		if filters, err = netlink.FilterList(device, hook.parent); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the filters at %s of %s: %w", hook.Name, pin.DeviceName(ifindex), err)
	}
	return filters, nil
}

// filter finds ours. Nil: it is not there. others are those that it must share its priority or the hook with.
func (a *TC) filter() (ours *netlink.BpfFilter, others []netlink.Filter, err error) {
	filters, err := listFilters(a.Ifindex, a.Hook)
	for _, f := range filters {
		if bpf, ok := f.(*netlink.BpfFilter); ok && bpf.Name == filterName(a.Dir, a.Hook) {
			ours = bpf
		} else {
			others = append(others, f)
		}
	}
	return ours, others, err
}

// setFilter adds the program, or replaces the one of an earlier process: the kernel exchanges a filter of the same handle at once.
func (a *TC) setFilter() error {
	if err := a.ensureClsact(); err != nil {
		return err
	}
	have, others, err := a.filter()
	if err != nil {
		return err
	}
	want := &netlink.BpfFilter{Fd: a.Program.FD(), Name: filterName(a.Dir, a.Hook), DirectAction: true}
	if have != nil {
		want.FilterAttrs = have.FilterAttrs
	} else {
		want.FilterAttrs = netlink.FilterAttrs{
			LinkIndex: a.Ifindex, Parent: a.Hook.parent, Protocol: unix.ETH_P_ALL,
			Handle: filterHandle(want.Name), Priority: freePriority(others),
		}
	}
	if err := netlink.FilterReplace(want); err != nil {
		return errors.Join(fmt.Errorf("add a filter at %s of %s: %w", a.Hook.Name, pin.DeviceName(a.Ifindex), err), a.dropClsact())
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

func (a *TC) runsFilter() error {
	have, _, err := a.filter()
	if err != nil {
		return err
	}
	if have == nil {
		return fmt.Errorf("%s of %s: the filter was deleted", a.Hook.Name, pin.DeviceName(a.Ifindex))
	}
	return pin.SameProgram(a.Hook.Name, a.Ifindex, ebpf.ProgramID(have.Id), a.Program)
}

// removeFilter deletes the filter and, if nobody else uses it, the qdisc that was made for it.
func (a *TC) removeFilter() error {
	ours, _, err := a.filter()
	if err != nil || ours == nil {
		return err
	}
	if err := netlink.FilterDel(ours); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the filter at %s of %s: %w", a.Hook.Name, pin.DeviceName(a.Ifindex), err)
	}
	return a.dropClsact()
}

func clsact(ifindex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Parent: netlink.HANDLE_CLSACT, Handle: netlink.MakeHandle(0xffff, 0),
	}}
}

// madeMark is there while a device has a qdisc that we have made.
func (a *TC) madeMark() string {
	return filepath.Join(a.Dir, "clsact-"+strconv.Itoa(a.Ifindex))
}

func (a *TC) ensureClsact() error {
	err := netlink.QdiscAdd(clsact(a.Ifindex))
	if errors.Is(err, unix.EEXIST) {
		return a.checkClsact()
	}
	if err != nil {
		return fmt.Errorf("add a clsact qdisc to %s: %w", pin.DeviceName(a.Ifindex), err)
	}
	if a.Dir != "" {
		if err := os.MkdirAll(a.madeMark(), 0o700); err != nil {
			return fmt.Errorf("note that the clsact qdisc of %s is ours: %w", pin.DeviceName(a.Ifindex), err)
		}
	}
	return nil
}

// checkClsact refuses the older ingress qdisc, which has the same handle and no egress.
func (a *TC) checkClsact() error {
	qdiscs, err := listQdiscs()
	for _, q := range qdiscs {
		if q.Attrs().LinkIndex == a.Ifindex && q.Type() == "ingress" {
			return fmt.Errorf("attach to %s of %s: it has an ingress qdisc, which has no egress: use clsact for what is there "+
				"(tc qdisc replace dev %[2]s clsact)", a.Hook.Name, pin.DeviceName(a.Ifindex))
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

// dropClsact deletes the qdisc if we have made it and it has no filters. If another directory of ours has one there, the qdisc is its from now on.
func (a *TC) dropClsact() error {
	if _, err := os.Stat(a.madeMark()); a.Dir == "" || err != nil {
		return nil
	}
	used := false
	for _, hook := range hooks {
		filters, err := listFilters(a.Ifindex, hook)
		if err != nil {
			return err
		}
		used = used || len(filters) > 0
		for _, f := range filters {
			heir := TC{Ifindex: a.Ifindex, Dir: ownerOf(f, hook)}
			if heir.Dir == "" || heir.Dir == a.Dir || os.Mkdir(heir.madeMark(), 0o700) != nil { // its directory is gone
				continue
			}
			return os.Remove(a.madeMark())
		}
	}
	if used {
		return nil
	}
	if err := netlink.QdiscDel(clsact(a.Ifindex)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete the clsact qdisc of %s: %w", pin.DeviceName(a.Ifindex), err)
	}
	return os.Remove(a.madeMark())
}

// A place is a hook of a device.
type place struct {
	hook    Hook
	ifindex int
}

// ownFilters finds those that processes have left under dir.
func ownFilters(dir string) (map[place]bool, error) {
	qdiscs, err := listQdiscs()
	if err != nil {
		return nil, err
	}
	found := map[place]bool{}
	for _, q := range qdiscs {
		if q.Type() != "clsact" {
			continue
		}
		for _, hook := range hooks {
			at := place{hook, q.Attrs().LinkIndex}
			ours, _, err := (&TC{Hook: at.hook, Ifindex: at.ifindex, Dir: dir}).filter()
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

// sweepFilters deletes those that keep does not want.
func sweepFilters(dir string, keep func(place) bool) error {
	found, err := ownFilters(dir)
	errs := []error{err}
	for at := range found {
		if !keep(at) {
			errs = append(errs, (&TC{Hook: at.hook, Ifindex: at.ifindex, Dir: dir}).removeFilter())
		}
	}
	return errors.Join(errs...)
}

// RemoveFilters deletes the filters that processes have left under dir, in the calling thread's network namespace: those of some hooks, or all.
func RemoveFilters(dir string, of ...Hook) error {
	return sweepFilters(dir, func(at place) bool { return len(of) > 0 && !slices.Contains(of, at.hook) })
}

// tryClsact attaches a program that does nothing to the loopback of the calling thread's network namespace.
func tryClsact() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	if err != nil {
		return err
	}
	defer program.Close()
	return (&TC{Program: program, Hook: Egress, Ifindex: tcx.Loopback}).setFilter()
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
